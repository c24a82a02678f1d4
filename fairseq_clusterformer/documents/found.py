"""What is found in sections of documents: answers, their places, and their order among all."""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path

import regex
import torch
from torch import Tensor

from fairseq_clusterformer.errors import read_json, reading

from ..answers import TYPES, Answer, Answers
from .passages import WORD, stems
from .sections import Section
from .texts import ABBREVIATION, SENTENCE_END

_SIGN = regex.compile(r"(?:^|[\s(])(\p{Sc}?[-+\u2212\u00b1]?\p{Sc}?\.?)$")  # not a hyphen
_NUMBER = regex.compile(r"\p{Sc}?\.?\d")
_MARKS = regex.compile(r"[\p{P}|\s]*")  # what alone is no answer
_SHORTENED = regex.compile(rf"(?<={ABBREVIATION})\.")
_PAIRS = dict(zip('([{\u201c\u00ab\u201e"', ')]}\u201d\u00bb\u201c"', strict=True))
GUESSES = 3  # at most, where no answer is found
_AROUND = 160  # characters on either side of an answer
_LEAST = 1e-300  # of a probability
_ALONE = 10.0  # nats: the lead of an answer without a rival
#: what ranks answers
FEATURES = ("margin", "words", "likeness", "none", "asked", "lead")


@dataclass(eq=False)
class SectionRead:
    """What a model makes of a section and a question."""

    section: Section
    answers: Answers
    #: reads it again: the cluster of each token, int64 [N], by number and label of a layer or head
    clusters: Callable[[], dict[tuple[int, str], Tensor]] = field(default=dict, repr=False)
    words: float = 0.0  # how relevant it is to the question; see `Passages`
    likeness: float = 0.0
    asked: Collection[str] = ()  # the stems of the question that have four letters or more


@dataclass(frozen=True, eq=False)
class FoundAnswer:
    """One answer among all that were found; "yes" and "no" are in no place."""

    text: str  # whole words of the document, unchanged; or "yes", "no"
    type: str  # "short" for a span, "long" for a paragraph as a whole, "yes" or "no"
    #: of all answers and "no answer", or of this one and "no answer", or to be right; see `ranked`
    probability: float
    margin: float  # by how much likelier than "no answer", in nats; if calibrated, than wrong
    file: str  # the name of the document
    paragraph: int | None  # its number in the document, from 0
    characters: tuple[int, int] | None  # [start, end) of the paragraph
    read: SectionRead = field(repr=False)  # the section that it is from
    found: bool = False  # whether it is likely enough to be an answer; else it is a guess
    lead: float = _ALONE  # its margin less that of the best answer with another text

    @property
    def features(self) -> dict[str, float]:
        """What :class:`Weights` weighs, by its name there."""
        none = math.log(max(self.read.answers.types["none"], _LEAST))
        asked = self.read.asked
        said = len({*asked}.intersection(stems(self.context))) / max(1, len(asked))
        values = (self.margin, self.read.words, self.read.likeness, none, said, self.lead)
        return dict(zip(FEATURES, values, strict=True))

    @property
    def place(self) -> str:
        """Where a person finds it in its document; see `Source.place`."""
        return "" if self.paragraph is None else self.read.section.source.place(self.paragraph)

    @property
    def context(self) -> str:
        """The sentence around the answer."""
        return "".join(self.around())

    def around(self, most: int = _AROUND, *, whole: bool = False) -> tuple[str, str, str]:
        """What stands before the answer in its sentence, or `whole` paragraph, the answer as it is
        written there, and what stands behind it; on either side up to `most` characters."""
        if self.characters is None:
            return "", self.text, ""
        text, (start, end) = self.read.section.source.paragraphs[self.paragraph], self.characters
        first, last = (0, len(text)) if whole else sentence_around(text, start, end)
        before, behind = text[first:start], text[end:last].rstrip()
        if len(before) > most:
            before = "\u2026 " + (before[-most:].partition(" ")[2] or before[-most:])
        if len(behind) > most:
            behind = (behind[:most].rpartition(" ")[0] or behind[:most]) + " \u2026"
        return before, text[start:end], behind

    @property
    def supporting(self) -> list[tuple[str, float]]:
        """The sentences that the model says support the answer, and how likely each does."""
        document = self.read.section.document
        return [(document.sentence_text(n), p) for n, p in self.read.answers.supporting or ()]


