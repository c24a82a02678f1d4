"""Options that the preparation of several tasks has: files of splits, subwords."""

import argparse
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from fairseq_clusterformer.corpora import SPLITS, SUBWORDS
from fairseq_clusterformer.corpora.vocabulary import Vocabulary
from fairseq_clusterformer.errors import UserError, bad_option, no_file

from ..common import Parser, add

Files = dict[str, list[Path]]  # of each split


def folder(text: str) -> Path:
    """A type of option: a folder that is there."""
    if not (path := Path(text)).is_dir():
        raise argparse.ArgumentTypeError(f"is {text}: no such folder; allowed: a folder")
    return path


def file(what: str, is_json: bool | None = None) -> Callable[[str], Path]:
    """A type of option: a plain file; its name says whether it `is_json`, which decides how it is
    read."""

    def read(text: str) -> Path:
        problem = "" if (path := Path(text)).is_file() else no_file(path)
        if is_json not in (None, path.suffix == ".json"):
            problem = problem or "its name says something else"
        if problem:
            raise argparse.ArgumentTypeError(f"is {text}: {problem}; allowed: {what}")
        return path

    return read


def add_files(parser: Parser, source: str) -> None:
    """The options of a split's files, to be used in the place of what is found in ``source``."""
    for split in SPLITS:
        about = f"the files of {split}, instead of those found in {source}"
        parser.add(f"--{split} PATH", about, nargs="+")


def add_workers(parser: Parser) -> None:
    parser.add("--workers N", "processes (default: one for each core)")


def files_of_splits(
    options: dict, found: Mapping[str, list[Path]], source: Path | None, patterns: Sequence[str]
) -> Files:
    """Take the files of each split out, or those found in --source by its patterns; raises
    UserError if there are none, or one is missing."""
    splits = {split: options.pop(split) or found.get(split) for split in SPLITS}
    splits = {split: [p.absolute() for p in paths] for split, paths in splits.items() if paths}
    if not splits:
        allowed = f"a folder with {', '.join(patterns)}; or --train, --valid or --test with files"
        raise bad_option(
            "--source", source or "missing", allowed, "nothing found" if source else ""
        )
    for split, paths in splits.items():
        for path in paths:  # which may lead into an archive
            if not path.exists() and not any(part.is_file() for part in path.parents):
                raise bad_option(f"--{split}", path, "files of the corpus", "no such file")
    return splits


def check_train(splits: Files, vocabulary: Vocabulary, shares: Collection[str] = ()) -> None:
    """Raise UserError if train is needed, and is not among the splits."""
    if "train" not in splits and (shares or vocabulary.train):
        problem = "there is no train to draw splits from, or to learn subwords from"
        allowed = "--train with files; or an existing model of subwords, without fractions"
        raise UserError(f"{problem}; allowed: {allowed}")


def add_subwords(parser: Parser) -> None:
    """The options that :func:`take_vocabulary` takes."""
    units = parser.add_mutually_exclusive_group()
    about = f"pieces of a sentencepiece model to train on train (default: {SUBWORDS} or fewer)"
    add(units, "--sentencepiece VOCAB", about)
    add_existing(parser, units)


def add_tokenizer(parser: argparse._ActionsContainer) -> None:
    about, what = "the tokenizer.json of a pre-trained model, such as BERT's", "a tokenizer.json"
    add(parser, "--tokenizer FILE", about, type=file(what, is_json=True))


def add_existing(parser: Parser, units: argparse._ActionsContainer) -> None:
    """Those of an existing model, which exclude others in ``units``."""
    add_tokenizer(units)
    what = "a sentencepiece model, or --tokenizer FILE with a prepared folder's tokenizer.json"
    about = "an existing sentencepiece model"
    add(units, "--sentencepiece-model FILE", about, type=file(what, is_json=False))
    about = "GPT-2's subwords, which RoBERTa has: a folder with encoder.json and vocab.bpe"
    add(units, "--gpt2-bpe DIR", about, type=folder)
    about = "the dictionary of a pretrained model (RoBERTa's dict.txt; default: all subwords)"
    parser.add("--dict FILE", about, type=file("a dictionary of fairseq's"))


def take_existing(options: dict) -> Vocabulary | None:
    """Take the options of an existing model out; None if none is given."""
    names = ("gpt2_bpe", "sentencepiece_model", "tokenizer")
    given = [path for name in names if (path := options.pop(name, None))]
    words = options.pop("dict", None)
    if words and not given:
        allowed = "with --gpt2-bpe, --sentencepiece-model or --tokenizer only"
        raise bad_option("--dict", words, allowed)
    return Vocabulary(given[0], dictionary=words) if given else None


def take_vocabulary(options: dict, usual: int | None = SUBWORDS) -> Vocabulary | None:
    """Take a model, or one to train, out of the options. `usual`: pieces to train, or fewer, where
    no model is given; None: none is trained."""
    pieces, existing = options.pop("sentencepiece"), take_existing(options)
    if existing or not (pieces or usual):
        return existing
    return Vocabulary(train=pieces or usual, at_most=pieces is None)
