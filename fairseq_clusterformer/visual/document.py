"""The clusters that a reader sees in a document: as text with colours, and as a picture.

The picture has a row for each of the largest clusters of a layer: its number, its share of the
document, the words that it has more of than chance would give, and where in the document its
tokens stand. Words are whole, also where a token is part of one; ``<s>`` leads a paragraph.
"""

from collections.abc import Sequence
from pathlib import Path

import regex

from fairseq_clusterformer.inference.read import DocumentReader, Section, SectionRead
from fairseq_clusterformer.visual.figure import (
    ADVANCE,
    DPI,
    INK,
    MARGIN,
    SOFT,
    WIDTH,
    Drawing,
)
from fairseq_clusterformer.visual.words import (
    ClusteredLayer,
    ClusteredText,
    describe,
    typical_items,
)

ROW, HEAD, WORDS, STRIP, MARK = 46, 128, 680, 660, 3  # pixels
START = "<s>"
MOST_ROWS = 16  # clusters in the picture
TOKENS = 20_000  # of a document, from its beginning


def words_of(section: Section) -> list[str]:
    """The word that each token is part of; ``<s>`` of what leads a paragraph, empty of a title."""
    words = [""] * len(section.tokens)
    starts, ends = section.document.characters.tolist()
    bounds = [*section.document.starts.tolist(), len(words)]
    for number, text in enumerate(section.document.texts):
        found = {
            place: match[0]
            for match in regex.finditer(r"\w+|[^\w\s]", text)
            for place in range(*match.span())
        }
        words[bounds[number]] = START
        for token in range(bounds[number] + 1, bounds[number + 1]):
            shown = text[max(starts[token], 0) : max(ends[token], 0)]
            at = starts[token] + len(shown) - len(shown.lstrip())
            words[token] = found.get(at, "") if shown.strip() else ""
    return words


def read_clusters(reader: DocumentReader, read: SectionRead, model: str) -> ClusteredText:
    """The clusters of a section that was read, in the layers that cluster (one or more).

    Args:
        model: one line that says which model this is.
    """
    tokens, words = read.section.shown(), words_of(read.section)
    for start in read.section.document.starts.tolist()[1:]:
        tokens[start] = "\n"  # between paragraphs
    layers = []
    for (number, name), clusters in read.clusters.items():
        of_tokens = clusters.tolist()
        described = describe([tokens], [of_tokens], max(of_tokens) + 1, endings=[words])
        layer, _, heads = name.partition(", ")
        layers.append(ClusteredLayer(number, layer, heads, None, of_tokens, described))
    return ClusteredText(
        model=model,
        unit="subword",
        tokens=tokens,
        row=len(tokens),
        counted=f"Sizes and words are counted over these {len(tokens):,} subwords.",
        note=f"The document is {read.section.source.name}.",
        layers=layers,
    )


def save_picture(text: ClusteredText, layer: ClusteredLayer, words: list[str], path: Path) -> None:
    """Draw the largest clusters of a layer into a PNG file.

    Args:
        words: of the tokens, as :func:`words_of` gives them.
    """
    clusters = layer.passage
    sizes = {cluster: clusters.count(cluster) for cluster in set(clusters)}
    largest = sorted(sizes, key=lambda cluster: (-sizes[cluster], cluster))[:MOST_ROWS]
    typical = typical_items(words, clusters, max(clusters) + 1, most=40)
    drawing = Drawing(HEAD + ROW * len(largest) + MARGIN)
    drawing.text(MARGIN, 38, "What clustered together, and where", 34, weight="bold")
    what = f"{layer.name}, {layer.heads}: the {len(largest)} largest of {len(sizes)} clusters. "
    drawing.text(MARGIN, 76, what + text.note, 20, color=SOFT)
    left = WIDTH - MARGIN - STRIP
    drawing.text(
        MARGIN, HEAD - 16, "cluster, share, and words that it has more of", 18, color=SOFT
    )
    drawing.text(left, HEAD - 16, "token 0", 18, color=SOFT)
    end = f"token {len(clusters) - 1:,}"
    drawing.text(WIDTH - MARGIN, HEAD - 16, end, 18, color=SOFT, at="right")
    for number, cluster in enumerate(largest):
        top = HEAD + number * ROW
        middle = top + ROW / 2 - 3
        drawing.cluster_box(MARGIN, top, 44, ROW - 8, cluster)
        drawing.text(MARGIN + 22, middle, str(cluster), 19, at="center", weight="bold")
        share = f"{sizes[cluster] / len(clusters):.1%}"
        drawing.text(MARGIN + 118, middle, share, 19, at="right")
        _draw_words(drawing, MARGIN + 136, middle, [item.text for item in typical[cluster]])
        drawing.box(left, top, STRIP, ROW - 8, facecolor="#f2f4f6")
        at = [place for place, other in enumerate(clusters) if other == cluster]
        darkest = max(counts := _histogram(at, len(clusters)))
        width = STRIP / len(counts)
        for mark, count in enumerate(counts):
            if count:
                alpha = 1 - 0.8 * (1 - count / darkest)
                drawing.box(left + mark * width, top, width, ROW - 8, facecolor=INK, alpha=alpha)
    drawing.figure.savefig(path, dpi=DPI, format="png")


def _histogram(places: Sequence[int], length: int) -> list[int]:
    """How many fall under each mark of the strip."""
    counts = [0] * min(STRIP // MARK, length)
    for place in places:
        counts[place * len(counts) // length] += 1
    return counts


def _draw_words(drawing: Drawing, x: float, y: float, words: Sequence[str]) -> None:
    """As many as there is room for."""
    size, end = 19, x + WORDS
    for word in words:
        width = size * ADVANCE * (len(word) + 1)
        if x + width > end:
            break
        drawing.text(x, y, word, size, mono=True)
        x += width
