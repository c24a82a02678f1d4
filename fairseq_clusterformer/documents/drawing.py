"""Pages of clusters: those that a reader sees in a document, and those of answers in theirs, which
``clusterformer answer --html`` writes."""

from collections.abc import Iterator
from pathlib import Path

import jinja2
import regex

from fairseq_clusterformer.checkpoints.load import Loaded
from fairseq_clusterformer.errors import bad_option

from ..visual.language_model import describe_model
from ..visual.pages import ENVIRONMENT
from ..visual.words import ClusteredText, DrawnLayer, describe
from .found import FoundAnswer, Ranking, SectionRead, confidence
from .passages import WORD
from .read import Reader
from .sections import Section
from .sources import read_source

_FOLDERS = [Path(__file__).parent, *ENVIRONMENT.loader.searchpath]
_TEMPLATES = ENVIRONMENT.overlay(loader=jinja2.FileSystemLoader(_FOLDERS))
TOKENS = 20_000  # of a document, from its beginning


def answer_page(question: str, ranking: Ranking) -> str:
    """The answers to a question in their documents, and what shares a cluster with one token. It
    opens with the best answer and the cluster of its head word, and shows the sections that the
    answers are from."""
    reads = list(dict.fromkeys(each.read for each in ranking))
    layers = list(dict.fromkeys(name for read in reads for _, name in read.clusters))
    spans = [(each, _tokens_of(each)) for each in ranking]
    marked = {(each.read, token) for each, span in spans for token in span}
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
                for each, span in spans
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
    own = (span for number, _, span in section.paragraphs() if number == found.paragraph)
    return [token for span in own for token in span if inside[token]]


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


def words_of(section: Section) -> list[str]:
    """The word that each token is part of, whole; ``<s>`` of what leads a paragraph, empty of a
    title."""
    words = [""] * section.length
    starts, ends = section.document.characters.tolist()
    for _, text, (first, *tokens) in section.paragraphs():
        found = {}
        for match in regex.finditer(r"\w+|[^\w\s]", text):
            found |= dict.fromkeys(range(*match.span()), match[0])
        words[first] = "<s>"
        for token in tokens:
            held = (found[place] for place in range(starts[token], ends[token]) if place in found)
            words[token] = next(held, "")
    return words


def read_clusters(loaded: Loaded, path: Path, question: str) -> ClusteredText:
    """Read the beginning of a document with a reader, for a question; raises UserError if no layer
    clusters, or the file or the question cannot be read."""
    source, reader = read_source(path), Reader(loaded)
    section = reader.sections(source, TOKENS)[0]
    (read,) = reader.read(reader.question(question), [section], 1)
    if not read.clusters:
        allowed = "a reader with a --cluster-attention that clusters, such as kmeans"
        raise bad_option("--checkpoint", loaded.path, allowed, "no layer clusters")
    tokens, words = section.shown(), words_of(section)
    for start in section.document.starts.tolist()[1:]:
        tokens[start] = "\n"  # between paragraphs
    layers = []
    for (number, name), clusters in read.clusters.items():
        of_tokens = clusters.tolist()
        described = describe(tokens, of_tokens, max(of_tokens) + 1, words)
        layers.append(DrawnLayer(number, name, None, of_tokens, described))
    return ClusteredText(
        model=describe_model(loaded),
        unit="subword",
        tokens=tokens,
        row=len(tokens),
        counted=f"Sizes and words are counted over these {len(tokens):,} subwords.",
        note=f"The document is {source.name}.",
        layers=layers,
    )
