"""Draw centroids of square images that ``python -m fairseq_clusterformer.clustering`` fitted.

python scripts/centroid_picture.py --clusters clusters.npz --out centroids.png
"""

import argparse
import logging
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from fairseq_clusterformer.errors import UserError

COLUMNS = 10
INCH = 0.8  # of one image


def draw(clusters: Path, out: Path) -> int:
    """Write a PNG file of all centroids, whole or not at all; dark is high, each by itself.

    Args:
        clusters: what ``fit --out`` wrote.
        out: the picture.

    Returns:
        K.

    Raises:
        UserError: no such file, something else, or a width that is no square.
    """
    from matplotlib.figure import Figure  # takes seconds to import

    from fairseq_clusterformer.clustering.fitted import load_clusters
    from fairseq_clusterformer.clustering.matrices import InputError

    try:
        centroids = load_clusters(clusters).centroids
    except InputError as error:
        raise UserError(f"--clusters {error}") from None
    num_clusters, width = centroids.shape
    side = math.isqrt(width)
    if side * side != width:
        raise UserError(f"--clusters {clusters}: D is {width}; allowed: a square, as 28 x 28")
    rows = math.ceil(num_clusters / COLUMNS)
    figure = Figure(figsize=(COLUMNS * INCH, rows * INCH))
    grid = figure.subplots(rows, COLUMNS, squeeze=False).ravel()
    for axes in grid:
        axes.axis("off")
    for axes, centroid in zip(grid, centroids, strict=False):
        axes.imshow(centroid.view(side, side).numpy(), cmap="gray_r", vmin=0, aspect="auto")
    figure.subplots_adjust(0.005, 0.005, 0.995, 0.995, wspace=0.06, hspace=0.06)
    partial = out.with_name(out.name + ".partial")
    try:
        figure.savefig(partial, format="png", dpi=100)
        partial.replace(out)
    except OSError as error:
        raise UserError(f"--out {out}: {error.strerror}; allowed is a file to write") from None
    return num_clusters


def main(arguments: Sequence[str]) -> int:
    """Run the command; a user's mistake is one line on stderr and status 1."""
    parser = argparse.ArgumentParser(
        prog="centroid_picture.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--clusters", type=Path, required=True, help="what fit --out wrote")
    parser.add_argument("--out", type=Path, required=True, help="PNG file")
    options = parser.parse_args(arguments)
    try:
        num_clusters = draw(**vars(options))
    except UserError as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 1
    print(f"{options.out}: {num_clusters} centroids")
    return 0


if __name__ == "__main__":
    logging.disable(logging.INFO)
    sys.exit(main(sys.argv[1:]))
