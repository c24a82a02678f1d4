"""Draw what clusters together, as a picture (PNG) and as a page (HTML that needs no network).

    clusterformer draw --checkpoint LM --text passage.txt --out drawn
    clusterformer draw --checkpoint READER --document report.pdf --question "Who ...?" --out drawn
    clusterformer draw --centroids clusters.npz --out drawn

The checkpoint's task decides what is drawn into the folder drawn:

- language model: clusters.png and clusters.html, the tokens of a passage in the colours of their
  clusters. Sizes and words of the clusters are counted over the validation text of --data; where
  there is none, as in a bundle, over the passage.
- reader of the architecture clusterformer_reader: clusters.png and clusters.html of a document.
- --centroids: centroids.png, the fitted centroids of square images.

The picture shows one layer (--layer, counted from 0), the page all layers that cluster.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from fairseq_clusterformer.errors import bad_option
from fairseq_clusterformer.outputs import whole_file, write_text
from fairseq_clusterformer.ranges import Range

from .common import Parser, add_force, add_places, check_files, inputs_of, number


def main(arguments: Sequence[str]) -> int:
    args = _arguments(arguments)
    names = ("clusters.png", "clusters.html") if args.centroids is None else ("centroids.png",)
    how = {"inputs": inputs_of(args, args.text, args.centroids), "force": args.force}
    check_files(args.out, names, **how)
    from fairseq_clusterformer.visual.figure import save

    if args.centroids is None:
        figure, what, page = _clusters(args)
        picture = args.out / "clusters.png"
    else:
        from fairseq_clusterformer.visual.figure import draw_centroids

        (figure, number), page = draw_centroids(args.centroids), None
        picture, what = args.out / "centroids.png", f"{number} centroids"
    how["makes_folder"] = True
    with whole_file("--out", picture, **how) as new:
        save(figure, new)
    if page is not None:
        write_text("--out", picture.with_suffix(".html"), page, **how)
    print(f"{picture} ({what})" + (f" and {picture.with_suffix('.html')}" if page else ""))
    return 0


def _arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = Parser(prog="clusterformer draw", description=__doc__)
    add = parser.add
    add("--checkpoint PATH", "of a language model or a reader; a bundle", type=str)
    add("--centroids FILE", "centroids of images, a .npz file instead")
    about = "the passage for a language model; the document for a reader"
    parser.add_argument("--text", "--document", type=Path, metavar="FILE", help=about)
    add("--question TEXT", "for a reader, which reads the document for a question")
    add("--out FOLDER", "folder for the files", required=True)
    add_force(parser)
    add_places(parser)
    about = "to draw, from 0 (default: that which divides the text most evenly)"
    add("--layer N", about, type=number(Range(whole=True)))
    args = parser.parse_args(arguments)
    said = {name for name, value in vars(args).items() if value not in (None, False)}
    given = [name for name in vars(args) if name in said - {"out", "force"}]
    if args.centroids is not None:
        if extra := [name for name in given if name != "centroids"]:
            allowed = f"it alone, without --{extra[0]}"
            parser.error(f"--centroids is {args.centroids}; allowed: {allowed}")
        return args
    for name in ("checkpoint", "text"):
        if name not in given:
            parser.error(f"--{name} is missing; allowed: --checkpoint and --text, or --centroids")
    return args


def _clusters(args: argparse.Namespace) -> tuple:
    """Matplotlib's figure of one layer, this layer's name, and the page of all layers."""
    from fairseq.models import FairseqLanguageModel

    from fairseq_clusterformer.inference.load import load_checkpoint
    from fairseq_clusterformer.models.clusterformer_reader import ClusterformerReader
    from fairseq_clusterformer.visual import document, figure, language_model, pages

    loaded = load_checkpoint(args.checkpoint, data=args.data)
    if isinstance(loaded.model, ClusterformerReader):
        if args.question is None:
            raise bad_option("--question", "missing", "a question, which a reader always needs")
        text = document.read_clusters(loaded, args.text, args.question)
        draw = document.draw_document
    elif isinstance(loaded.model, FairseqLanguageModel):
        if args.question is not None:
            raise bad_option("--question", args.question, "none for a language model")
        text, draw = language_model.read_clusters(loaded, args.text), figure.draw_passage
    else:
        what = f"is a {type(loaded.model).__name__}"
        allowed = "a language model, or a reader of the architecture clusterformer_reader"
        raise bad_option("--checkpoint", args.checkpoint, allowed, what)
    layer = text.most_spread(args.layer)
    return draw(text, layer), layer.name, pages.cluster_page(text, layer)
