"""Options that the preparation of several tasks has: files of splits, subwords."""

import argparse
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from fairseq_clusterformer.corpora import SPLITS, SUBWORDS
from fairseq_clusterformer.corpora.vocabulary import Vocabulary
from fairseq_clusterformer.errors import UserError, bad_option, check_file

from ..common import Parser, add

Files = dict[str, list[Path]]  # of each split


def add_files(parser: Parser, source: str) -> None:
    """The options of a split's files, to be used in the place of what is found in ``source``."""
    for split in SPLITS:
        about = f"the files of {split}, instead of those found in {source}"
        parser.add(f"--{split} PATH", about, nargs="+")


TOKENIZER = ("--tokenizer FILE", "the tokenizer.json of a pre-trained model, such as BERT's")
WORKERS = ("--workers N", "processes (default: one for each core)")


def files_of_splits(
    options: dict,
    found: Mapping[str, list[Path]],
    source: Path | None,
    patterns: Sequence[str],
    option: str = "--source",
) -> Files:
    """Take out the files of each split, or take those found in a source; UserError: no file."""
    splits = {split: options.pop(split) or found.get(split) for split in SPLITS}
    splits = {split: [p.absolute() for p in paths] for split, paths in splits.items() if paths}
    if not splits:
        allowed = f"a folder with {', '.join(patterns)}; or --train, --valid or --test with files"
        raise bad_option(option, source or "missing", allowed, "nothing found" if source else "")
    return splits


def check_train(splits: Files, vocabulary: Vocabulary, shares: Collection[str] = ()) -> None:
    """Raise UserError if train is needed, and is not among the splits."""
    if "train" not in splits and (shares or vocabulary.train):
        problem = "there is no train to draw splits from, or to learn subwords from"
        allowed = "--train with files; or an existing model of subwords, without fractions"
        raise UserError(f"{problem}; allowed: {allowed}")


def add_subwords(parser: Parser, about: str = "") -> argparse._MutuallyExclusiveGroup:
    """Add the options that :func:`take_vocabulary` takes, the first with a help of its own; return
    the group in which they exclude others."""
    units = parser.add_mutually_exclusive_group()
    usual = f"pieces of a sentencepiece model to train on train (default: {SUBWORDS} or fewer)"
    add(units, "--sentencepiece VOCAB", about or usual)
    add(units, *TOKENIZER)
    add(units, "--sentencepiece-model FILE", "an existing sentencepiece model")
    about = "GPT-2's subwords, which RoBERTa has: a folder with encoder.json and vocab.bpe"
    add(units, "--gpt2-bpe DIR", about)
    about = "the dictionary of a pretrained model (RoBERTa's dict.txt; default: all subwords)"
    parser.add("--dict FILE", about)
    return units


#: files of an existing model, and what they are
_FILES = {
    "sentencepiece_model": "a sentencepiece model, or --tokenizer FILE with a tokenizer.json",
    "tokenizer": "a tokenizer.json",
    "dict": "a dictionary of fairseq's",
}


def take_vocabulary(options: dict, usual: int | None = SUBWORDS) -> Vocabulary | None:
    """Take a model, or one to train, out of the options. `usual`: pieces to train, or fewer, where
    no model is given; None: none is trained."""
    pieces, found = options.pop("sentencepiece", None), options.pop("gpt2_bpe", None)
    if found and not found.is_dir():
        raise bad_option("--gpt2-bpe", found, "a folder", "no such folder")
    words = options.get("dict")
    for name, what in _FILES.items():
        if path := options.pop(name, None):
            option = f"--{name.replace('_', '-')}"
            check_file(option, path, what)
            if (path.suffix == ".json") != (name == "tokenizer"):  # it decides how it is read
                raise bad_option(option, path, what, "its name says something else")
            found = path if path != words else found
    if words and not found:
        allowed = "with --gpt2-bpe, --sentencepiece-model or --tokenizer only"
        raise bad_option("--dict", words, allowed)
    if found or not (pieces or usual):
        return Vocabulary(found, dictionary=words) if found else None
    return Vocabulary(train=pieces or usual, at_most=pieces is None)
