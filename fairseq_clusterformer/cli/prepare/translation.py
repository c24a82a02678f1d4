"""Translation data for fairseq: your own pairs of sentences, Multi30k, IWSLT14 or WMT14.

DEST becomes a folder for fairseq's translation task, in both directions: one dictionary for both
languages, and train, valid and test (and test1) as .bin and .idx. It also holds the model of the
subwords, and in raw/ the original text of valid and test, to compare translations with. Its
prepared.json holds the options, and counts what was kept and dropped of each split.
"""

import argparse
from collections.abc import Sequence

from fairseq_clusterformer.corpora import SUBWORDS
from fairseq_clusterformer.corpora.pairs import CORPORA, known_corpus, own_pairs
from fairseq_clusterformer.corpora.translation import prepare

from ..common import WORKERS, Parser, add_dest, prepare_folder

_FILES = "PREFIX stands for the two files PREFIX.{0} and PREFIX.{1} of aligned lines, or is "
_FILES += "itself one file of lines with {2}; plain, .gz, .xz or .bz2"


def main(arguments: Sequence[str]) -> int:
    parser = Parser(prog="clusterformer prepare translation", description=__doc__)
    corpora = parser.corpora()
    own = corpora.add_parser("text", help="your own pairs of sentences", description=__doc__)
    add_dest(own)
    add = own.add
    for side in ("source", "target"):
        about = f"the code of the {side} language, such as fr or en"
        add(f"--{side}-lang LANG", about, type=_language, required=True)
    about = _FILES.format("SOURCE_LANG", "TARGET_LANG", "source<TAB>target")
    add("--train PREFIX", about, nargs="+", required=True)
    about = "the part of all different pairs that becomes {} (default: 0.05, 2,000 pairs at "
    about += "most); a training pair that shares a sentence with valid or test is dropped"
    for split in ("valid", "test"):
        add(f"--{split} PREFIX", "as --train (default: drawn from --train)", nargs="+", default=())
        add(f"--{split}-fraction F", about.format(split))
    add("--lowercase", "make all text lower case")
    _add_shared_options(own, None, "sentencepiece")
    for name, known in CORPORA.items():
        corpus = corpora.add_parser(name, help=known.about, description=__doc__)
        add_dest(corpus, name)
        places = dict.fromkeys(archive.url.rsplit("/", 1)[0] for archive in known.archives)
        about = f"a folder that holds {', '.join(archive.name for archive in known.archives)}"
        about += f", unpacked or not; without it, they are downloaded from {' and '.join(places)}"
        corpus.add("--source DIR", about)
        files = _FILES.format("de", "en", "English<TAB>German")
        about = f"more training text, not tokenised: {files}; a pair that shares a sentence with "
        about += "valid or test is dropped; may be repeated"
        corpus.add("--extra-train PREFIX", about, action="append", default=[])
        _add_shared_options(corpus, known.operations, "subword-nmt")
    options = vars(parser.parse_args(arguments))
    options["bpe"] = options.pop("vocabulary").replace("-", "_")
    name = options["corpus"]
    if name == "text":
        languages = options.pop("source_lang"), options.pop("target_lang")
        files = {split: options.pop(split) for split in ("train", "valid", "test")}
        fractions = {split: options.pop(f"{split}_fraction") for split in ("valid", "test")}
        options["corpus"] = own_pairs(languages, files, fractions, options.pop("lowercase"))
    else:
        options["corpus"] = known_corpus(CORPORA[name], options.pop("source"))
    return prepare_folder({"prepare": prepare, **options})


def _language(text: str) -> str:
    if not text.replace("_", "").isalnum():
        raise argparse.ArgumentTypeError(f"is {text}; allowed: letters, digits and _, such as en")
    return text


def _add_shared_options(parser: Parser, operations: int | None, vocabulary: str) -> None:
    about = "subwords to learn: merges of subword-nmt, or pieces of sentencepiece"
    if not operations:
        about += f" (default: {SUBWORDS}, or fewer where the text gives fewer)"
    parser.add("--bpe-operations N", about, default=operations)
    about = "subword-nmt: subwords of the tokens of Moses, which knows some 40 languages; "
    about += "sentencepiece: subwords of the text as it is, in any language"
    parser.add("--vocabulary", about, choices=("subword-nmt", "sentencepiece"), default=vocabulary)
    parser.add(*WORKERS)
