#!/usr/bin/env python3
"""Draw what clusters together in a document that a reader reads: words, and where they stand.

    python scripts/document_clusters.py --checkpoint C --document FILE --question "Who ...?" \\
        --out clusters.png

A row a cluster, the largest ones of a layer: its share of the document, the words that it has more
of than chance would give (of the whole words that its subwords are parts of; ``<s>`` leads a
paragraph), and where in the document its tokens stand, the more the darker.
"""

import argparse
import logging
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_clusterformer.cli.common import Parser, whole_number
from fairseq_clusterformer.errors import UserError
from fairseq_clusterformer.inference.documents import read_source

if TYPE_CHECKING:
    from fairseq_clusterformer.inference.read import Part, PartRead

ROW, HEAD, WORDS, STRIP, MARK = 46, 128, 760, 660, 3  # pixels
START = "<s>"


def words_of(part: "Part") -> list[str]:
    """The word that each token is part of; ``<s>`` of what leads a paragraph, empty of a title."""
    words = [""] * len(part.tokens)
    starts, ends = part.document.characters.tolist()
    bounds = [*part.document.starts.tolist(), len(words)]
    for number, text in enumerate(part.document.texts):
        found = {
            place: match[0] for match in re.finditer(r"\w+|[^\w\s]", text) for place in _of(match)
        }
        words[bounds[number]] = START
        for token in range(bounds[number] + 1, bounds[number + 1]):
            shown = text[max(starts[token], 0) : max(ends[token], 0)]
            at = starts[token] + len(shown) - len(shown.lstrip())
            words[token] = found.get(at, "") if shown.strip() else ""
    return words


def _of(match: re.Match) -> range:
    return range(match.start(), match.end())


def save(read: "PartRead", question: str, layer: str, most: int, path: Path) -> None:
    """Draw the `most` largest clusters of a layer into a PNG file, whole or not at all."""
    from fairseq_clusterformer.visual.figure import DPI, INK, MARGIN, SOFT, WIDTH, Drawing
    from fairseq_clusterformer.visual.words import typical_items

    clusters = read.clusters[layer].tolist()
    sizes = {cluster: clusters.count(cluster) for cluster in set(clusters)}
    largest = sorted(sizes, key=lambda cluster: (-sizes[cluster], cluster))[:most]
    typical = typical_items(words_of(read.part), clusters, max(clusters) + 1, most=40)
    drawing = Drawing(HEAD + ROW * len(largest) + MARGIN)
    drawing.text(MARGIN, 38, "What clustered together, and where", 34, weight="bold")
    what = f"{layer}: the {len(largest)} largest of {len(sizes)} clusters; {question}"
    drawing.text(MARGIN, 76, what, 20, color=SOFT)
    left = WIDTH - MARGIN - STRIP
    drawing.text(MARGIN, HEAD - 16, "share, and words that it has more of", 18, color=SOFT)
    drawing.text(left, HEAD - 16, "token 1", 18, color=SOFT)
    end = f"token {len(clusters):,}"
    drawing.text(WIDTH - MARGIN, HEAD - 16, end, 18, color=SOFT, at="right")
    for number, cluster in enumerate(largest):
        top = HEAD + number * ROW
        middle = top + ROW / 2 - 3
        drawing.cluster_box(MARGIN, top, 52, ROW - 8, cluster)
        share = f"{sizes[cluster] / len(clusters):.1%}"
        drawing.text(MARGIN + 26, middle, share, 17, at="center")
        _draw_words(drawing, MARGIN + 66, middle, [item.text for item in typical[cluster]])
        drawing.box(left, top, STRIP, ROW - 8, facecolor="#f2f4f6")
        at = [place for place, other in enumerate(clusters) if other == cluster]
        darkest = max(counts := _histogram(at, len(clusters)))
        for mark, count in enumerate(counts):
            if count:
                x = left + mark * MARK
                alpha = 1 - 0.8 * (1 - count / darkest)
                drawing.box(x, top, MARK, ROW - 8, facecolor=INK, alpha=alpha)
    partial = path.with_name("." + path.name)
    drawing.figure.savefig(partial, dpi=DPI, format="png")
    partial.replace(path)


def _histogram(places: Sequence[int], length: int) -> list[int]:
    """How many fall under each mark of the strip."""
    counts = [0] * (STRIP // MARK)
    for place in places:
        counts[place * len(counts) // length] += 1
    return counts


def _draw_words(drawing, x: float, y: float, words: Sequence[str]) -> None:
    """As many as there is room for."""
    from fairseq_clusterformer.visual.figure import ADVANCE

    size, end = 19, x + WORDS
    for word in words:
        width = size * ADVANCE * (len(word) + 1)
        if x + width > end:
            break
        drawing.text(x, y, word, size, mono=True)
        x += width


def draw(args: argparse.Namespace) -> None:
    """Do what the command line asks for.

    Raises:
        UserError: if a file or an option is not as it must be.
    """
    if args.out.suffix != ".png" or not args.out.parent.is_dir():
        raise UserError(f"--out is {args.out}; allowed: a .png in a folder that exists")
    source = read_source(args.document, args.encoding)
    from fairseq_clusterformer.inference.read import (
        DocumentReader,  # imports fairseq, which takes seconds
    )

    reader = DocumentReader(args.checkpoint, args.data, cpu=args.cpu)
    part = reader.parts(source, args.tokens)[0]
    read = reader.read(reader.question(args.question), part, 1)
    if not read.clusters:
        raise UserError(f"--checkpoint is {args.checkpoint}; allowed: a reader that clusters")
    layer = args.layer or list(read.clusters)[-1]
    if layer not in read.clusters:
        raise UserError(f"--layer is {layer!r}; allowed: {', '.join(map(repr, read.clusters))}")
    save(read, args.question, layer, args.clusters, args.out)


def _parser() -> Parser:
    parser = Parser(prog="document_clusters.py", description=__doc__)
    add = parser.add_argument
    add("--checkpoint", required=True, metavar="FILE", help="a reader's")
    add("--document", required=True, type=Path, metavar="FILE", help="text, HTML or PDF")
    add("--question", required=True, metavar="TEXT", help="which the reader has in every window")
    add("--out", required=True, type=Path, metavar="PNG")
    add("--data", metavar="FOLDER", help="of the training (default: as the checkpoint says)")
    add("--layer", metavar="NAME", help="as in answer.py's page (default: the last that clusters)")
    add("--clusters", type=whole_number, default=16, metavar="N", help="default: %(default)s")
    add(
        "--tokens",
        type=whole_number,
        default=20_000,
        metavar="N",
        help="of the document, from its beginning (default: %(default)s)",
    )
    add("--encoding", metavar="NAME", help="of text and HTML (default: their own, else UTF-8)")
    add("--cpu", action="store_true", help="even if there is an accelerator")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status; a user's mistake is one line on stderr and status 1."""
    parser = _parser()
    try:
        draw(parser.parse_args(arguments))
    except (UserError, OSError) as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130  # the shell's status for a run ended by SIGINT
    return 0


if __name__ == "__main__":
    logging.disable(logging.INFO)
    sys.exit(main())
