"""Pictures of clusters for a README or a paper."""

import warnings
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from .words import LABELS, ClusteredText, DrawnLayer, Item, colour, visible

# All in pixels.
WIDTH, MARGIN = 1600, 44
TITLE, LINE, ROW, HEAD = 104, 37, 50, 84
ADVANCE = 0.602  # width of a character of DejaVu Sans Mono, in its size
MOST_LINES, MOST_COLUMNS = 18, 84
MOST_ROWS = 12  # clusters in the table; the largest, if there are more
#: where the table's columns begin
NUMBER, BAR, TOKENS, ENDINGS = MARGIN, MARGIN + 60, MARGIN + 300, MARGIN + 820
INK, SOFT = "#1c2733", "#51606f"
DPI = 100

Lines = list[list[tuple[int, str]]]


def save(figure: Figure, path: Path) -> None:
    """Write a PNG file. A character that the font lacks is drawn as a box."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.savefig(path, dpi=DPI, format="png")


def draw_passage(text: ClusteredText, layer: DrawnLayer) -> Figure:
    """Draw the first lines of the passage and the clusters of one layer."""
    lines = wrapped(text.tokens[: text.row], MOST_COLUMNS)[:MOST_LINES]
    rows, table = layer.largest(MOST_ROWS), TITLE + LINE * len(lines) + HEAD
    height = table + ROW * (len(rows) + 1)
    figure = Figure(figsize=(WIDTH / DPI, height / DPI), facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, WIDTH), ylim=(height, 0))
    axes.axis("off")

    def box(x: float, y: float, width: float, height: float, cluster: int) -> None:
        place = {"width": width, "height": height, "linewidth": 0}
        axes.add_patch(Rectangle((x, y), **place, facecolor=colour(cluster)))

    def write(x: float, y: float, shown: str, size: float, mono: bool = False, **style) -> None:
        style = {"color": INK, "verticalalignment": "center"} | style
        style["family"] = "DejaVu Sans Mono" if mono else "DejaVu Sans"
        axes.text(x, y, shown.replace("$", r"\$"), fontsize=size * 72 / DPI, **style)

    def items(x: float, y: float, some: list[Item], room: float) -> None:
        """As many as there is room for."""
        for word in (visible(item.text) for item in some):
            room -= 22 * ADVANCE * (len(word) + 1.4)
            if room < 0:
                break
            write(x, y, word, 22, mono=True)
            x += 22 * ADVANCE * (len(word) + 1.4)

    write(MARGIN, 38, "What clustered together", 34, weight="bold")
    what = f"{layer.name}: each {text.unit} in the colour of its cluster"
    write(MARGIN, 78, what, min(21, (WIDTH - 2 * MARGIN) / (0.54 * len(what))), color=SOFT)
    width = (WIDTH - 2 * MARGIN) / max(60, *map(len, lines))
    for number, line in enumerate(lines):
        y = TITLE + number * LINE
        for column, (i, character) in enumerate(line):
            x = MARGIN + column * width
            # half a pixel more, so that no seam shows between neighbours
            box(x, y + 1, width + 0.5, LINE - 2, layer.passage[i])
            shown = {" ": "\u00b7"}.get(character, visible(character))
            ink = "#00000066" if character.isspace() else "#111111"
            size, middle = min(width / ADVANCE, LINE * 0.8), y + LINE / 2 - 1
            write(x + width / 2, middle, shown, size, True, ha="center", color=ink)
    heads = dict(zip((BAR, TOKENS, ENDINGS), ("share", *LABELS[text.unit]), strict=True))
    for x, head in heads.items():
        write(x, table - 30, head, 19, color=SOFT)
    most = max(cluster.share for cluster in rows) or 1
    for number, cluster in enumerate(rows):
        y = table + number * ROW
        middle = y + ROW / 2 - 3
        box(NUMBER, y, 44, ROW - 8, cluster.index)
        write(NUMBER + 22, middle, str(cluster.index), 22, ha="center", weight="bold")
        box(BAR, y, 130 * cluster.share / most, ROW - 8, cluster.index)
        write(BAR + 140, middle, f"{cluster.share:.0%}", 20)
        items(TOKENS, middle, cluster.tokens, ENDINGS - TOKENS - 20)
        items(ENDINGS, middle, cluster.endings, WIDTH - MARGIN - ENDINGS)
    below = text.counted
    if others := len(layer.clusters) - len(rows):
        share = 1 - sum(cluster.share for cluster in rows)
        below = f"{others} smaller clusters have the other {share:.0%}. {below}"
    write(MARGIN, table + len(rows) * ROW + 14, below, 17, color=SOFT)
    return figure


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
