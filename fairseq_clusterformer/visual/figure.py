"""Pictures for a README or a paper: of clusters, and of where a reader is right."""

import warnings
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import matplotlib
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from fairseq_clusterformer.attention.inspect import oldest_key_in_sight

from .words import LABELS, Cluster, ClusteredText, DrawnLayer, Item, colour, pattern, visible

# All in pixels.
WIDTH, MARGIN = 1600, 44
TITLE, LINE, ROW, HEAD = 104, 37, 50, 84
ADVANCE = 0.602  # width of a character of DejaVu Sans Mono, in its size
MOST_LINES, MOST_COLUMNS = 18, 84
MOST_ROWS = 12  # clusters in the table; the largest, if there are more
STRIP, MARK = 480, 3  # of where a cluster stands in the passage
INK, SOFT, ACCENT = "#1c2733", "#51606f", "#b00020"
DPI = 100

Lines = list[list[tuple[int, str]]]


def save(figure: Figure, path: Path) -> None:
    """Write a PNG file. A character that the font lacks is drawn as a box."""
    with matplotlib.rc_context({"hatch.linewidth": 0.6}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.savefig(path, dpi=DPI, format="png")


class Drawing:
    """A page of pixels with a title, a line ``what`` below it, and its origin at the top left."""

    def __init__(self, height: int, title: str, what: str):
        self.figure = Figure(figsize=(WIDTH / DPI, height / DPI), facecolor="white")
        self.axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.set(xlim=(0, WIDTH), ylim=(height, 0))
        self.axes.axis("off")
        self.text(MARGIN, 38, title, 34, weight="bold")
        room = WIDTH - 2 * MARGIN  # for characters about half as wide as high
        self.text(MARGIN, 78, what, min(21, room / (0.54 * max(1, len(what)))), color=SOFT)

    def box(self, x, y, width, height, **style) -> None:
        self.axes.add_patch(Rectangle((x, y), width, height, **{"linewidth": 0, **style}))

    def cluster_box(self, x, y, width, height, cluster: int) -> None:
        hatch = pattern(cluster)
        style = {"hatch": hatch, "edgecolor": "#00000033"} if hatch else {}
        self.box(x, y, width, height, facecolor=colour(cluster), **style)

    def cluster_number(self, y, cluster: int) -> float:
        """Begin a row of a table at y; returns its middle."""
        middle = y + ROW / 2 - 3
        self.cluster_box(MARGIN, y, 44, ROW - 8, cluster)
        self.text(MARGIN + 22, middle, str(cluster), 22, at="center", weight="bold")
        return middle

    def text(self, x, y, text, size, *, mono=False, at="left", **style) -> None:
        style = {"color": INK, "fontsize": size * 72 / DPI, "horizontalalignment": at} | style
        style["family"] = "DejaVu Sans Mono" if mono else "DejaVu Sans"
        style["verticalalignment"] = "center_baseline" if mono else "center"
        self.axes.text(x, y, text.replace("$", r"\$"), **style)

    def words(self, x, y, items: list[Item], room: float, *, accent: bool = False) -> None:
        """As many items as there is room for; with `accent`, their last characters in colour."""
        size, end = 22, x + room
        advance = size * ADVANCE
        for word in (visible(item.text) for item in items):
            if x + advance * len(word) > end:
                break
            before, last = (word[:-1], word[-1]) if accent else (word, "")
            self.text(x, y, before, size, mono=True)
            last_x = x + advance * len(before)
            self.text(last_x, y, last, size, mono=True, color=ACCENT, weight="bold")
            x += advance * (len(word) + 1.4)

    def places(self, x, y, passage: list[int], cluster: int) -> None:
        """A strip that is dark where a cluster stands in a passage."""
        self.box(x, y, STRIP, ROW - 8, facecolor="#f2f4f6")
        marks = min(STRIP // MARK, len(passage))
        own = (place for place, each in enumerate(passage) if each == cluster)
        counts = Counter(place * marks // len(passage) for place in own)
        width, darkest = STRIP / marks, max(counts.values(), default=1)
        for mark, count in counts.items():
            style = {"facecolor": INK, "alpha": min(1.0, 0.2 + 0.8 * count / darkest)}
            self.box(x + mark * width, y, width, ROW - 8, **style)


def draw_passage(text: ClusteredText, layer: DrawnLayer) -> Figure:
    """Draw the first lines of the passage and the clusters of one layer."""
    tokens = text.tokens[: text.row]
    lines = wrapped(tokens, MOST_COLUMNS)[:MOST_LINES]
    seen = example(tokens, layer.passage[: text.row], layer.window, lines[-1][-1][0] + 1)
    rows = layer.largest(MOST_ROWS)
    table = TITLE + LINE * len(lines)
    what = f"{layer.name}: each {text.unit} in the colour of its cluster"
    if seen:
        what += f"; the boxed one sees the {len(seen)} underlined"
    height = table + HEAD + ROW * (len(rows) + 1) + MARGIN // 2
    drawing = Drawing(height, "What clustered together", what)
    _draw_lines(drawing, lines, layer, seen)
    _draw_table(drawing, text, layer, rows, table)
    return drawing.figure


def wrapped(tokens: list[str], columns: int) -> Lines:
    """Lines of (index of the token, character), ended by a line end or by being full."""
    lines: Lines = [[]]
    for i, token in enumerate(tokens):
        for character in token:
            if len(lines[-1]) == columns:
                lines.append([])
            lines[-1].append((i, character))
            if character == "\n":
                lines.append([])
    return lines if lines[-1] else lines[:-1]


def example(tokens: list[str], clusters: list[int], window: int | None, end: int) -> set[int]:
    """Positions of the ``window`` tokens of its own cluster that a token sees, itself the last: of
    the last token before ``end`` that shows something and sees so many. Empty if there is none, or
    ``window`` is None."""
    if window is None:
        return set()
    oldest = oldest_key_in_sight(torch.tensor(clusters), window).tolist()
    for i in range(end - 1, 0, -1):
        seen = {j for j in range(oldest[i], i + 1) if clusters[j] == clusters[i]}
        if len(seen) == window and tokens[i].strip():
            return seen
    return set()


def _draw_lines(drawing: Drawing, lines: Lines, layer: DrawnLayer, seen: set[int]) -> None:
    width = (WIDTH - 2 * MARGIN) / max(60, *map(len, lines))
    size = min(width / ADVANCE, LINE * 0.8)
    query = max(seen, default=None)
    for number, line in enumerate(lines):
        y = TITLE + number * LINE
        for column, (i, character) in enumerate(line):
            x = MARGIN + column * width
            # half a pixel more, so that no seam shows between neighbours
            drawing.cluster_box(x, y + 1, width + 0.5, LINE - 2, layer.passage[i])
            shown = {" ": "\u00b7"}.get(character, visible(character))
            ink = "#00000066" if character.isspace() else "#111111"
            middle = y + LINE / 2 - 1
            drawing.text(x + width / 2, middle, shown, size, mono=True, at="center", color=ink)
            if i in seen:
                drawing.box(x + 1, y + LINE - 6, width - 2, 4, facecolor="#111111", zorder=2)
            if i == query:
                box = {"fill": False, "edgecolor": "#111111", "linewidth": 2.5, "zorder": 3}
                drawing.box(x - 1, y, width + 2, LINE, **box)


def _draw_table(
    drawing: Drawing, text: ClusteredText, layer: DrawnLayer, rows: list[Cluster], top: int
) -> None:
    bar, tokens, words, reach = MARGIN + 60, MARGIN + 300, MARGIN + 590, WIDTH - MARGIN
    heads = dict(zip((bar, tokens, words), ("share", *LABELS[text.unit]), strict=True))
    for x, head in heads.items():
        drawing.text(x, top + 54, head, 19, color=SOFT)
    shows_places = layer.window is None
    where = f"from the first of {len(layer.passage):,} {text.unit}s to the last"
    last = where if shows_places else f"sees back, {text.unit}s"
    drawing.text(reach, top + 54, last, 19, color=SOFT, at="right")
    room = STRIP if shows_places else 90
    most = max(c.share for c in rows) or 1
    for number, cluster in enumerate(rows):
        y = top + HEAD + number * ROW
        middle = drawing.cluster_number(y, cluster.index)
        drawing.cluster_box(bar, y, 130 * cluster.share / most, ROW - 8, cluster.index)
        drawing.text(bar + 140, middle, f"{cluster.share:.0%}", 20)
        drawing.words(tokens, middle, cluster.tokens, words - tokens - 20)
        is_accented = text.unit != "subword"  # of which words are whole
        drawing.words(
            words, middle, cluster.endings, reach - words - room - 20, accent=is_accented
        )
        if shows_places:
            drawing.places(reach - STRIP, y, layer.passage, cluster.index)
        elif cluster.reach is not None:
            drawing.text(reach, middle, f"{cluster.reach:,}", 20, at="right")
    below = text.counted
    if others := len(layer.clusters) - len(rows):
        share = 1 - sum(c.share for c in rows)
        below = f"{others} smaller clusters have the other {share:.0%}. {below}"
    drawing.text(MARGIN, top + HEAD + len(rows) * ROW + 14, below, 17, color=SOFT)


def draw_breakdown(tables: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Figure:
    """Bars of exact match and F1, in per cent, for the rows of each table of
    :func:`~fairseq_clusterformer.use.evaluate.breakdown`, and how many questions they have.
    """
    figure = Figure(figsize=(16, 5), dpi=DPI, layout="constrained")
    for axes, (title, rows) in zip(figure.subplots(1, len(tables)), tables.items(), strict=True):
        places = range(len(rows))
        bars = ((-0.2, "exact match", "exact match", "#9fb3c8"), (0.2, "f1", "F1", "#2f6fb3"))
        for shift, name, label, color in bars:
            heights = [row[name] for row in rows.values()]
            axes.bar([at + shift for at in places], heights, 0.4, color=color, label=label)
        axes.set_title(title, color=INK, loc="left", weight="bold")
        axes.set(ylim=(0, 100), ylabel="%")
        numbers = [f"{name}\n{row['questions']:,}" for name, row in rows.items()]
        axes.set_xticks(places, numbers, color=SOFT, size=8)
        axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return figure
