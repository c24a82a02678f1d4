"""The clusters that a reader sees in a document: as text with colours, and as a picture.

The picture has a row for each of the largest clusters of a layer: its number, its share of the
document, the words that it has more of than chance would give, and where in the document its
tokens stand. Words are whole, also where a token is part of one; ``<s>`` leads a paragraph.
"""

from collections import Counter
from pathlib import Path

import regex
from matplotlib.figure import Figure

from fairseq_clusterformer.errors import bad_option
from fairseq_clusterformer.inference.documents import read_source
from fairseq_clusterformer.inference.load import Loaded
from fairseq_clusterformer.inference.read import DocumentReader, Section
from fairseq_clusterformer.visual.figure import INK, MARGIN, ROW, SOFT, WIDTH, Drawing
from fairseq_clusterformer.visual.language_model import describe_model
from fairseq_clusterformer.visual.words import (
    ClusteredLayer,
    ClusteredText,
    describe,
    typical_items,
)

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


def read_clusters(loaded: Loaded, path: Path, question: str) -> tuple[ClusteredText, list[str]]:
    """Read the beginning of a document with a reader, for a question.

    Returns:
        the clusters in each layer that clusters, and :func:`words_of` the tokens.

    Raises:
        UserError: if no layer clusters, or the file or the question cannot be read.
    """
    source, reader = read_source(path), DocumentReader(loaded)
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
        layer, _, heads = name.partition(", ")
        layers.append(ClusteredLayer(number, layer, heads, None, of_tokens, described))
    text = ClusteredText(
        model=describe_model(loaded),
        unit="subword",
        tokens=tokens,
        row=len(tokens),
        counted=f"Sizes and words are counted over these {len(tokens):,} subwords.",
        note=f"The document is {source.name}.",
        layers=layers,
    )
    return text, words


def draw_document(text: ClusteredText, layer: ClusteredLayer, words: list[str]) -> Figure:
    """Draw the largest clusters of a layer.

    Args:
        words: of the tokens, as :func:`words_of` gives them.
    """
    clusters = layer.passage
    sizes = Counter(sorted(clusters))
    largest = sizes.most_common(MOST_ROWS)
    typical = typical_items(words, clusters, max(clusters) + 1, most=40)
    what = f"{layer.name}, {layer.heads}: the {len(largest)} largest of {len(sizes)} clusters. "
    height = TABLE + ROW * len(largest) + MARGIN
    drawing = Drawing(height, "What clustered together, and where", what + text.note)
    left, right = WIDTH - MARGIN - STRIP, WIDTH - MARGIN
    heads = "cluster, share, and words that it has more of"
    drawing.text(MARGIN, TABLE - 16, heads, 18, color=SOFT)
    drawing.text(left, TABLE - 16, "token 0", 18, color=SOFT)
    last = f"token {len(clusters) - 1:,}"
    drawing.text(right, TABLE - 16, last, 18, color=SOFT, at="right")
    for number, (cluster, size) in enumerate(largest):
        top = TABLE + number * ROW
        middle = drawing.cluster_number(top, cluster)
        drawing.text(MARGIN + 118, middle, f"{size / len(clusters):.1%}", 19, at="right")
        typical_words = [item.text for item in typical[cluster]]
        drawing.words(MARGIN + 136, middle, typical_words, left - MARGIN - 156)
        drawing.box(left, top, STRIP, ROW - 8, facecolor="#f2f4f6")
        marks = min(STRIP // MARK, len(clusters))
        places = (place for place, other in enumerate(clusters) if other == cluster)
        counts = Counter(place * marks // len(clusters) for place in places)
        width, darkest = STRIP / marks, max(counts.values())
        for mark, count in counts.items():
            alpha = 0.2 + 0.8 * count / darkest
            drawing.box(left + mark * width, top, width, ROW - 8, facecolor=INK, alpha=alpha)
    return drawing.figure
