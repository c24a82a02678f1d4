"""Records: questions with their paragraphs and answers, which the readers of all corpora yield.
What cannot be one is dropped, and reported with file, place and reason."""

import json
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_clusterformer.data import characters
from fairseq_clusterformer.data.characters import READ_FORM
from fairseq_clusterformer.errors import UserError

from ..files import half_in, raw_lines, wrong


@dataclass(frozen=True)
class Paragraph:
    """A paragraph, passage or snippet."""

    title: str  # of the paragraph or of its document; may be empty
    text: str  # not empty
    #: Natural Questions: the document's tokens [start, end), markup included, and each word's
    span: tuple[int, int] | None = None
    tokens: tuple[int, ...] | None = None


class GoldAnswer(NamedTuple):
    """A right answer: `text` is the characters [start, end) of a paragraph, given by its index."""

    paragraph: int
    start: int
    end: int
    text: str


class Sentence(NamedTuple):
    """The characters [start, end) of a paragraph, given by its index."""

    paragraph: int
    start: int
    end: int


class Mention(NamedTuple):
    """The characters [start, end) of a paragraph where a candidate stands, both by their index."""

    candidate: int
    paragraph: int
    start: int
    end: int


def sentences_of(paragraphs: Iterable[str]) -> Iterator[Sentence]:
    """Yield the sentences of paragraphs, by their lines and their punctuation."""
    for number, text in enumerate(paragraphs):
        for line in re.finditer(r"\S.*", text):
            for start, end in characters.sentences(line[0]):
                yield Sentence(number, line.start() + start, line.start() + end)


