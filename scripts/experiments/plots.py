"""Pictures of results: lines, ticks at what was measured, and names in the order of the ends."""

import logging
import statistics
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fairseq_clusterformer.outputs import replaced
from scripts.experiments.tables import SEVERAL, cell, lookup

# of Okabe and Ito, which colour-blind readers can tell apart
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")
COLOURS += ("#5B3A8E", "#9A9A9A")
HEIGHT, WIDTH = 4.2, 5.2  # inches of a panel
FONT = 8  # points


@dataclass(frozen=True)
class Line:
    """A line of a panel. Three or more seeds give their mean with its standard deviation; below
    three seeds, each has a line of its own."""

    name: str  # lines of one name have one colour in all panels
    points: Mapping[float, Sequence[float]]  # the values at each x, one per seed
    label: str = ""  # what the legend says; default: its name
    bound: bool = False  # a dotted line without markers, for what was not measured


@dataclass(frozen=True)
class Panel:
    """Lines that share their axes."""

    lines: Sequence[Line]
    x: str  # label of the horizontal axis
    y: str
    title: str = ""
    log: str = ""  # axes that are logarithmic: ``x``, ``y``, ``xy`` or none
    limits: tuple[float | None, float | None] = (None, None)  # of y; default: what the lines need


def draw(panels: Sequence[Panel], path: Path, title: str = "") -> None:
    """Draw panels side by side into a picture, which is written whole or not at all."""
    logging.getLogger("matplotlib").setLevel(logging.WARNING)  # fairseq turns all of them up
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    size = (max(1.4, len(panels)) * WIDTH, HEIGHT)
    figure, axes = pyplot.subplots(
        1, len(panels), figsize=size, dpi=150, layout="constrained", squeeze=False
    )
    names = list(dict.fromkeys(line.name for panel in panels for line in panel.lines))
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    for panel, axis in zip(panels, axes.flat, strict=True):
        _draw_panel(panel, axis, colours)
    figure.suptitle(textwrap.fill(title, width=round(13 * size[0])), fontsize=FONT + 2)
    with replaced(path) as new:
        figure.savefig(new, format=path.suffix[1:] or "png")
    pyplot.close(figure)


def draw_grid(grid: dict, results: Sequence[tuple[str, str, dict]], path: Path) -> None:
    """Draw what the grid's ``plot`` asks for, a panel for each data set.

    Keys of ``plot``: ``points`` (key of a list of [x, y] in each result, or the start of keys such
    as ``EM at 500``), ``x``, ``y``, ``title``, ``log``, ``limits``, ``end`` (key and digits of a
    score to print after each name), ``bounds`` (height of dotted lines by name), ``panels`` (the
    end of the rows' names that share a panel, by its title). `results`: as in ``tables.table``.
    """
    plot = grid["plot"]
    panels = []
    for title, ending in plot.get("panels", {"": ""}).items():
        for data in dict.fromkeys(data for _, data, _ in results):
            rows: dict[str, list[dict]] = {}
            for row, its_data, result in results:
                if its_data == data and row.endswith(ending):
                    name = row.removesuffix(ending).rstrip(" ,") if ending else row
                    rows.setdefault(name, []).append(result)
            lines = [_line(name, of_row, plot) for name, of_row in rows.items()]
            xs = [x for line in lines for x in line.points]
            for name, height in plot.get("bounds", {}).items():
                bound = {x: [height] for x in (min(xs), max(xs))}
                lines.append(Line(name, bound, bound=True))
            described = {key: plot[key] for key in ("x", "y", "log", "limits") if key in plot}
            panels.append(Panel(lines, title=title or data, **described))
    draw(panels, path, plot["title"])


def _line(name: str, results: Sequence[dict], plot: dict) -> Line:
    points: dict[float, list[float]] = {}
    for result in results:
        key = plot["points"]
        starts = ((k.removeprefix(key), y) for k, y in result.items() if k.startswith(key))
        for x, y in result[key] if key in result else [(int(x), y) for x, y in starts]:
            points.setdefault(x, []).append(y)
    label = name
    if "end" in plot:
        score, digits = plot["end"]
        label += ": " + cell([v for r in results if (v := lookup(r, score)) is not None], digits)
    return Line(name, points, label)


def _draw_panel(panel: Panel, axis, colours: Mapping[str, str]) -> None:
    ends = []
    for line in panel.lines:
        last = statistics.mean(line.points[max(line.points)])
        ends.append((last, _draw_line(line, axis, colours), line.label or line.name))
    axis.set_title(panel.title, fontsize=FONT + 2)
    axis.set_xlabel(panel.x, fontsize=FONT + 1)
    axis.set_ylabel(panel.y, fontsize=FONT + 1)
    axis.tick_params(labelsize=FONT)
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    if "x" in panel.log:
        axis.set_xscale("log", base=2)
        axis.set_xticks(sorted({x for line in panel.lines for x in line.points}))
    if "y" in panel.log:
        from matplotlib.ticker import LogLocator

        axis.set_yscale("log")
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.minorticks_off()
    axis.xaxis.set_major_formatter("{x:,g}")
    axis.yaxis.set_major_formatter("{x:,g}")
    axis.set_ylim(*panel.limits)
    axis.margins(x=0.02)
    # names from top to bottom, as the lines end
    _, handles, labels = zip(*sorted(ends, key=lambda end: end[0], reverse=True), strict=True)
    beside = {"loc": "center left", "bbox_to_anchor": (1, 0.5), "frameon": False}
    axis.legend(handles, labels, fontsize=FONT, **beside)


def _draw_line(line: Line, axis, colours: Mapping[str, str]):
    """Draw a line, or one for each of a few seeds; returns what stands for it in a legend."""
    xs = sorted(line.points)
    few, seeds = len(xs) <= 10, max(map(len, line.points.values()))
    style = {"color": colours[line.name], "linewidth": 1.3, "marker": "o" * few, "markersize": 3}
    if line.bound:
        style = {"color": "grey", "linewidth": 1, "linestyle": ":"}
    if seeds < SEVERAL:
        for seed in range(seeds):
            own = [x for x in xs if len(line.points[x]) > seed]
            (drawn,) = axis.plot(own, [line.points[x][seed] for x in own], **style)
        return drawn
    means = [statistics.mean(line.points[x]) for x in xs]
    values = (line.points[x] for x in xs)
    spreads = [statistics.stdev(of_x) if len(of_x) >= SEVERAL else 0 for of_x in values]
    if few:
        return axis.errorbar(xs, means, spreads, capsize=2, **style)
    (drawn,) = axis.plot(xs, means, **style)
    bounds = [[m + sign * s for m, s in zip(means, spreads, strict=True)] for sign in (-1, 1)]
    axis.fill_between(xs, *bounds, color=style["color"], alpha=0.15, linewidth=0)
    return drawn
