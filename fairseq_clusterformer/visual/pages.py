"""Pages of clusters: each is one HTML file that needs no network.

The templates escape all text. Data for their scripts is JSON in which no character can end the
script.
"""

from itertools import groupby
from pathlib import Path

import jinja2

from .words import LABELS, ClusteredText, DrawnLayer, css, visible

MOST_ROWS = 24  # clusters in a table; the largest, if there are more
MOST_POSITIONS = 8  # of the passage, for each cluster
SIGNS = {" ": "\u00b7", "\n": "\u23ce", "\t": "\u21e5"}  # of tokens that would not be seen

ENVIRONMENT = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
ENVIRONMENT.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
ENVIRONMENT.filters |= {"visible": visible, "css": css}


def cluster_page(text: ClusteredText, first: DrawnLayer) -> str:
    """The clusters of a passage, in every layer that clusters; it opens with ``first``."""
    clusters = max(len(layer.clusters) for layer in text.layers)
    return ENVIRONMENT.get_template("cluster_page.html").render(
        title="What clustered together",
        text=text,
        layers=[layer.name for layer in text.layers],
        first=text.layers.index(first),
        tokens=[(i, token, SIGNS.get(token)) for i, token in enumerate(text.tokens) if token],
        labels=LABELS[text.unit],
        listed=[layer.largest(MOST_ROWS) for layer in text.layers],
        positions=positions,
        data={
            "unit": text.unit,
            "row": text.row,
            "colours": list(map(css, range(clusters))),
            "layers": [
                {"window": layer.window, "clusters": layer.passage} for layer in text.layers
            ],
        },
    )


def positions(passage: list[int], cluster: int) -> str:
    """Where a cluster stands in the passage: the first runs of positions, and the last."""
    places = [i for i, c in enumerate(passage) if c == cluster]
    if not places:
        return "nowhere"
    runs = []
    for _, run in groupby(enumerate(places), lambda pair: pair[1] - pair[0]):
        run = [place for _, place in run]
        runs.append(f"{run[0]}" if len(run) == 1 else f"{run[0]}\u2013{run[-1]}")
    if len(runs) > MOST_POSITIONS:
        runs = [*runs[: MOST_POSITIONS - 1], "\u2026", runs[-1]]
    return f"{len(places):,} positions: " + ", ".join(runs)
