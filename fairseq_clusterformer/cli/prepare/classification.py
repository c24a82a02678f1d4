"""Prepare your own labelled texts and pairs for fairseq.

The folder that is made holds ``input0`` (for pairs also ``input1``) and ``label``. Each has a
``dict.txt``, and ``train``, ``valid`` and ``test`` as ``.bin`` and ``.idx``. fairseq's
``sentence_prediction`` reads it too. ``data.json`` lists counts, classes, tokens and what was
dropped; ``prepared.json`` lists the options.
"""

import argparse
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import chain
from pathlib import Path

from fairseq_clusterformer.corpora.classification import VOCABULARY_SIZE, prepare
from fairseq_clusterformer.corpora.labelled import LabelledCorpus, own_corpus
from fairseq_clusterformer.errors import bad_option
from fairseq_clusterformer.moved import check_corpus

from ..common import TOKENIZER, Parser, add_dest, prepare_folder, take_vocabulary

_OWN = """Prepare your own labelled texts or pairs, in the folder DEST.

SOURCE is a file, or a folder of files whose names contain train, valid (or dev) and test, or a
folder with the folders train and test, or a folder per label, whose files are texts (such as
pos/*.txt and neg/*.txt). What a file holds is said by its suffix:

  .tsv, .csv   columns label, text and for pairs text2; or others, named by a header line
  .jsonl       objects {"label": ..., "text": ...}, for pairs text and text2, or text1 and text2
  others       lines LABEL text, or as .tsv if the first line has a tab

Texts are UTF-8; .gz, .bz2 and .xz are unpacked. Without files of valid and test, both are drawn
from train, with an equal share of each label. If one of them is given, only valid is drawn.
"""


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names) or len(names) > 2:
        raise argparse.ArgumentTypeError(f"is {text}; allowed: one name, or two with a comma")
    return names


def _add_common_options(parser: Parser, made: str) -> None:
    add = parser.add
    add("--seed N", "of the folds, or of the splits that are drawn", default=1)
    about = "the most words of train in the dictionary, 4 special symbols included"
    add("--vocabulary-size N", about, default=VOCABULARY_SIZE)
    about = "how often a word must be in train to be in the dictionary"
    add("--min-count N", about, default=1)
    about = "the most tokens of a text, </s> included; longer ones lose their end (default: 1500 "
    add("--max-length N", about + "for 20news, any number for the others)")
    add(*TOKENIZER)
    add("--force", f"replace {made}, which must hold nothing but what this command wrote")


def main(arguments: Sequence[str]) -> int:
    check_corpus("classification", arguments)
    parser = Parser(prog="clusterformer prepare classification", description=__doc__)
    about = "your own labelled texts or pairs"
    own = parser.corpora().add_parser("text", description=_OWN, help=about)
    own.add("source SOURCE", "a file or a folder; see above")
    add_dest(own)
    add = own.add
    for split in ("valid", "test"):
        add(f"--{split}-fraction F", f"the share of train that is drawn for {split}", default=0.1)
    about = "the header's or JSON's name of the label"
    add("--label-field NAME", about, dest="label", default="label")
    about = "the same of the text, or of both texts, as in question,answer (default: text, or "
    about += "text and text2, or text1 and text2)"
    add("--text-fields NAMES", about, dest="texts", type=_names, default=())
    add("--tokenised", "words stand between blanks (default: punctuation marks become words)")
    _add_common_options(own, "DEST")
    options = vars(parser.parse_args(arguments))
    names = ("source", "label", "texts", "tokenised")
    corpus = own_corpus(**{name: options.pop(name) for name in names})
    for path in chain.from_iterable(corpus.files.values()):
        if options["dest"].resolve().is_relative_to(path.resolve()):
            problem = f"lies in {path}, where the next run would read it"
            raise bad_option("DEST", options["dest"], "a folder elsewhere", problem)
    if "valid" in corpus.files or "test" in corpus.files:
        options["test_fraction"] = 0
    return _run(corpus, options)


def prepare_known(
    prog: str,
    about: str,
    arguments: Sequence[str],
    *,
    names: Iterable[str],
    divided: Collection[str],
    find: Callable[[str, Path], LabelledCorpus],
) -> int:
    """Run a command that prepares data sets of these names, which `find` finds in a folder; of
    those that are `divided`, valid is drawn from train. Returns the exit status."""
    parser = Parser(prog=prog, description=about)
    corpora = parser.corpora()
    for name in names:
        known = corpora.add_parser(name, description=about, help=f"DEST/{name} is made")
        known.add("dest DEST", f"where to make {name}; where it is there, nothing is done")
        where = "the folder with the data set's files, or one that holds it"
        known.add("--source DIR", where, required=True)
        if name in divided:
            known.add("--valid-fraction F", "the share of train that becomes valid", default=0.1)
        _add_common_options(known, f"DEST/{name}")
    options = vars(parser.parse_args(arguments))
    options["dest"] /= options["corpus"]
    return _run(find(options["corpus"], options.pop("source")), options)


def _run(corpus: LabelledCorpus, options: dict) -> int:
    vocabulary = take_vocabulary(options, usual=None)
    for option, usual in (("vocabulary-size", VOCABULARY_SIZE), ("min-count", 1)):
        if vocabulary and (given := options[option.replace("-", "_")]) != usual:
            allowed = "without --tokenizer, which says its words"
            raise bad_option(f"--{option}", given, allowed)
    shares = {"test": options.pop("test_fraction", 0), "valid": options.pop("valid_fraction", 0.1)}
    how = {"corpus": corpus, "shares": shares, "vocabulary": vocabulary}
    return prepare_folder({"prepare": prepare, **options, **how})
