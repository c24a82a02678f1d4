"""Pages of clusters and of answers: each is one HTML file that needs no network.

The templates escape all text. Data for their scripts is JSON in which no character can end the
script.
"""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import jinja2

from ..documents.found import FoundAnswer, Ranking, SectionRead, confidence
from ..documents.passages import WORD
from .words import ClusteredText, DrawnLayer, css, visible

MOST_ROWS = 24  # clusters in a table; the largest, if there are more
MOST_POSITIONS = 8  # of the passage, for each cluster
SIGNS = {" ": "\u00b7", "\n": "\u23ce", "\t": "\u21e5"}  # of tokens that would not be seen
#: what a page calls a token, and the words that tokens belong to, by the unit of the text
LABELS = {
    "byte": ("characters", "words, as far as read"),
    "piece": ("pieces", "words, as far as read"),
    "word": ("words", "after the one before"),
    "subword": ("subwords", "whole words"),
}

_ENVIRONMENT = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
_ENVIRONMENT.filters |= {"visible": visible, "css": css}


def cluster_page(text: ClusteredText, first: DrawnLayer) -> str:
    """The clusters of a passage, in every layer that clusters; it opens with ``first``."""
    clusters = max(len(layer.clusters) for layer in text.layers)
    return _ENVIRONMENT.get_template("cluster_page.html").render(
        title="What clustered together",
        text=text,
        layers=[layer.name for layer in text.layers],
        first=text.layers.index(first),
        tokens=[(i, token, SIGNS.get(token)) for i, token in enumerate(text.tokens) if token],
        labels=LABELS[text.unit],
        listed=[layer.largest(MOST_ROWS) for layer in text.layers],
        positions=positions,
        data={
            "unit": text.unit,
            "row": text.row,
            "colours": list(map(css, range(clusters))),
            "layers": [
                {"window": layer.window, "clusters": layer.passage} for layer in text.layers
            ],
        },
    )


def positions(passage: list[int], cluster: int) -> str:
    """Where a cluster stands in the passage: the first runs of positions, and the last."""
    places = [i for i, c in enumerate(passage) if c == cluster]
    if not places:
        return "nowhere"
    runs = []
    for _, run in groupby(enumerate(places), lambda pair: pair[1] - pair[0]):
        run = [place for _, place in run]
        runs.append(f"{run[0]}" if len(run) == 1 else f"{run[0]}\u2013{run[-1]}")
    if len(runs) > MOST_POSITIONS:
        runs = [*runs[: MOST_POSITIONS - 1], "\u2026", runs[-1]]
    return f"{len(places):,} positions: " + ", ".join(runs)


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
    return _ENVIRONMENT.get_template("answer_page.html").render(
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
