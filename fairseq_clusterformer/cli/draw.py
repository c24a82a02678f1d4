"""Draw what clusters together in a language model, as a picture and as a page.

    python scripts/cluster_picture.py --checkpoint C --data DATA_BIN --text FILE --out FOLDER

FOLDER gets ``clusters.png`` (one layer) and ``clusters.html`` (every layer that clusters; one file
that needs no network): the tokens of the passage in FILE coloured by cluster, and over the
validation text of DATA_BIN each cluster's size, the characters or words that it has more of than
chance would give, and how far back it reaches.
"""

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from fairseq_clusterformer.errors import UserError


def draw(checkpoint: Path, data: Path, text: Path, out: Path, layer: int | None = None) -> str:
    """Write ``clusters.png`` and ``clusters.html`` into a folder, whole or not at all.

    Args:
        checkpoint: of a language model with a layer that clusters.
        data: folder with the model's dictionary and validation text.
        text: file with the passage.
        out: folder, made if missing.
        layer: of the picture, counted from 1; default: the last one that clusters.

    Returns:
        The label of the layer in the picture.

    Raises:
        UserError: for what is missing or something else.
    """
    from fairseq_clusterformer.visual.cluster_page import page
    from fairseq_clusterformer.visual.figure import (
        save_figure,  # imports fairseq and matplotlib, which takes seconds
    )
    from fairseq_clusterformer.visual.language_model import read_clusters

    reading = read_clusters(checkpoint, data, text)
    chosen = reading.layers[-1]
    if layer is not None:
        by_number = {int(each.name.split()[1]): each for each in reading.layers}
        if layer not in by_number:
            allowed = ", ".join(map(str, by_number))
            raise UserError(f"--layer {layer}: does not cluster; allowed: {allowed}")
        chosen = by_number[layer]
    try:
        out.mkdir(parents=True, exist_ok=True)
        partial = out / "clusters.partial"
        save_figure(reading, chosen, partial)
        partial.replace(out / "clusters.png")
        partial.write_text(page(reading, chosen), encoding="utf-8")
        partial.replace(out / "clusters.html")
    except OSError as error:
        raise UserError(
            f"--out {out}: {error.strerror}; allowed is a folder to write to"
        ) from None
    return f"{chosen.name}, {chosen.heads}"


def main(arguments: Sequence[str]) -> int:
    """Run the command; a user's mistake is one line on stderr and status 1."""
    parser = argparse.ArgumentParser(
        prog="cluster_picture.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    for name, what in {
        "--checkpoint": "a language model's, with a layer that clusters",
        "--data": "folder with its dict.txt and valid.bin, as a prepare script makes it",
        "--text": "file with the passage to show",
        "--out": "folder for the two files",
    }.items():
        parser.add_argument(name, type=Path, required=True, help=what)
    parser.add_argument(
        "--layer", type=int, help="to draw and to open the page with (default: the last)"
    )
    options = parser.parse_args(arguments)
    try:
        label = draw(**vars(options))
    except UserError as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 1
    print(f"{options.out / 'clusters.png'} ({label}) and {options.out / 'clusters.html'}")
    return 0


if __name__ == "__main__":
    logging.disable(logging.INFO)
    sys.exit(main(sys.argv[1:]))
