"""The documents on the page, and the answers to what is asked of them, as plain values."""

import threading
from dataclasses import asdict, dataclass
from typing import Any

from fairseq_clusterformer.errors import bad_option

from ..inference.documents import Source, uploaded_source
from ..inference.found import FoundAnswer, Ranking, Section, confidence
from ..inference.read import Reader

AROUND = 250  # characters of a passage on either side of an answer
MOST_CHARACTERS = 50_000_000  # of all documents


@dataclass(frozen=True)
class Shown:
    """An answer as the page shows it.

    Attributes:
        text, probability, margin, file: as of `FoundAnswer`.
        confidence: the probability in words.
        paragraph: counted from 1; None of yes and no.
        counts: whether the margin is large enough; else it is a guess.
        before, behind: the passage around the answer, its paragraph or a part of it.
    """

    text: str
    probability: float
    margin: float
    file: str
    confidence: str
    paragraph: int | None
    counts: bool
    before: str
    behind: str


class Desk:
    """Documents, and a reader of them. One thread at a time uses the reader.

    Args:
        reader: of the documents.
        encoding, main_text: as of `read_source`, where an upload says nothing else.
        top: answers to show.
        most: tokens of a document that are read at once; None: as the reader has it.
        least, windows: as of `Reader.ask`.
    """

    def __init__(
        self,
        reader: Reader,
        *,
        encoding: str | None = None,
        main_text: bool = False,
        top: int = 3,
        most: int | None = None,
        least: float = 0.0,
        windows: int | None = None,
    ) -> None:
        self.reader, self.encoding, self.main_text = reader, encoding, main_text
        self.top, self.most, self.least, self.windows = top, most, least, windows
        self._sections: dict[str, list[Section]] = {}  # by the document's name
        self._words: dict[str, int] = {}
        self._characters: dict[str, int] = {}
        self._lock = threading.Lock()

    def documents(self) -> list[dict[str, Any]]:
        """The name of each document, its paragraphs and its words."""
        return [
            {
                "name": name,
                "paragraphs": len(sections[0].source.paragraphs),
                "words": self._words[name],
            }
            for name, sections in list(self._sections.items())
        ]

    def add(self, source: Source) -> None:
        """Take a document, in the place of one of the same name.

        Raises:
            UserError: if there are too many already.
        """
        with self._lock:
            own = sum(map(len, source.paragraphs))
            before = self._characters.get(source.name, 0)
            size = sum(self._characters.values()) - before + own
            if size > MOST_CHARACTERS:
                allowed = f"{MOST_CHARACTERS:,} in all documents; remove one"
                problem = f"there would be {size:,} characters"
                raise bad_option("document", source.name, allowed, problem)
            sections = self.reader.sections(source, self.most)
            self.reader.encode_sections(sections)
            self._words[source.name] = sum(len(text.split()) for text in source.paragraphs)
            self._characters[source.name] = own
            self._sections[source.name] = sections

    def upload(self, name: str, data: bytes, encoding: str | None = None) -> None:
        """Read a file and take it.

        Args:
            encoding: of text and HTML; None: the desk's own.

        Raises:
            UserError: a file that cannot be read, or has no text.
        """
        own = encoding or self.encoding
        self.add(uploaded_source(data, name, own, main_text=self.main_text))

    def remove(self, name: str) -> None:
        """Put a document away.

        Raises:
            UserError: if there is none of this name.
        """
        with self._lock:
            if self._sections.pop(name, None) is None:
                raise bad_option("document", name, ", ".join(self._sections) or "none is here")
            del self._characters[name]

    def ask(self, question: str) -> dict[str, Any]:
        """Answer a question.

        Returns:
            ``verdict``, a sentence if there is no answer, else ""; ``note``, as of `Ranking`;
            ``answers``, of which each has the fields of `Shown`; ``read`` windows ``of`` all.

        Raises:
            UserError: if there is no document, or the question cannot be asked.
        """
        with self._lock:
            sections = [part for own in self._sections.values() for part in own]
            if not sections:
                raise bad_option("document", "none", "one or more: drop a file on the page first")
            options = {"least": self.least, "windows": self.windows}
            ranking = self.reader.ask(question, sections, self.top, **options)
        read = min(len(sections), self.windows or len(sections))
        answers = [asdict(_shown(found, ranking)) for found in ranking.answers]
        return {
            "verdict": ranking.verdict,
            "note": ranking.note,
            "answers": answers,
            "read": read,
            "of": len(sections),
        }


def _shown(found: FoundAnswer, ranking: Ranking) -> Shown:
    before, behind = _passage(found)
    return Shown(
        text=found.text,
        probability=found.probability,
        margin=found.margin,
        file=found.file,
        confidence=confidence(found.probability),
        paragraph=None if found.paragraph is None else found.paragraph + 1,
        counts=ranking.is_answered and found.margin > ranking.least,
        before=before,
        behind=behind,
    )


def _passage(found: FoundAnswer) -> tuple[str, str]:
    """What stands before and behind an answer in its paragraph, cut between words."""
    if found.characters is None:
        return "", ""
    text = found.read.section.source.paragraphs[found.paragraph]
    start, end = found.characters
    before, behind = text[:start], text[end:]
    if len(before) > AROUND:
        before = "\u2026 " + before[-AROUND:].partition(" ")[2]
    if len(behind) > AROUND:
        behind = behind[:AROUND].rpartition(" ")[0] + " \u2026"
    return before, behind