@dataclass(frozen=True)
class Weights:
    """What ranks answers: a weighted sum. Of a calibrated reader, it is the log-odds that an
    answer is right, among the best answers to questions that were asked of folders."""

    margin: float = 1.0  # of a reader's margin
    words: float = 0.5  # of the relevance of the passage; see `Passages`
    likeness: float = 0.0
    none: float = 0.0  # of the logarithm of the probability of "no answer" in the passage alone
    asked: float = 0.0  # of the share of the question's words that stand in the answer's sentence
    lead: float = 0.0  # of the answer's lead
    bias: float = 0.0  # added to the sum
    threshold: float | None = None  # probability of an answer that counts; None: not calibrated
    passage: int | None = None  # tokens of the passages that were read; None: as in training

    def of(self, found: FoundAnswer) -> float:
        """The sum."""
        features = found.features.items()
        return sum(getattr(self, name) * value for name, value in features) + self.bias

    @staticmethod
    def from_file(path: Path) -> "Weights":
        """Those of a calibration. Raises UserError: a file that is missing or something else."""
        what = f"a calibration, with the weights {', '.join(FEATURES)}, bias, threshold"
        with reading(path, what):
            found = Weights(**read_json(path)["weights"])
            *numbers, passage = astuple(found)
            if not all(map(math.isfinite, numbers)) or not 0 < found.threshold < 1:
                raise ValueError("a threshold outside of 0 to 1, or a number that is not finite")
            if passage is not None and (type(passage) is not int or passage < 1):
                raise ValueError(f"passage is {passage}; allowed: a whole number from 1, or null")
        return found


class Ranking(list[FoundAnswer]):
    """The answers of all documents, best first; where none is ``found``, up to `GUESSES` guesses.

    Args:
        no_answer: the probability that there is none in any of the documents; of a `calibrated`
            reader, that the best one is wrong.
        least: the margin that the best answer must have, in nats.
    """

    note = ""  # a sentence about the question

    def __init__(
        self, answers: list[FoundAnswer], no_answer: float, least: float, calibrated: bool = False
    ) -> None:
        self.no_answer, self._least, self._calibrated = no_answer, least, calibrated
        enough = least == -math.inf or no_answer < _sigmoid(-least)  # which may both be 1
        self.found = bool(answers) and enough
        kept = answers if self.found else _guesses(answers)
        super().__init__(replace(x, found=self.found and x.margin > least) for x in kept)

    @property
    def verdict(self) -> str:
        """One sentence that says that there is no answer, and why; "" if there is one."""
        if self.found:
            return ""
        if self._calibrated and self:
            right = f"{1 - self.no_answer:.0%} are right."
            return f"No answer found: of guesses as weak as these, {right}"
        if self.no_answer >= 0.5 or not self:
            return f"Most likely, no answer here ({confidence(self.no_answer)})."
        best = self[0].margin
        return f"No answer here: the best margin is {best:.2f}, and above {self._least:g} counts."


def _guesses(answers: Sequence[FoundAnswer]) -> list[FoundAnswer]:
    """A few that are a sentence or less, each sentence and each text once."""
    kept: list[FoundAnswer] = []
    seen: set[object] = set()
    for each in sorted(answers, key=lambda each: each.type == "long"):
        own = {each.text.casefold()}
        if each.characters is not None:
            text = each.read.section.source.paragraphs[each.paragraph]
            start, end = each.characters
            first, last = sentence_around(text, start, start)
            shown = text[start : min(end, max(last, start + 1), start + 2 * _AROUND)].rstrip()
            own = {(each.file, each.paragraph, first), shown.casefold()}
            each = replace(each, text=shown, characters=(start, start + len(shown)))
        if own.isdisjoint(seen):
            kept.append(each)
        seen |= own
    return kept[:GUESSES]


