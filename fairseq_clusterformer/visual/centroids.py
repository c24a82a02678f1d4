"""Draws fitted centroids of square images."""

import math
from pathlib import Path

from matplotlib.figure import Figure

from fairseq_clusterformer.clustering.fitted import load_clusters
from fairseq_clusterformer.errors import UserError, bad_option

COLUMNS = 10
INCH = 0.8  # of one image


def draw_centroids(clusters: Path) -> tuple[Figure, int]:
    """Draw all centroids. Dark is high; each image has a scale of its own.

    Args:
        clusters: the file that ``fit --out`` wrote.

    Returns:
        the figure, and K, the number of centroids.

    Raises:
        UserError: no such file, something else, or centroids that are no square images.
    """
    try:
        centroids = load_clusters(clusters).centroids
    except UserError as error:
        raise UserError(f"--centroids is {error}") from None
    num_clusters, width = centroids.shape
    side = math.isqrt(width)
    if side * side != width:
        allowed = "centroids of square images, such as 28 x 28"
        raise bad_option("--centroids", clusters, allowed, f"they have {width} values each")
    columns = min(COLUMNS, num_clusters)
    rows = math.ceil(num_clusters / columns)
    figure = Figure(figsize=(columns * INCH, rows * INCH))
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in grid:
        axes.axis("off")
    for axes, image in zip(grid, centroids.unflatten(1, (side, side)), strict=False):
        axes.imshow(image.numpy(), cmap="gray_r", vmin=0, aspect="auto")
    figure.subplots_adjust(0.005, 0.005, 0.995, 0.995, wspace=0.06, hspace=0.06)
    return figure, num_clusters
