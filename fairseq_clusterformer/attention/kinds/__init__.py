"""The kinds of attention that are built in: each registers itself."""

from . import gated, kmeans, lsh, neural, routing, strided, taught, window, xl  # noqa: F401
