"""Time and memory of a reader's answer by the document's length.

    python -m scripts.benchmarks.reader --arch clusterformer_reader_base --lengths 2000 100000
    python -m scripts.benchmarks.reader --user-dir examples/xlqa --arch qanet_reader_tiny \
        --attention full window+taught

Measures forward passes without gradients of models of random weights. Seconds are of the
processor, to which other programs do not add; on CUDA they are of the clock. The best of several
counts. Each measurement has a process of its own; the memory at the peak includes all that was
loaded (on CUDA: tensors only).
"""

import logging
import sys
from argparse import Namespace
from types import SimpleNamespace

import torch
from fairseq.data import Dictionary
from fairseq.models import (
    ARCH_CONFIG_REGISTRY,
    ARCH_MODEL_NAME_REGISTRY,
    ARCH_MODEL_REGISTRY,
    MODEL_DATACLASS_REGISTRY,
)
from fairseq.utils import import_user_module

from fairseq_clusterformer.models.reader import ReaderModel
from scripts.benchmarks import common

WORDS = 50_265  # of RoBERTa; every fourth continues a word
QUESTION = 20  # tokens
COLUMNS = common.columns(
    "attention | tokens: , | seconds: .3f | times half the length: .2f | "
    "times as fast as full: .2f | peak MiB: ,.0f"
)


def attention_option(arch: str) -> str | None:
    """The option with which a reader's attention is chosen; None: it has no attention."""
    options = vars(MODEL_DATACLASS_REGISTRY[ARCH_MODEL_NAME_REGISTRY[arch]])
    return next((name for name in ("cluster_attention", "attention") if name in options), None)


def make_reader(args: Namespace, attention: str | None):
    """The model of --arch."""
    dictionary = Dictionary()
    texts = [""] * dictionary.nspecial
    for word in range(WORDS - len(dictionary)):
        dictionary.add_symbol(str(word))
        texts.append(f" {word}" if word % 4 else str(word))
    options = Namespace(max_positions=0)
    given = {attention_option(args.arch): attention, "num_clusters": args.clusters}
    vars(options).update({name: value for name, value in given.items() if value is not None})
    options.attention_kernel = args.impl  # a reader without attention does not look at it
    ARCH_CONFIG_REGISTRY[args.arch](options)
    task = SimpleNamespace(source_dictionary=dictionary, symbol_texts=texts)
    return ARCH_MODEL_REGISTRY[args.arch].build_model(options, task).eval().to(args.device)


def random_words(length: int, device: str) -> torch.Tensor:
    return torch.randint(Dictionary().nspecial, WORDS, (1, length), device=device)


@torch.no_grad()
def measure(name: str | None, length: int, args: Namespace) -> dict:
    """Least seconds of the repeats, and MiB; for a process of its own."""
    logging.disable(logging.INFO)
    import_user_module(args)
    torch.manual_seed(0)
    model = make_reader(args, name)
    question, short, document = (random_words(n, args.device) for n in (QUESTION, 1000, length))
    model(question, short)
    seconds = min(
        common.own_seconds(lambda: model(question, document), args.device)
        for _ in range(args.repeats)
    )
    return {"seconds": seconds, "peak MiB": common.peak_memory(args.device)}


def main(argv: list[str] | None = None) -> int:
    logging.disable(logging.INFO)
    numbers = {
        "--lengths": ([2000, 4000, 8000, 16000, 32000], "tokens"),
        "--clusters": (None, "default: the model's"),
    }
    parser = common.make_parser("scripts.benchmarks.reader", __doc__, numbers)
    parser.add("--attention SPEC", "default: the model's", nargs="+")
    parser.add("--arch NAME", "of the model", default="clusterformer_reader_tiny")
    parser.add("--user-dir FOLDER", "the plug-in of --arch, such as examples/xlqa", type=str)
    args = parser.parse_args(argv)
    common.settle_device(parser, args)
    import_user_module(args)
    readers = [name for name, of in ARCH_MODEL_REGISTRY.items() if issubclass(of, ReaderModel)]
    if args.arch not in readers:
        parser.error(f"--arch is {args.arch}; allowed: {', '.join(readers)}")
    if attention_option(args.arch) is None:
        for name, value in (("attention", args.attention), ("clusters", args.clusters)):
            if value is not None:
                value = value[0] if name == "attention" else value
                parser.error(f"--{name} is {value}; allowed: none, for {args.arch} has none")
    shown = ("arch", "clusters", "impl", "repeats")
    names = args.attention or [None]
    return common.report_by_length(parser, args, COLUMNS, shown, names, measure)


if __name__ == "__main__":
    sys.exit(main())
