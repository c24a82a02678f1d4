"""Draws where a reader is right: by question word, and by length of question and answer."""

from collections.abc import Mapping

from matplotlib.figure import Figure

from .figure import DPI, INK, SOFT

EXACT, F1 = "#9fb3c8", "#2f6fb3"


def draw_breakdown(tables: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Figure:
    """Bars of exact match and F1, in per cent, for the rows of each table of
    :func:`~fairseq_clusterformer.inference.evaluate.breakdown`, and how many questions they have.
    """
    figure = Figure(figsize=(16, 5), dpi=DPI, layout="constrained")
    for axes, (title, rows) in zip(figure.subplots(1, len(tables)), tables.items(), strict=True):
        places = range(len(rows))
        for shift, name, colour in ((-0.2, "exact match", EXACT), (0.2, "f1", F1)):
            heights = [row[name] for row in rows.values()]
            label = "F1" if name == "f1" else name
            axes.bar([at + shift for at in places], heights, 0.4, color=colour, label=label)
        axes.set_title(title, color=INK, loc="left", weight="bold")
        axes.set(ylim=(0, 100), ylabel="%")
        numbers = [f"{name}\n{row['questions']:,}" for name, row in rows.items()]
        axes.set_xticks(places, numbers, color=SOFT, size=8)
        axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return figure
