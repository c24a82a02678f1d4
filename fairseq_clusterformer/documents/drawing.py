"""The clusters that a reader sees in a document: as text with colours, and as a picture.

The picture has a row for each of the largest clusters of a layer: its number and share, the words
that it has more of than chance would give, and where in the document its tokens stand. Words are
whole, also where a token is part of one; ``<s>`` leads a paragraph.
"""

from collections import Counter
from pathlib import Path

import regex
from matplotlib.figure import Figure

from fairseq_clusterformer.checkpoints.load import Loaded
from fairseq_clusterformer.errors import bad_option

from ..visual.figure import INK, MARGIN, ROW, SOFT, WIDTH, Drawing
from ..visual.language_model import describe_model
from ..visual.words import ClusteredText, DrawnLayer, describe
from .read import Reader
from .sections import Section
from .sources import read_source

TABLE, STRIP, MARK = 128, 660, 3  # pixels: the first row's top, and the widths of where
START = "<s>"
MOST_ROWS = 16  # clusters in the picture
TOKENS = 20_000  # of a document, from its beginning


def words_of(section: Section) -> list[str]:
    """The word that each token is part of; ``<s>`` of what leads a paragraph, empty of a title."""
    words = [""] * len(section.tokens)
    starts, ends = section.document.characters.tolist()
    for _, text, tokens in section.paragraphs():
        found = {
            place: match[0]
            for match in regex.finditer(r"\w+|[^\w\s]", text)
            for place in range(*match.span())
        }
        words[tokens[0]] = START
        for token in tokens[1:]:
            held = (found[place] for place in range(starts[token], ends[token]) if place in found)
            words[token] = next(held, "")
    return words


def read_clusters(loaded: Loaded, path: Path, question: str) -> ClusteredText:
    """Read the beginning of a document with a reader, for a question; raises UserError if no layer
    clusters, or the file or the question cannot be read."""
    source, reader = read_source(path), Reader(loaded)
    section = reader.sections(source, TOKENS)[0]
    read = reader.read(reader.question(question), section, 1)
    if not read.clusters:
        allowed = "a reader with a --cluster-attention that clusters, such as kmeans"
        raise bad_option("--checkpoint", loaded.path, allowed, "no layer clusters")
    tokens, words = section.shown(), words_of(section)
    for start in section.document.starts.tolist()[1:]:
        tokens[start] = "\n"  # between paragraphs
    layers = []
    for (number, name), clusters in read.clusters.items():
        of_tokens = clusters.tolist()
        described = describe([tokens], [of_tokens], max(of_tokens) + 1, endings=[words])
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


def draw_document(text: ClusteredText, layer: DrawnLayer) -> Figure:
    """Draw the largest clusters of a layer."""
    found = [cluster for cluster in layer.clusters if cluster.size]
    rows = sorted(found, key=lambda cluster: -cluster.size)[:MOST_ROWS]
    what = f"{layer.name}: the {len(rows)} largest of {len(found)} clusters. {text.note}"
    height = TABLE + ROW * len(rows) + MARGIN
    drawing = Drawing(height, "What clustered together, and where", what)
    left, right, length = WIDTH - MARGIN - STRIP, WIDTH - MARGIN, len(layer.passage)
    heads = "cluster, share, and words that it has more of"
    drawing.text(MARGIN, TABLE - 16, heads, 18, color=SOFT)
    drawing.text(left, TABLE - 16, "token 0", 18, color=SOFT)
    drawing.text(right, TABLE - 16, f"token {length - 1:,}", 18, color=SOFT, at="right")
    marks = min(STRIP // MARK, length)
    for number, cluster in enumerate(rows):
        top = TABLE + number * ROW
        middle = drawing.cluster_number(top, cluster.index)
        drawing.text(MARGIN + 118, middle, f"{cluster.share:.1%}", 19, at="right")
        drawing.words(MARGIN + 136, middle, cluster.endings, left - MARGIN - 156)
        drawing.box(left, top, STRIP, ROW - 8, facecolor="#f2f4f6")
        places = (place for place, own in enumerate(layer.passage) if own == cluster.index)
        counts = Counter(place * marks // length for place in places)
        width, darkest = STRIP / marks, max(counts.values())
        for mark, count in counts.items():
            how = {"facecolor": INK, "alpha": shade(count, darkest)}
            drawing.box(left + mark * width, top, width, ROW - 8, **how)
    return drawing.figure


def shade(count: int, most: int) -> float:
    """How dark a mark of so many tokens is, above 0.2 and at most 1; ``most`` is the darkest's."""
    return min(1.0, 0.2 + 0.8 * count / most)  # rounding exceeds 1
