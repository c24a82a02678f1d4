"""Language modelling data for fairseq: your own text, enwik8, WikiText-103.

DEST becomes a folder for fairseq's language_modeling task: dict.txt, and train, valid and test as
.bin and .idx. Its prepared.json holds the options, and counts the documents, lines, bytes and
tokens of each split.

Text is split as its files are named (train-00.txt.xz, valid.txt, test/...). Where no name says
it, whole documents are drawn by a checksum of their text. Fewer than 20 files, each a document,
are cut at line ends: train, valid and test in order.
"""

from collections.abc import Sequence

from fairseq_clusterformer.corpora.texts import KNOWN, prepare_known, prepare_text

from ..common import WORKERS, Parser, add, add_dest, add_subwords, prepare_folder, take_vocabulary


def main(arguments: Sequence[str]) -> int:
    parser = Parser(prog="clusterformer prepare lm", description=__doc__)
    corpora = parser.corpora()
    text = corpora.add_parser("text", help="your own text", description=__doc__)
    about = "a folder, searched recursively except for hidden and binary files, or one file; text "
    text.add("source SOURCE", about + "is UTF-8; .xz, .gz and .bz2 are unpacked")
    add_dest(text)
    about = "that many subwords, from a model that is trained on train and put into DEST; a line "
    units = add_subwords(text, about + "ends in </s>")
    about = "one token per byte, without </s> (the default); use fairseq's --sample-break-mode "
    add(units, "--bytes", about + "none")
    about = "one token per word of train, split at blanks, for text that is tokenised already; "
    add(units, "--words", about + "other words become <unk>; a line ends in </s>")
    about = "a line for each sentence, and an empty one behind each document, as etc_masked_lm "
    text.add("--sentences", about + "reads them")
    about = "the line that ends a document; it becomes no token (default: each file is a document)"
    text.add("--document-separator LINE", about)
    for split in ("valid", "test"):
        about = f"the part of all bytes that becomes {split}, unless files are named after splits"
        text.add(f"--{split}-fraction F", about, default=0.05)
    text.add(*WORKERS)
    for name, known in KNOWN.items():
        corpus = corpora.add_parser(name, help=known.about, description=__doc__)
        corpus.set_defaults(known=known)
        add_dest(corpus, name)
        places = f"{', '.join(known.archive.members)} or {known.archive.name}"
        about = f"a folder that holds {places}; without it, {known.archive.url} is downloaded"
        corpus.add("--source DIR", about)
        corpus.add(*WORKERS)
    options = vars(parser.parse_args(arguments))
    if options.pop("corpus") != "text":
        return prepare_folder({"prepare": prepare_known, **options})
    options.pop("bytes")
    options["vocabulary"] = take_vocabulary(options, usual=None)
    return prepare_folder({"prepare": prepare_text, **options})