class Unusable(Exception):
    """Why something cannot be a record: a reason that others share, and a detail of its own."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail


@dataclass(frozen=True)
class Record:
    """A question with what it can be answered from; raises `Unusable` if the parts do not fit."""

    id: str  # in the corpus's own files
    question: str
    paragraphs: tuple[Paragraph, ...]
    answers: tuple[GoldAnswer, ...] = ()  # each once; by search where the corpus has only texts
    #: accepted answers, to score predictions with; none: those of `answers`
    texts: tuple[str, ...] = ()
    answerable: bool | None = True  # None: kept secret, in a test set without answers
    yes_no: str | None = None  # "yes" or "no" where that is the answer
    long_answers: tuple[int, ...] = ()  # paragraphs that answer, or support the answer
    document: str = ""  # its name, where its paragraphs' titles do not say it
    sentences: tuple[Sentence, ...] | None = None  # in order; None: found by their punctuation
    supporting: tuple[int, ...] | None = None  # sentences that one needs; None: unknown
    titled: bool = False  # each paragraph's text begins with its title, which is a sentence
    candidates: tuple[str, ...] = ()  # one of them is the answer; none: it may be any text
    mentions: tuple[Mention, ...] = ()  # places of the candidates

    def __post_init__(self) -> None:
        if not self.question.strip():
            raise Unusable("empty question")
        if not self.paragraphs or not all(part.text.strip() for part in self.paragraphs):
            raise Unusable("empty document")
        if self.yes_no not in (None, "yes", "no"):
            raise Unusable("neither yes nor no", f"{self.yes_no!r}; allowed: yes, no")
        for paragraph, start, end, wanted in self.answers:
            text = self.paragraphs[paragraph].text
            found = text[max(start, 0) : end]
            if not wanted or start < 0 or found != wanted:
                place = f"[{start}, {end}) of {len(text):,} characters"
                raise Unusable("answer not in its context", f"{wanted!r} is {found!r} at {place}")
        if not self.texts:
            texts = tuple(dict.fromkeys(answer.text for answer in self.answers))
            object.__setattr__(self, "texts", texts)
        before = Sentence(0, 0, 0)
        for number, (paragraph, start, end) in enumerate(self.sentences or ()):
            first = before.end if paragraph == before.paragraph else 0
            known = before.paragraph <= paragraph < len(self.paragraphs)
            last = len(self.paragraphs[paragraph].text) if known else 0
            if not known or not first <= start <= end <= last:  # HotpotQA has empty ones
                place = f"characters [{start}, {end}) of paragraph {paragraph}"
                detail = f"sentence {number} is {place}; allowed: [{first}, {last}), in order"
                raise Unusable("misplaced sentence", detail)
            before = Sentence(paragraph, start, end)
        for number in self.supporting or ():
            if number not in range(len(self.sentences or ())):
                raise Unusable("no such sentence", f"supporting fact {number}")
        strings = [self.id, self.question, *self.texts, *self.candidates]
        strings += [text for part in self.paragraphs for text in (part.title, part.text)]
        if half := half_in("".join(strings)):
            raise Unusable("not valid Unicode", half)


@dataclass
class Drops:
    """What readers left out: a count for each reason, and the first few examples with places."""

    #: keep questions whose answer stands nowhere: to be scored, not trained on
    keep_unfound: bool = False
    moved: int = 0  # answers that were taken, but elsewhere than their offsets say
    counts: Counter = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def add(self, place: str, reason: str, detail: str = "") -> None:
        self.counts[reason] += 1
        if len(self.examples[reason]) < 5:
            self.examples[reason].append(f"{place}: {detail or reason}"[:300])

    @contextmanager
    def at(self, place: str) -> Iterator[None]:
        """Add what turns out to be unusable in the ``with`` statement, and go on after it."""
        try:
            yield
        except Unusable as error:
            self.add(place, error.reason, error.detail)
        except (AttributeError, IndexError, KeyError, TypeError) as error:
            self.add(place, "malformed", f"{type(error).__name__}: {error}")

    def summary(self) -> str:
        """The end of a line: why and where the first was left out, if any, and how many more."""
        for reason, (first, *_) in self.examples.items():
            first, others = " ".join(first.splitlines()), self.counts.total() - 1
            return f"; left out: {reason}: {first}" + (f"; and {others:,} more" if others else "")
        return ""

    def __str__(self) -> str:
        took = f"took {self.moved:,} answers where the text stands, not at answer_start"
        lines = [took] if self.moved else []
        for reason, count in self.counts.most_common():
            lines.append("\n  ".join([f"dropped {count:,}: {reason}", *self.examples[reason]]))
        return "\n".join(lines)


def gold_answer(
    paragraphs: Sequence[Paragraph], number: int, start: int, text: str, drops: Drops
) -> GoldAnswer:
    """The answer at an offset of a paragraph, compared as documents are read (in NFKC). If other
    text stands there, the offset is taken as one of UTF-16, or as wrong by up to two characters,
    which is counted in `drops`."""
    context = paragraphs[number].text if 0 <= number < len(paragraphs) else ""
    units = context.encode("utf-16-le", "surrogatepass")[: 2 * max(start, 0)]
    of_units = len(units.decode("utf-16-le", "replace")) if len(units) == 2 * start else start
    for off in (0, -1, 1, -2, 2):
        for place in (start + off, of_units + off):
            if text and place >= 0 and (found := _text_at(context, place, text)):
                drops.moved += place != start
                return GoldAnswer(number, place, place + len(found), found)
    return GoldAnswer(number, start, start + len(text), text)  # which no record takes


def _text_at(context: str, place: int, text: str) -> str:
    """What stands at a place, if it is a text but for its form of Unicode; else nothing."""
    if context.startswith(text, place):
        return text
    wanted, places = characters.composed(text, READ_FORM), _read_places(context, READ_FORM)
    if places is None:
        return wanted if context.startswith(wanted, place) else ""
    read, starts, ends = places
    first = int(starts.searchsorted(place))
    if first == len(read) or starts[first] != place or not read.startswith(wanted, first):
        return ""
    # a ligature of which only a part is wanted is taken whole
    return context[place : ends[first + len(wanted) - 1]]


_read_places = lru_cache(8)(characters.with_places)  # questions on one context follow each other


Items = Iterable[tuple[str, Any]]  # with the place of each, for messages
Reader = Callable[[Path, Drops], Iterator[Record]]


def convert(items: Items, to_record: Callable[[Any], Record], drops: Drops) -> Iterator[Record]:
    """Yield the record of each item. Unusable items and repeated ids go to `drops`."""
    ids = set()
    for place, item in items:
        with drops.at(place):
            record = to_record(item)
            found = record.answers or record.yes_no or record.candidates
            if record.texts and not (found or drops.keep_unfound):
                detail = f"{record.texts[0]!r} is in no paragraph of question {record.id}"
                raise Unusable("answer not found", detail)
            if record.id in ids:
                raise Unusable("id seen before", record.id)
            ids.add(record.id)
            yield record


def get(item: Any, name: str, kind: type | tuple[type, ...] = str) -> Any:
    """Return a field of a JSON object; raises `Unusable` if it is missing or of another kind."""
    value = item.get(name) if isinstance(item, Mapping) else None
    kinds = kind if isinstance(kind, tuple) else (kind,)
    # JSON's true and false are no numbers, though Python's are
    if isinstance(value, kinds) and (not isinstance(value, bool) or bool in kinds):
        return value
    names = " or ".join(one.__name__ for one in kinds)
    raise Unusable(f"no {name}", f"{name} is {json.dumps(value)[:80]}; allowed: {names}")


# One reader for each form of JSON


def parse_json(data: bytes) -> Any:
    """Return what JSON in UTF-8 (with or without a byte order mark) says, or raise `Unusable`."""
    try:
        return json.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        detail = f"byte 0x{data[error.start]:02X} at {error.start:,}"
        raise Unusable("not UTF-8", detail) from None
    except (ValueError, RecursionError) as error:
        raise Unusable("broken JSON", str(error)) from None


def json_lines(path: Path, drops: Drops) -> Items:
    """Yield the JSON object of each line, unpacked; a line that is not UTF-8 or not JSON goes to
    `drops`. Raises UserError if the file cannot be read to its end."""
    for number, line in enumerate(raw_lines(path, None), 1):
        with drops.at(place := f"{path}: line {number:,}"):
            if line.strip():
                yield place, parse_json(line)


def json_file(path: Path) -> Any:
    """Return the content of a JSON file; raises UserError if it is no such file."""
    try:
        return parse_json(b"".join(raw_lines(path, None)))
    except Unusable as error:
        raise UserError(f"{path}: {error.reason}: {error.detail}") from None


def json_list(path: Path, allowed: str, content: Any = None) -> Items:
    """Return the items of a JSON list, whose `content` may be known; UserError: it is no list."""
    content = json_file(path) if content is None else content
    if not isinstance(content, list):
        raise foreign(path, allowed)
    return ((f"{path}: item {i}", item) for i, item in enumerate(content))


def foreign(path: Path, allowed: str) -> UserError:
    """Return the error for a file that is not of the corpus."""
    return wrong(path, "is something else", allowed)


# Distant supervision: where an answer's text stands; not every such place answers the question


def find_answers(texts: Iterable[str], paragraphs: Iterable[str]) -> tuple[GoldAnswer, ...]:
    """Return every place where one of `texts` stands in the paragraphs. Whole words are compared,
    without regard to case, marks such as accents, punctuation and white space. Of places that
    start together the longest is kept."""
    wanted = defaultdict(set)  # by the first word
    for text in texts:
        if words := _words(text)[0]:
            wanted[words[0]].add(words)
    found = []
    for index, paragraph in enumerate(paragraphs):
        words, places = _words(paragraph)
        for i, word in enumerate(words):
            if here := [len(w) for w in wanted.get(word, ()) if words[i : i + len(w)] == w]:
                start, end = places[i][0], places[i + max(here) - 1][1]
                found.append(GoldAnswer(index, start, end, paragraph[start:end]))
    return tuple(found)


def in_sentences(
    answers: Sequence[GoldAnswer], sentences: Sequence[Sentence]
) -> tuple[GoldAnswer, ...]:
    """Return the answers that lie in one of some sentences; all if none does."""
    inside = [
        one
        for one in answers
        for number, start, end in sentences
        if number == one.paragraph and start <= one.start and one.end <= end
    ]
    return tuple(dict.fromkeys(inside) or answers)


def mentions_of(
    id_: str, candidates: Sequence[str], paragraphs: Sequence[str]
) -> tuple[Mention, ...]:
    """Return the places of each candidate, as `find_answers`; they may overlap those of another.
    Raises `Unusable` if there is no candidate."""
    if not candidates or not all(isinstance(text, str) for text in candidates):
        raise Unusable("no candidates", f"question {id_}")
    return tuple(
        Mention(number, place.paragraph, place.start, place.end)
        for number, text in enumerate(candidates)
        for place in find_answers([text], paragraphs)
    )


def distant_record(
    id_: str, question: str, paragraphs: Iterable[Paragraph], names: Iterable[str]
) -> Record:
    """Return a record whose spans are the places of an answer's `names`; one must be given."""
    names = [name for name in dict.fromkeys(names) if isinstance(name, str) and name.strip()]
    if not names:
        raise Unusable("no answer")
    paragraphs = tuple(paragraphs)
    found = find_answers(names, [part.text for part in paragraphs])
    return Record(id_, question, paragraphs, found, tuple(names))


@lru_cache(256)  # each candidate is searched in the same paragraphs
def _words(text: str) -> tuple[tuple[str, ...], list[tuple[int, int]]]:
    """Folded words, and their characters [start, end)."""
    places = list(characters.places_of_names(text))
    return tuple(_fold(text[start:end]) for start, end in places), places


@lru_cache(1 << 18)
def _fold(word: str) -> str:
    decomposed = unicodedata.normalize("NFKD", word).casefold()
    return "".join(char for char in decomposed if not unicodedata.combining(char))