def confidence(probability: float) -> str:
    """A probability in figures, and in words what they are worth."""
    figures = "below 0.001" if probability < 0.001 else f"{probability:.3f}"
    words = ", very low confidence" if probability < 0.1 else ", low confidence"
    return f"probability {figures}{words if probability < 0.5 else ''}"


def ranked(
    reads: Sequence[SectionRead], top: int, least: float = 0.0, weights: Weights | None = None
) -> Ranking:
    """The `top` best answers of all sections; `least` and `weights` (None: the defaults) say what
    counts. A reader's probabilities are softmaxes over one section each, and cannot be compared.

    **By margins**, where "no answer" is a place in the softmaxes of spans (`Answers.none`). An
    answer's margin is the score of its span less that of "no answer" in the same section
    (Alberti et al. 2019 rank windows so); its probability is that of the two. "No answer" in all
    documents is as likely as against the best answer. The order is that of :class:`Weights`.

    **By shares** otherwise. An answer's probability is its probability in the section, times the
    section's share of the evidence: the softmax of `Answers.evidence`. So spans have one softmax
    over those of all sections (shared normalisation, Clark and Gardner 2018). All answers and "no
    answer" sum to 1. Answers of the most likely type come first.

    A calibrated reader's probabilities are those of being right, and a threshold says what counts.
    """
    weights = weights or Weights()
    by_margin = all(read.answers.none is not None for read in reads)
    shares = torch.tensor([read.answers.evidence for read in reads], dtype=torch.float64)
    shares = shares.clamp(min=-1e30).log_softmax(0).tolist()  # no text: no evidence
    pairs = [*zip(reads, shares, strict=True)]
    types = {
        name: sum(math.exp(share) * read.answers.types[name] for read, share in pairs)
        for name in TYPES
    }
    likeliest, none = max(TYPES[:-1], key=types.get), types["none"]
    found = []
    for read, share in pairs:
        for type_, answer in _candidates(read):
            margin = share + answer.score - math.log(max(none, _LEAST))
            probability = math.exp(share + answer.score)
            if by_margin:
                margin = read.answers.margin(type_, answer.score)
                probability = _sigmoid(margin)
            found.append(_found(probability, margin, answer, type_, read))
    found = [each for each in found if not _MARKS.fullmatch(each.text)]
    found = _with_leads(found)
    found.sort(key=lambda each: (not by_margin and each.type != likeliest, -weights.of(each)))
    kept: list[FoundAnswer] = []
    for answer in found:
        is_guess = by_margin and kept and answer.type in ("yes", "no")  # none beside a span
        if len(kept) < top and not (is_guess or any(_overlap(answer, x) for x in kept)):
            kept.append(answer)
    if calibrated := weights.threshold is not None:
        least += math.log(weights.threshold / (1 - weights.threshold))
        sums = [(each, weights.of(each)) for each in kept]
        kept = [replace(each, margin=x, probability=_sigmoid(x)) for each, x in sums]
    if by_margin or calibrated:
        none = _sigmoid(-kept[0].margin) if kept else 1.0
    return Ranking(kept, none, least, calibrated)


def ranked_candidates(reads: Sequence[SectionRead], top: int) -> Ranking:
    """The likeliest of a question's candidates. Each has the mean of its log-probabilities in the
    sections, normalised again, and is shown where it is likeliest among its mentions."""
    of_text: dict[str, list[tuple[Answer, SectionRead]]] = {}
    for read in reads:
        for answer in read.answers.short:
            of_text.setdefault(answer.text, []).append((answer, read))
    sums = [sum(answer.score for answer, _ in own) / len(reads) for own in of_text.values()]
    shares = torch.tensor(sums, dtype=torch.float64).softmax(0).tolist()
    found = []
    for own, share in zip(of_text.values(), shares, strict=True):
        answer, read = max(own, key=lambda each: (each[0].paragraph is not None, each[0].score))
        found.append(_found(share, math.inf, answer, "short", read))
    return Ranking(sorted(found, key=lambda each: -each.probability)[:top], 0.0, 0.0)


