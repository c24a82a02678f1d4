"""Pages of clusters: each is one HTML file that needs no network.

The templates escape all text. Data for their scripts is JSON in which no character can end the
script.
"""

import colorsys
from pathlib import Path

import jinja2

from .words import ClusteredText

MOST_ROWS = 24  # clusters in a table; the largest, if there are more
SIGNS = {" ": "\u00b7", "\n": "\u23ce", "\t": "\u21e5"}  # of tokens that would not be seen
#: what a token is called, and the words that tokens belong to, by the unit of the text
LABELS = {
    "byte": ("characters", "words, as far as read"),
    "piece": ("pieces", "words, as far as read"),
    "word": ("words", "after the one before"),
}


def visible(text: str) -> str:
    """Blanks, tabs and line ends as signs."""
    return text.replace(" ", "\u2423").replace("\n", "\u23ce").replace("\t", "\u21e5")


def colour(cluster: int) -> str:
    """Background of a cluster, ``#rrggbb``: light, its hue far from those of its neighbours."""
    rgb = colorsys.hls_to_rgb(0.618 * cluster % 1, (0.78, 0.68, 0.86)[cluster % 3], 0.75)
    return "#" + "".join(f"{round(255 * part):02x}" for part in rgb)


ENVIRONMENT = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
ENVIRONMENT.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
ENVIRONMENT.filters |= {"visible": visible, "colour": colour}


def cluster_page(text: ClusteredText) -> str:
    """The clusters of a passage, in every layer that clusters. It opens with the clustering that
    divides the passage most evenly, and of equals the last: heads may cluster apart, and some put
    all into one."""
    spread = [round(layer.spread, 3) for layer in text.layers]
    listed = []
    for layer in text.layers:
        largest = sorted(layer.clusters, key=lambda c: -c.size)[:MOST_ROWS]
        listed.append(sorted(largest, key=lambda c: c.index))
    clusters = max(len(layer.clusters) for layer in text.layers)
    layers = [{"window": layer.window, "clusters": layer.passage} for layer in text.layers]
    return ENVIRONMENT.get_template("cluster_page.html").render(
        title="What clustered together",
        text=text,
        layers=[layer.name for layer in text.layers],
        first=max(range(len(spread)), key=lambda i: (spread[i], i)),
        tokens=[(i, token, SIGNS.get(token)) for i, token in enumerate(text.tokens) if token],
        labels=LABELS[text.unit],
        listed=listed,
        data={
            "unit": text.unit,
            "row": text.row,
            "colours": [*map(colour, range(clusters))],
            "layers": layers,
        },
    )
