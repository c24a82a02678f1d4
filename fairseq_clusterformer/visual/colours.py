"""Colours of clusters: the colour-blind can distinguish them, and dark text is legible on them."""

# Paul Tol's "light" scheme, made for the backgrounds of text; neighbours are far apart in it.
_LIGHT = "#77aadd #ee8866 #eedd88 #44bb99 #ffaabb #bbcc33 #99ddff #dddddd #aaaa00".split()
# From the tenth cluster on, the colours come again with a pattern: the angles of its stripes.
_PATTERNS = {"": (), "//": (-45,), "\\\\": (45,), "xx": (-45, 45)}


def colour(cluster: int) -> str:
    """Background of a cluster, ``#rrggbb``."""
    return _LIGHT[cluster % len(_LIGHT)]


def pattern(cluster: int) -> str:
    """Matplotlib's hatch over the background; empty for the first clusters."""
    return [*_PATTERNS][cluster // len(_LIGHT) % len(_PATTERNS)]


def css(cluster: int) -> str:
    """Background of a cluster, hatch included, as a CSS declaration."""
    stripe = "repeating-linear-gradient({}deg,#0003 0 1px,#0000 1px 5px)"
    stripes = ",".join(map(stripe.format, _PATTERNS[pattern(cluster)]))
    return f"background:{stripes} {colour(cluster)}"
