"""Options of commands that prepare text in subwords."""

import argparse
from functools import partial
from pathlib import Path

from fairseq_clusterformer.cli import common
from fairseq_clusterformer.cli.common import Parser
from fairseq_clusterformer.corpora import SUBWORDS
from fairseq_clusterformer.corpora.vocabulary import Vocabulary
from fairseq_clusterformer.errors import bad_option


def add_subwords(parser: Parser) -> None:
    """The options that :func:`take_vocabulary` takes."""
    units = parser.add_mutually_exclusive_group()
    about = f"pieces of a sentencepiece model to train on train (default: {SUBWORDS} or fewer)"
    common.add(units, "--sentencepiece", about)
    add_existing(parser, units)


def add_existing(parser: Parser, units: argparse._ActionsContainer) -> None:
    """Those of an existing model, which exclude others in ``units``."""
    add = partial(common.add, units)
    add("--sentencepiece-model", "an existing sentencepiece model", metavar="FILE", type=Path)
    add(
        "--gpt2-bpe",
        "GPT-2's subwords, which RoBERTa has: a folder with encoder.json and vocab.bpe",
        metavar="DIR",
        type=Path,
    )
    about = "tokenizer.json of a pre-trained model, such as BERT's"
    add("--tokenizer", about, metavar="FILE", type=Path)
    about = "the dictionary of a pretrained model (RoBERTa's dict.txt; default: all subwords)"
    common.add(parser, "--dict", about, metavar="FILE", type=Path)


def take_existing(options: dict) -> Vocabulary | None:
    """Take the options of :func:`add_existing` out; None if no model is given.

    Raises:
        UserError: a model or a dictionary that does not exist, or a dictionary alone.
    """
    gpt2_bpe, model, tokenizer, words = (
        options.pop(name) for name in ("gpt2_bpe", "sentencepiece_model", "tokenizer", "dict")
    )
    if tokenizer and (not tokenizer.is_file() or tokenizer.suffix != ".json"):
        raise bad_option("--tokenizer", tokenizer, "a tokenizer.json", "no such file")
    if not (given := gpt2_bpe or model or tokenizer):
        if words:
            raise bad_option("--dict", words, "with --gpt2-bpe or --sentencepiece-model only")
        return None
    if gpt2_bpe and not gpt2_bpe.is_dir():
        allowed = "a folder with encoder.json and vocab.bpe"
        raise bad_option("--gpt2-bpe", gpt2_bpe, allowed, "no such folder")
    if model and not model.is_file():
        raise bad_option("--sentencepiece-model", model, "a sentencepiece model", "no such file")
    if words and not words.is_file():
        raise bad_option("--dict", words, "a dictionary of fairseq's", "no such file")
    return Vocabulary(given, dictionary=words)


def take_vocabulary(options: dict) -> Vocabulary:
    """Take the options of :func:`add_subwords` out: a model, or one to train."""
    pieces = options.pop("sentencepiece")
    return take_existing(options) or Vocabulary(train=pieces or SUBWORDS, at_most=pieces is None)
