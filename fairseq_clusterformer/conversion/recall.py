"""Draws how much of a dense model's attention the heads of a clustered one see."""

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from fairseq_clusterformer.visual.figure import ACCENT, INK, MARGIN, SOFT, TITLE, WIDTH, Drawing

if TYPE_CHECKING:
    from fairseq_clusterformer.conversion.convert import Head

ROW, GROUP, KEY = 30, 46, 54  # in pixels, as all sizes there
LEFT, RIGHT = 330, 320  # of the bars: names, numbers
NEAR, FITTED, REST = "#9fb3c8", "#2f6fb3", "#e9edf1"


def draw_recall(heads: Sequence["Head"], window: int) -> Figure:
    """A bar for each head, layer by layer: what the window holds of the dense head's attention,
    what clusters add, and a mark where chance would be; in numbers, how they began.

    Args:
        heads: of all layers, those of a layer together.
        window: the near window of the measurement.
    """
    layers = [list(of_layer) for _, of_layer in groupby(heads, lambda h: (h.side, h.layer))]
    height = TITLE + KEY + GROUP * len(layers) + ROW * len(heads) + MARGIN // 2
    what = f"share of the dense attention of each head; near: the latest {window} tokens"
    if any(head.side == "encoder" for head in heads):
        what = what.replace("the latest", "up to") + " away"
    drawing = Drawing(height, "What the heads see", what)
    _draw_key(drawing)
    y = TITLE + KEY
    for of_layer in layers:
        first = of_layer[0]
        sides = len({head.side for head in heads}) > 1
        name = f"{first.side}, layer {first.layer}" if sides else f"layer {first.layer}"
        drawing.text(MARGIN, y + GROUP / 2 + 4, name, 21, weight="bold")
        y += GROUP
        for head in of_layer:
            _draw_head(drawing, head, y)
            y += ROW
    return drawing.figure


def _draw_key(drawing: Drawing) -> None:
    x = MARGIN
    for colour, text in ((NEAR, "near"), (FITTED, "beyond")):
        drawing.box(x, TITLE, 26, 18, facecolor=colour)
        drawing.text(x + 36, TITLE + 9, text, 19, color=SOFT)
        x += 60 + 11 * len(text)
    drawing.box(x + 10, TITLE - 3, 4, 24, facecolor=ACCENT)
    drawing.text(x + 24, TITLE + 9, "as many keys drawn at random", 19, color=SOFT)


def _draw_head(drawing: Drawing, head: "Head", y: float) -> None:
    room, middle = WIDTH - LEFT - RIGHT, y + ROW / 2 - 2
    drawing.text(MARGIN + 16, middle, f"head {head.head}: {head.kind}", 18)
    near = min(1.0 - head.far, head.after)
    for end, colour in ((1.0, REST), (head.after, FITTED), (near, NEAR)):
        drawing.box(LEFT, y, room * end, ROW - 6, facecolor=colour)
    if head.kind not in ("window", "full"):
        drawing.box(LEFT + room * head.chance - 2, y - 2, 4, ROW - 2, facecolor=ACCENT, zorder=3)
    drawing.text(WIDTH - RIGHT + 16, middle, f"{head.after:.0%}", 19, color=INK)
    if head.before is not None:
        began = f"began {head.before:.0%}, chance {head.chance_before:.0%}"
        drawing.text(WIDTH - MARGIN, middle, began, 17, color=SOFT, at="right")