def _candidates(read: SectionRead) -> Iterator[tuple[str, Answer]]:
    """The answers of a section and their types, with scores that its types are in."""
    for answer in read.answers.short:
        yield answer.type, answer
    log_long = math.log(max(read.answers.types["long"], _LEAST))
    document = read.section.document
    for number, score in read.answers.long:
        if tokens := document.tokens_of(number, 0, len(document.texts[number])):
            yield "long", document.answer(tokens[0], tokens[-1] + 1, score + log_long)


def _found(
    probability: float, margin: float, answer: Answer, type_: str, read: SectionRead
) -> FoundAnswer:
    """An answer among all; of text, in whole words."""
    text, number, place, source = answer.text, None, answer.characters, read.section.source
    if answer.paragraph is not None:
        number = read.section.pieces[answer.paragraph].number
        if answer.candidate is None:
            paragraph = source.paragraphs[number]
            place = whole_words(paragraph, *place) if type_ == "short" else place
            text = paragraph[slice(*place)]
    return FoundAnswer(text, type_, probability, margin, source.name, number, place, read)


def _with_leads(found: Sequence[FoundAnswer]) -> list[FoundAnswer]:
    """Each with its lead over the best one of which neither text holds the other."""
    best = sorted(found, key=lambda each: -each.margin)
    texts = [(each.text.casefold(), each.margin) for each in best]

    def lead(text: str, margin: float) -> float:
        rivals = (other for x, other in texts if not (x in text or text in x))
        return margin - next(rivals, margin - _ALONE)

    return [replace(each, lead=lead(*own)) for each, own in zip(best, texts, strict=True)]


def _overlap(*both: FoundAnswer) -> bool:
    """Whether both are spans that share a character."""
    places = {(each.type, each.read.section.source, each.paragraph) for each in both}
    if len(places) > 1 or both[0].type != "short":
        return False
    starts, ends = zip(*(each.characters for each in both), strict=True)
    return max(starts) < min(ends)


def _sigmoid(x: float) -> float:
    return 0.5 * (1 + math.tanh(x / 2))


def sentence_around(text: str, start: int, end: int) -> tuple[int, int]:
    """Characters [first, last) of the sentence or sentences that hold [start, end)."""
    near = max(0, start - 1000)  # no sentence is longer
    ends = [match.end() for match in SENTENCE_END.finditer(text, near, start)]
    behind = SENTENCE_END.search(text, max(start, end - 1))  # the answer may end the sentence
    return ends[-1] if ends else near, behind.end() if behind else len(text)


def whole_words(text: str, start: int, end: int) -> tuple[int, int]:
    """Characters [start, end) and the rest of the words that they begin or end within, with the
    sign and currency of a number, the point of an abbreviation, and without a bracket or a
    quotation mark that has no partner in them. For people: corpora are scored by tokens."""
    for match in WORD.finditer(text, max(0, start - 100), end + 100):
        if match.start() < start < match.end():
            start = match.start()
        if match.start() < end < match.end():
            end = match.end()
    if _SHORTENED.match(text, end) and text[start:end].strip():
        end += 1
    if _NUMBER.match(text, start) and (sign := _SIGN.search(text[max(0, start - 5) : start])):
        start -= len(sign[1])
    for mark, partner in [*_PAIRS.items()] * 2:  # one may lie in another
        inside = text[start:end]
        if inside[:1] == mark and partner not in inside[1:]:
            start += 1
        elif inside[-1:] == partner and mark not in inside[:-1]:
            end -= 1
    return start, end
