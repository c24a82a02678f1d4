"""Pages of clusters: each is one HTML file that needs no network.

The templates escape all text. Data for their scripts is JSON in which no character can end the
script.
"""

from pathlib import Path

import jinja2

from .words import LABELS, ClusteredText, DrawnLayer, colour, visible

MOST_ROWS = 24  # clusters in a table; the largest, if there are more
SIGNS = {" ": "\u00b7", "\n": "\u23ce", "\t": "\u21e5"}  # of tokens that would not be seen

ENVIRONMENT = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
ENVIRONMENT.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
ENVIRONMENT.filters |= {"visible": visible, "colour": colour}


def cluster_page(text: ClusteredText, first: DrawnLayer) -> str:
    """The clusters of a passage, in every layer that clusters; it opens with ``first``."""
    clusters = max(len(layer.clusters) for layer in text.layers)
    layers = [{"window": layer.window, "clusters": layer.passage} for layer in text.layers]
    colours = [*map(colour, range(clusters))]
    return ENVIRONMENT.get_template("cluster_page.html").render(
        title="What clustered together",
        text=text,
        layers=[layer.name for layer in text.layers],
        first=text.layers.index(first),
        tokens=[(i, token, SIGNS.get(token)) for i, token in enumerate(text.tokens) if token],
        labels=LABELS[text.unit],
        listed=[layer.largest(MOST_ROWS) for layer in text.layers],
        data={"unit": text.unit, "row": text.row, "colours": colours, "layers": layers},
    )
