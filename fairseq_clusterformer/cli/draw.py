"""Draw what clusters together, as a picture (PNG) and as a page (HTML that needs no network).

    clusterformer draw --checkpoint LM --text passage.txt --out drawn
    clusterformer draw --checkpoint READER --document report.pdf --question "Who ...?" --out drawn

The checkpoint's task decides what is drawn into the folder drawn:

- language model: clusters.png and clusters.html, the tokens of a passage in the colours of their
  clusters. Sizes and words of the clusters are counted over the validation text of --data; where
  there is none, as in a bundle, over the passage.
- reader of the architecture clusterformer_reader: clusters.png and clusters.html of a document.

The picture shows one layer (--layer, counted from 0), the page all layers that cluster. Centroids
in a file are drawn by `python -m examples.clustering draw`.
"""

from collections.abc import Sequence
from pathlib import Path

from fairseq_clusterformer.errors import bad_option
from fairseq_clusterformer.outputs import whole_file, write_text
from fairseq_clusterformer.ranges import Range

from .common import Parser, add_force, add_places, check_files, inputs_of, number


def main(arguments: Sequence[str]) -> int:
    parser = Parser(prog="clusterformer draw", description=__doc__)
    add = parser.add
    add("--checkpoint PATH", "of a language model or a reader; a bundle", type=str, required=True)
    about = "the passage for a language model; the document for a reader"
    how = {"type": Path, "metavar": "FILE", "required": True}
    parser.add_argument("--text", "--document", help=about, **how)
    add("--question TEXT", "for a reader, which reads the document for a question")
    add("--out FOLDER", "folder for the files", required=True)
    add_force(parser)
    add_places(parser)
    about = "to draw, from 0 (default: that which divides the text most evenly)"
    add("--layer N", about, type=number(Range(whole=True)))
    args = parser.parse_args(arguments)
    how = {"inputs": inputs_of(args, args.text), "force": args.force, "makes_folder": True}
    picture, html = (args.out / name for name in ("clusters.png", "clusters.html"))
    check_files(args.out, (picture.name, html.name), **how)
    from fairseq.models import FairseqLanguageModel

    from fairseq_clusterformer.checkpoints.load import load_checkpoint
    from fairseq_clusterformer.documents import drawing
    from fairseq_clusterformer.models.clusterformer_reader import ClusterformerReader
    from fairseq_clusterformer.visual import figure, language_model, pages

    loaded = load_checkpoint(args.checkpoint, data=args.data)
    if isinstance(loaded.model, ClusterformerReader):
        if args.question is None:
            raise bad_option("--question", "missing", "a question, which a reader always needs")
        text = drawing.read_clusters(loaded, args.text, args.question)
    elif isinstance(loaded.model, FairseqLanguageModel):
        if args.question is not None:
            raise bad_option("--question", args.question, "none for a language model")
        text = language_model.read_clusters(loaded, args.text)
    else:
        what = f"is a {type(loaded.model).__name__}"
        allowed = "a language model, or a reader of the architecture clusterformer_reader"
        raise bad_option("--checkpoint", args.checkpoint, allowed, what)
    layer = text.most_spread(args.layer)
    with whole_file("--out", picture, **how) as new:
        figure.save(figure.draw_passage(text, layer), new)
    write_text("--out", html, pages.cluster_page(text, layer), **how)
    print(f"{picture} ({layer.name}) and {html}")
    return 0
