"""Markdown tables of results.

One convention for seeds: three or more give their mean ± their standard deviation (n - 1) and
their number; below three, each seed is printed.
"""

import statistics
from collections.abc import Sequence

SEVERAL = 3


def cell(values: Sequence[float], digits: int = 1) -> str:
    """What the values of some seeds are in a table."""
    if not values:
        return "-"
    shown = [f"{value:.{digits}f}" for value in values]
    if digits == 0 and len(set(shown)) == 1:  # a count, such as of parameters
        return shown[0]
    if len(values) < SEVERAL:
        return ", ".join(shown)
    mean, spread = statistics.mean(values), statistics.stdev(values)
    return f"{mean:.{digits}f} ± {spread:.{digits}f} ({len(values)})"


def markdown(head: Sequence[object], rows: Sequence[Sequence[object]]) -> str:
    """A table whose columns but the first hold numbers."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def lookup(result: dict, key: str) -> float | None:
    """A number of a result; ``test/accuracy`` is ``accuracy`` of its ``test``."""
    for part in key.split("/"):
        if isinstance(result, list) and part.isdecimal() and int(part) < len(result):
            result = result[int(part)]
        elif isinstance(result, dict) and part in result:
            result = result[part]
        else:
            return None
    return result if isinstance(result, (int, float)) else None


def table(grid: dict, results: Sequence[tuple[str, str, dict]]) -> str:
    """The table of a grid.

    The grid's ``columns`` are, by their heads, a number of digits, or a map of ``score`` (the key
    of a result; default: the head), ``digits`` (default: 1), ``data`` (its data set) and
    ``percent`` (of a share). Columns without a number are left out. Where a row has the paper's
    numbers, they follow each column. ``mean`` adds the mean of all columns.

    Args:
        grid: what ``grids.load_grid`` returns.
        results: row, data set and result of each run that is there.
    """
    columns = {
        head: of if isinstance(of, dict) else {"digits": of}
        for head, of in grid["columns"].items()
    }
    papers = {row: own.get("paper", {}) for row, own in grid["rows"].items()}
    in_paper = {head for paper in papers.values() for head in paper}
    cells: dict[tuple[str, str], list[float]] = {}
    for head, column in columns.items():
        scale, key = 100 if column.get("percent") else 1, column.get("score", head)
        for row, data, result in results:
            value = lookup(result, key)
            if value is not None and column.get("data", data) == data:
                cells.setdefault((row, head), []).append(scale * value)
    used = [head for head in columns if any((row, head) in cells for row in papers)]
    with_mean, lines = grid.get("mean", False) and len(used) > 1, []
    for row, paper in papers.items():
        own = {head: cells[row, head] for head in used if (row, head) in cells}
        if not own:
            continue
        line = [row]
        for head in used:
            line.append(cell(own.get(head, ()), columns[head].get("digits", 1)))
            line += [paper.get(head, "-")] * (head in in_paper)
        of_paper = [paper[head] for head in used if head in paper]
        for numbers in ([*map(statistics.mean, own.values())], of_paper) if with_mean else ():
            complete = len(numbers) == len(used)
            line.append(f"{statistics.mean(numbers):.1f}" if complete else "-")
        lines.append(line)
    heads = [part for h in used for part in ((h, "paper") if h in in_paper else (h,))]
    return markdown(["model", *heads, *(("mean", "paper") if with_mean else ())], lines)
