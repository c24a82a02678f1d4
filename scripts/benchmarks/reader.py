"""Time and memory of a reader's answer by the document's length.

    python -m scripts.benchmarks.reader --arch clusterformer_reader_base --lengths 2000 100000
    python -m scripts.benchmarks.reader --arch qanet_reader_tiny --attention full window+taught

Measures forward passes without gradients of models of random weights. ``second`` is the time of
another question about the same document, where the model keeps the document's encoding. Seconds
are of the processor, to which other programs do not add; on CUDA they are of the clock. The best
of several counts. Each measurement has a process of its own; the memory at the peak includes all
that was loaded (on CUDA: tensors only).
"""

import logging
import sys
from argparse import Namespace
from types import SimpleNamespace

import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_NAME_REGISTRY, ARCH_MODEL_REGISTRY

from fairseq_clusterformer.readers.word_reader import WordReader
from scripts.benchmarks import common

WORDS = 50_265  # of RoBERTa; every fourth continues a word
QUESTION = 20  # tokens
#: models that read so, and the option with which their attention is chosen
MODELS = {"clusterformer_reader": "cluster_attention", "qanet_reader": "attention"}
MODELS |= {"bidaf_reader": None}
ARCHITECTURES = [name for name, of in ARCH_MODEL_NAME_REGISTRY.items() if of in MODELS]
COLUMNS = common.columns(
    "attention | tokens: , | seconds: .3f | second: .3f | times half the length: .2f | "
    "times as fast as full: .2f | peak MiB: ,.0f"
)


def make_reader(args: Namespace, attention: str | None):
    """The model of --arch."""
    dictionary = Dictionary()
    texts = [""] * dictionary.nspecial
    for word in range(WORDS - len(dictionary)):
        dictionary.add_symbol(str(word))
        texts.append(f" {word}" if word % 4 else str(word))
    options = Namespace(max_positions=0)
    given = {MODELS[ARCH_MODEL_NAME_REGISTRY[args.arch]]: attention, "num_clusters": args.clusters}
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
    torch.manual_seed(0)
    model = make_reader(args, name)
    question, short, document = (random_words(n, args.device) for n in (QUESTION, 1000, length))
    model(question, short)

    def least(*given) -> float:
        return min(
            common.own_seconds(lambda: model(question, *given), args.device)
            for _ in range(args.repeats)
        )

    row = {"seconds": least(document)}
    if isinstance(model, WordReader):
        row["second"] = least(document, None, torch.stack(model.encode(document)))
    return row | {"peak MiB": common.peak_memory(args.device)}


def main(argv: list[str] | None = None) -> int:
    logging.disable(logging.INFO)
    numbers = {
        "--lengths": ([2000, 4000, 8000, 16000, 32000], "tokens"),
        "--clusters": (None, "default: the model's"),
    }
    parser = common.make_parser("scripts.benchmarks.reader", __doc__, numbers)
    parser.add_argument("--attention", nargs="+", metavar="SPEC", help="default: the model's")
    parser.add_argument("--arch", choices=ARCHITECTURES, default="clusterformer_reader_tiny")
    args = parser.parse_args(argv)
    common.settle_device(parser, args)
    if MODELS[ARCH_MODEL_NAME_REGISTRY[args.arch]] is None:
        for name in ("attention", "clusters"):
            if (value := getattr(args, name)) is not None:
                shown = value[0] if name == "attention" else value
                parser.error(f"--{name} is {shown}; allowed: none, for {args.arch} has none")
    shown = ("arch", "clusters", "impl", "repeats")
    names = args.attention or [None]
    return common.report_by_length(parser, args, COLUMNS, shown, names, measure)


if __name__ == "__main__":
    sys.exit(main())
