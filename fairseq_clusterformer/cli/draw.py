"""Draw what clusters together, as a page of HTML that needs no network.

    clusterformer draw --checkpoint LM --text passage.txt --out drawn
    clusterformer draw --checkpoint READER --document report.pdf --question "Who ...?" --out drawn

drawn/clusters.html shows the tokens of a passage in the colours of their clusters, in each layer
that clusters. Of a language model, sizes and words of the clusters are counted over the validation
text of --data; where there is none, as in a bundle, over the passage. Of a reader of the
architecture clusterformer_reader, they are those of the document.
"""

from collections.abc import Sequence
from pathlib import Path

from fairseq_clusterformer.errors import bad_option
from fairseq_clusterformer.outputs import write_text

from .common import Parser, add_force, add_places, check_files, inputs_of


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
    args = parser.parse_args(arguments)
    how = {"inputs": inputs_of(args, args.text), "force": args.force, "makes_folder": True}
    page = args.out / "clusters.html"
    check_files(args.out, [page.name], **how)
    from fairseq.models import FairseqLanguageModel

    from fairseq_clusterformer.checkpoints.load import load_checkpoint
    from fairseq_clusterformer.documents import drawing
    from fairseq_clusterformer.models.clusterformer_reader import ClusterformerReader
    from fairseq_clusterformer.visual import pages

    loaded = load_checkpoint(args.checkpoint, data=args.data)
    if isinstance(loaded.model, ClusterformerReader):
        if args.question is None:
            raise bad_option("--question", "missing", "a question, which a reader always needs")
        text = drawing.read_clusters(loaded, args.text, args.question)
    elif isinstance(loaded.model, FairseqLanguageModel):
        if args.question is not None:
            raise bad_option("--question", args.question, "none for a language model")
        text = pages.read_clusters(loaded, args.text)
    else:
        what = f"is a {type(loaded.model).__name__}"
        allowed = "a language model, or a reader of the architecture clusterformer_reader"
        raise bad_option("--checkpoint", args.checkpoint, allowed, what)
    write_text("--out", page, pages.cluster_page(text), **how)
    print(f"{page}: {len(text.layers)} clusterings of {len(text.tokens):,} {text.unit}s")
    return 0
