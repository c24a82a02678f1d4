"""Draw what clusters together, as a picture (PNG) and as a page (HTML that needs no network).

    clusterformer draw --checkpoint LM --text passage.txt --out drawn
    clusterformer draw --checkpoint READER --document report.pdf --question "Who ...?" --out drawn
    clusterformer draw --centroids clusters.npz --out drawn

The checkpoint's task decides what is drawn into the folder drawn:

- language model: clusters.png and clusters.html, the tokens of a passage in the colours of their
  clusters. Sizes and words of the clusters are counted over the validation text of --data; where
  there is none, as in a bundle, over the passage.
- reader (question answering): clusters.png and clusters.html of a document.
- --centroids: centroids.png, the fitted centroids of square images.

The picture shows one layer (--layer, counted from 0), the page all layers that cluster.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_clusterformer.cli.common import Parser
from fairseq_clusterformer.errors import bad_option

if TYPE_CHECKING:
    from fairseq_clusterformer.inference.load import Loaded
    from fairseq_clusterformer.visual.words import ClusteredLayer, ClusteredText


def draw(
    checkpoint: Path | str,
    text: Path,
    out: Path,
    *,
    data: Path | str | None = None,
    layer: int | None = None,
    question: str | None = None,
) -> str:
    """Write ``clusters.png`` and ``clusters.html`` into a folder, each whole or not at all.

    Args:
        checkpoint: of a language model or a reader with a layer that clusters, or a bundle.
        text: file with the passage; for a reader, the document.
        out: folder, made if missing.
        data: the prepared folder; None: where the checkpoint says.
        layer: of the picture, from 0; None: the last one that clusters.
        question: that the reader reads the document for.

    Returns:
        The label of the layer in the picture.

    Raises:
        UserError: for what is missing or something else.
    """
    from fairseq.models import FairseqLanguageModel

    from fairseq_clusterformer.inference.load import load_checkpoint
    from fairseq_clusterformer.models.clusterformer_reader import ClusterformerReader
    from fairseq_clusterformer.visual import figure, language_model, pages

    loaded = load_checkpoint(checkpoint, data=data)
    if isinstance(loaded.model, ClusterformerReader):
        clustered, words = _of_document(loaded, text, question)
    elif isinstance(loaded.model, FairseqLanguageModel):
        if question is not None:
            raise bad_option("--question", question, "none for a language model")
        clustered, words = language_model.read_clusters(loaded, text), None
    else:
        allowed = "a language model or a reader"
        raise bad_option(
            "--checkpoint", checkpoint, allowed, f"is a {type(loaded.model).__name__}"
        )
    chosen = _chosen(clustered, layer)
    try:
        out.mkdir(parents=True, exist_ok=True)
        partial = out / "clusters.partial"
        if words is None:
            figure.save_figure(clustered, chosen, partial)
        else:
            from fairseq_clusterformer.visual.document import save_picture

            save_picture(clustered, chosen, words, partial)
        partial.replace(out / "clusters.png")
        partial.write_text(pages.cluster_page(clustered, chosen), encoding="utf-8")
        partial.replace(out / "clusters.html")
    except OSError as error:
        raise bad_option("--out", out, "a folder to write to", error.strerror) from None
    return f"{chosen.name}, {chosen.heads}"


def _of_document(
    loaded: "Loaded", path: Path, question: str | None
) -> tuple["ClusteredText", list[str]]:
    """The clusters of a document in a reader, and the word of each token."""
    from fairseq_clusterformer.inference.documents import read_source
    from fairseq_clusterformer.inference.read import DocumentReader
    from fairseq_clusterformer.visual import document
    from fairseq_clusterformer.visual.language_model import describe_model

    if question is None:
        raise bad_option("--question", "missing", "a question, which a reader always needs")
    source = read_source(path, option="--document")
    reader = DocumentReader(loaded)
    section = reader.sections(source, document.TOKENS)[0]
    read = reader.read(reader.question(question), section, 1)
    if not read.clusters:
        allowed = "a reader with a --cluster-attention that clusters, such as kmeans"
        raise bad_option("--checkpoint", loaded.path, allowed, "no layer clusters")
    clustered = document.read_clusters(reader, read, describe_model(loaded))
    return clustered, document.words_of(section)


def _chosen(clustered: "ClusteredText", number: int | None) -> "ClusteredLayer":
    if number is None:
        return clustered.layers[-1]
    by_number = {each.number: each for each in clustered.layers}
    if number not in by_number:
        allowed = ", ".join(map(str, by_number))
        raise bad_option("--layer", number, allowed, "this layer does not cluster")
    return by_number[number]


def _draw_centroids(centroids: Path, out: Path) -> int:
    """Write ``centroids.png`` into a folder; returns how many there are."""
    from fairseq_clusterformer.visual.centroids import save_centroids

    try:
        out.mkdir(parents=True, exist_ok=True)
        number = save_centroids(centroids, out / "centroids.partial")
        (out / "centroids.partial").replace(out / "centroids.png")
    except OSError as error:
        raise bad_option("--out", out, "a folder to write to", error.strerror) from None
    return number


def main(arguments: Sequence[str]) -> int:
    """Run the command.

    Raises:
        UserError: for a mistake of the user's.
    """
    parser = Parser(prog="clusterformer draw", description=__doc__)
    add = parser.add_argument
    add(
        "--checkpoint", type=Path, metavar="PATH", help="of a language model or a reader; a bundle"
    )
    add("--centroids", type=Path, metavar="FILE", help="centroids of images, a .npz file instead")
    add(
        "--text",
        "--document",
        type=Path,
        metavar="FILE",
        help="the passage for a language model; the document for a reader (text, Markdown, HTML "
        "or PDF)",
    )
    add("--question", metavar="TEXT", help="for a reader, which reads the document for a question")
    add("--out", type=Path, metavar="FOLDER", required=True, help="folder for the files")
    add(
        "--data",
        type=Path,
        metavar="FOLDER",
        help="the prepared folder of the training (default: where the checkpoint says)",
    )
    add("--layer", type=int, metavar="N", help="to draw, from 0 (default: the last that clusters)")
    options = vars(parser.parse_args(arguments))
    centroids, out = options.pop("centroids"), options["out"]
    if centroids is not None:
        if extra := [
            name for name, value in options.items() if value is not None and name != "out"
        ]:
            parser.error(f"--centroids is {centroids}; allowed: it alone, without --{extra[0]}")
        print(f"{out / 'centroids.png'}: {_draw_centroids(centroids, out)} centroids")
        return 0
    for name in ("checkpoint", "text"):
        if options[name] is None:
            parser.error(f"--{name} is missing; allowed: --checkpoint and --text, or --centroids")
    label = draw(**options)
    print(f"{out / 'clusters.png'} ({label}) and {out / 'clusters.html'}")
    return 0
