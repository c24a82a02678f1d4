"""Draws how much of a dense model's attention the heads of a clustered one see."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

if TYPE_CHECKING:
    from fairseq_clusterformer.conversion.convert import Head

NEAR, FITTED, REST, CHANCE = "#9fb3c8", "#2f6fb3", "#e9edf1", "#b00020"


def draw_recall(heads: Sequence["Head"], window: int) -> Figure:
    """A bar for each head, layer by layer: what the window holds of the dense head's attention,
    what clusters add, and a mark where chance would be; in numbers, how they began.

    Args:
        heads: of all layers, those of a layer together.
        window: the near window of the measurement.
    """
    figure = Figure(figsize=(16, 2 + 0.3 * len(heads)), layout="constrained")
    axes, places = figure.add_subplot(), range(len(heads))
    axes.barh(places, [1.0 for _ in heads], color=REST)
    axes.barh(places, [head.after for head in heads], color=FITTED, label="beyond")
    near = [min(1.0 - head.far, head.after) for head in heads]
    axes.barh(places, near, color=NEAR, label="near")
    drawn = [place for place in places if heads[place].kind not in ("window", "full")]
    chance = "as many keys drawn at random"
    axes.plot([heads[i].chance for i in drawn], drawn, "|", color=CHANCE, ms=16, label=chance)
    names = [f"{h.side}, layer {h.layer}, head {h.head}: {h.kind}" for h in heads]
    axes.set(xlim=(0, 1.35), xticks=[], yticks=places, yticklabels=names)
    for place, head in zip(places, heads, strict=True):
        began = ""
        if head.before is not None:
            began = f"; began {head.before:.0%}, chance {head.chance_before:.0%}"
        axes.text(1.01, place, f"{head.after:.0%}{began}", verticalalignment="center")
    axes.invert_yaxis()
    axes.spines[:].set_visible(False)
    reach = f"the latest {window} tokens"
    if any(head.side == "encoder" for head in heads):
        reach = f"up to {window} tokens away"
    what = f"share of the dense attention of each head; near: {reach}"
    axes.set_title(f"What the heads see\n{what}", loc="left")
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, frameon=False)
    return figure
