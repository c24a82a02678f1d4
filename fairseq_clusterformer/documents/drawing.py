"""Pages of clusters: a reader's in a document, and those of answers in theirs."""

from pathlib import Path

import jinja2

from fairseq_clusterformer.checkpoints.load import Loaded
from fairseq_clusterformer.errors import bad_option

from ..visual import pages
from .found import Ranking, confidence
from .passages import WORD
from .read import Reader
from .sources import read_source

_FOLDERS = [Path(__file__).parent, *pages.ENVIRONMENT.loader.searchpath]
_TEMPLATES = pages.ENVIRONMENT.overlay(loader=jinja2.FileSystemLoader(_FOLDERS))
TOKENS = 20_000  # of a document, from its beginning


def answer_page(question: str, ranking: Ranking) -> str:
    """The answers to a question in their documents, and what shares a cluster with one token. It
    opens with the best answer and the cluster of its longest word (of equals, the last), and shows
    the sections that the answers are from."""
    reads = list(dict.fromkeys(each.read for each in ranking))
    layers = list(dict.fromkeys(name for read in reads for _, name in read.clusters()))
    answers, marked, sections = [], set(), []
    for each in ranking:
        of, chosen = each.read.section, None
        own = [number for number, piece in enumerate(of.pieces) if piece.number == each.paragraph]
        # that show a character of the answer; none of yes and no
        tokens = [t for n in own for t in of.document.tokens_of(n, *each.characters)]
        if tokens:
            words = [(len(match[0]), match.start()) for match in WORD.finditer(each.around()[1])]
            place = each.characters[0] + max(words, default=(1, 0))[1]
            lasts = of.document.characters[1, tokens]
            chosen = reads.index(each.read), tokens[int((lasts > place).nonzero()[0])]
        answers.append(chosen)
        marked |= {(each.read, token) for token in tokens}
    for read in reads:
        shown = read.section.shown()
        paragraphs = [
            (number + 1, [(i, shown[i], (read, i) in marked) for i in tokens if shown[i]])
            for number, _, tokens in read.section.paragraphs()
        ]
        sections.append((read.section.source, paragraphs))
    clusters = [[of.tolist() for of in read.clusters().values()] for read in reads]
    return _TEMPLATES.get_template("answer_page.html").render(
        title=question,
        ranking=ranking,
        confidence=confidence,
        layers=layers,
        first=len(layers) - 1,
        sections=sections,
        data={"answers": answers, "sections": clusters},
    )


def read_clusters(loaded: Loaded, path: Path, question: str) -> pages.ClusteredText:
    """Read the beginning of a document with a reader, for a question; raises UserError if no layer
    clusters, or the file or the question cannot be read."""
    source, reader = read_source(path), Reader(loaded)
    section = reader.sections(source, TOKENS)[0]
    (read,) = reader.read(reader.question(question), [section], 1)
    if not read.clusters():
        allowed = "a reader with a --cluster-attention that clusters, such as kmeans"
        raise bad_option("--checkpoint", loaded.path, allowed, "no layer clusters")
    tokens = section.shown()
    for start in section.document.starts.tolist()[1:]:
        tokens[start] = "\n"  # between paragraphs
    words, layers = pages.word_endings(tokens), []
    for (_, name), clusters in read.clusters().items():
        own = clusters.tolist()
        described = pages.describe(tokens, own, max(own) + 1, words)
        layers.append(pages.DrawnLayer(name, None, own, described))
    return pages.ClusteredText(
        model=pages.describe_model(loaded),
        unit="piece",
        tokens=tokens,
        row=len(tokens),
        counted=f"Sizes and words are counted over these {len(tokens):,} pieces.",
        note=f"The document is {source.name}.",
        layers=layers,
    )
