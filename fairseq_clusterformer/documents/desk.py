"""The documents on the page, and the answers to what is asked of them, as plain values."""

import os
import threading
from dataclasses import KW_ONLY, dataclass
from html import escape
from typing import Any, NamedTuple

from fairseq_clusterformer.errors import bad_option

from .found import FoundAnswer
from .passages import Passages
from .read import Reader
from .sections import Section
from .sources import Source, uploaded_source

AROUND = 250  # characters of a passage on either side of an answer
MOST_CHARACTERS = 50_000_000  # of all documents
_NEAR = 200  # paragraphs before and behind one that is shown


class _Document(NamedTuple):
    source: Source
    sections: list[Section]
    words: int
    characters: int


@dataclass(eq=False)
class Desk:
    """Documents, and a reader of them. One thread at a time uses the reader."""

    reader: Reader
    _: KW_ONLY
    encoding: str | None = None  # as of `read_source`, where an upload says nothing else
    main_text: bool = False  # as of `read_source`
    top: int = 3  # answers to show
    most: int | None = None  # tokens of a document that are read at once; None: the reader's
    least: float = 0.0  # as of `Reader.ask`
    windows: int | None = None  # as of `Reader.ask`; None: the reader's

    def __post_init__(self) -> None:
        self.windows = self.reader.windows if self.windows is None else self.windows
        self._documents: dict[str, _Document] = {}  # by name
        self._passages: Passages | None = None  # of all documents, once somebody asks
        self._lock = threading.Lock()

    def documents(self) -> list[dict[str, Any]]:
        """Of each document the name, what is shown of it, its paragraphs and its words."""
        common = self._common()
        return [
            {
                "name": name,
                "shown": name[common:],
                "paragraphs": len(own.source.paragraphs),
                "words": own.words,
            }
            for name, own in list(self._documents.items())
        ]

    def _common(self) -> int:
        """The length of the folder that all documents are in."""
        return os.path.commonprefix([*self._documents]).rfind("/") + 1

    def add(self, source: Source) -> None:
        """Take a document, in the place of one of the same name. Raises UserError: if there are
        too many already."""
        own = sum(map(len, source.paragraphs))
        with self._lock:
            others = (each for name, each in self._documents.items() if name != source.name)
            if (size := own + sum(each.characters for each in others)) > MOST_CHARACTERS:
                allowed = f"{MOST_CHARACTERS:,} in all documents; remove one"
                problem = f"there would be {size:,} characters"
                raise bad_option("document", source.name, allowed, problem)
            sections = self.reader.sections(source, self.most)
            passages = self.reader.passages(sections)  # encoded now, not when somebody asks
            words = sum(len(text.split()) for text in source.paragraphs)
            self._documents[source.name] = _Document(source, sections, words, own)
            self._passages = passages if len(self._documents) == 1 else None

    def upload(self, name: str, data: bytes, encoding: str | None = None) -> None:
        """Read a file and take it; text and HTML in this encoding, or the desk's own. Raises
        UserError for a file that cannot be read, or has no text."""
        own = encoding or self.encoding
        self.add(uploaded_source(data, name, own, main_text=self.main_text))

    def remove(self, name: str) -> None:
        """Put a document away. Raises UserError: if there is none of this name."""
        with self._lock:
            self._document(name)
            del self._documents[name]
            self._passages = None

    def _document(self, name: str) -> _Document:
        if name not in self._documents:
            raise bad_option("document", name, ", ".join(self._documents) or "none is here")
        return self._documents[name]

    def ask(self, question: str) -> dict[str, Any]:
        """Answer a question: ``verdict``, a sentence if there is no answer, else ""; ``note``, as
        of `Ranking`; ``answers``, see :meth:`_shown`; ``read`` windows ``of`` all. Raises
        UserError if there is no document, or the question cannot be asked."""
        with self._lock:
            if not self._documents:
                raise bad_option("document", "none", "one or more: drop a file on the page first")
            if self._passages is None:
                parts = [part for own in self._documents.values() for part in own.sections]
                self._passages = self.reader.passages(parts)
            passages, options = self._passages, {"least": self.least, "windows": self.windows}
            ranking = self.reader.ask(question, passages, self.top, **options)
        return {
            "verdict": ranking.verdict,
            "note": ranking.note,
            "answers": [*map(self._shown, ranking)],
            "read": min(len(passages), self.windows or len(passages)),
            "of": len(passages),
        }

    def _shown(self, found: FoundAnswer) -> dict[str, Any]:
        """An answer as the page shows it: ``found`` says whether it is more than a guess, and
        ``link`` opens its document at it."""
        before, _, behind = found.passage(AROUND)
        start, end = found.characters or (0, 0)
        return {
            "text": found.text,
            "probability": found.probability,
            "found": found.found,
            "name": found.file,
            "file": found.file[self._common() :],
            "place": found.place,
            "link": {"paragraph": found.paragraph, "start": start, "end": end},
            "before": before,
            "behind": behind,
        }

    def text(self, name: str, paragraph: int, start: int, end: int) -> str:
        """A document as HTML around a paragraph, where characters [start, end) are marked. Raises
        UserError: if there is none of this name."""
        source = self._document(name).source
        texts, place, shown = source.paragraphs, "", [f"<h1>{escape(source.title or name)}</h1>"]
        for number in range(max(0, paragraph - _NEAR), min(len(texts), paragraph + _NEAR)):
            text = texts[number]
            if source.places and source.places[number] != place:
                place = source.places[number]
                shown.append(f"<p><small>{escape(source.place(number))}</small></p>")
            parts = [escape(part) for part in (text[:start], text[start:end], text[end:])]
            marked = f'{parts[0]}<mark id="answer">{parts[1]}</mark>{parts[2]}'
            shown.append(f"<p>{marked if number == paragraph else escape(text)}</p>")
        return "\n".join(shown)
