"""The page of answers in their documents, which ``clusterformer answer --html`` writes."""

from collections.abc import Iterator
from pathlib import Path

import jinja2

from ..visual.pages import ENVIRONMENT
from .found import FoundAnswer, Ranking, SectionRead, confidence
from .passages import WORD

_FOLDERS = [Path(__file__).parent, *ENVIRONMENT.loader.searchpath]
_TEMPLATES = ENVIRONMENT.overlay(loader=jinja2.FileSystemLoader(_FOLDERS))


def answer_page(question: str, ranking: Ranking) -> str:
    """The answers to a question in their documents, and what shares a cluster with one token. It
    opens with the best answer and the cluster of its head word, and shows the sections that the
    answers are from."""
    reads = list(dict.fromkeys(each.read for each in ranking))
    layers = list(dict.fromkeys(name for read in reads for _, name in read.clusters))
    spans = [_tokens_of(each) for each in ranking]
    marked = {
        (each.read, token) for each, span in zip(ranking, spans, strict=True) for token in span
    }
    return _TEMPLATES.get_template("answer_page.html").render(
        title=question,
        ranking=ranking,
        confidence=confidence,
        layers=layers,
        first=len(layers) - 1,
        sections=[(read.section.source, list(_paragraphs(read, marked))) for read in reads],
        data={
            "answers": [
                [reads.index(each.read), _head_token(each, span)] if span else None
                for each, span in zip(ranking, spans, strict=True)
            ],
            "sections": [[of.tolist() for of in read.clusters.values()] for read in reads],
        },
    )


def _tokens_of(found: FoundAnswer) -> list[int]:
    """The tokens that show a character of an answer; none of yes and no."""
    if found.characters is None:
        return []
    section, (start, end) = found.read.section, found.characters
    firsts, lasts = section.document.characters
    inside = ((firsts >= 0) & (firsts < end) & (lasts > start)).tolist()
    paragraphs = section.paragraphs()
    own = [tokens for number, _, tokens in paragraphs if number == found.paragraph]
    return [token for tokens in own for token in tokens if inside[token]]


def _head_token(found: FoundAnswer, tokens: list[int]) -> int:
    """The first token of an answer's longest word, and of equals of the last one."""
    words = [(len(match[0]), match.start()) for match in WORD.finditer(found.around()[1])]
    _, start = max(words, default=(1, 0))
    lasts = found.read.section.document.characters[1, tokens]
    return tokens[int((lasts > found.characters[0] + start).nonzero()[0])]


def _paragraphs(read: SectionRead, marked: set[tuple]) -> Iterator[tuple[int, list[tuple]]]:
    """Each paragraph's number, from 1, and of its tokens that show something their number, what
    they show, and whether an answer has it."""
    shown = read.section.shown()
    for number, _, tokens in read.section.paragraphs():
        yield number + 1, [(i, shown[i], (read, i) in marked) for i in tokens if shown[i]]
