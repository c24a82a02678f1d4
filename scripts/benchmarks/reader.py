"""Time and memory of ``clusterformer_reader`` by a document's length.

    python -m scripts.benchmarks.reader --arch clusterformer_reader_base --lengths 2000 100000

Measures forward passes without gradients of a model of random weights. Seconds are of the
processor, to which other programs do not add; on CUDA they are of the clock. The best of several
counts. Each length has a process of its own; the memory at the peak includes all that was loaded
(on CUDA: tensors only).
"""

import logging
import sys
import time
from argparse import Namespace
from types import SimpleNamespace

import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_NAME_REGISTRY

from fairseq_clusterformer.attention import attention_kinds
from fairseq_clusterformer.models.clusterformer_reader import ClusterformerReader
from scripts.benchmarks import common

WORDS = 50_265  # of RoBERTa
QUESTION = 20  # tokens
ARCHITECTURES = [
    name for name, model in ARCH_MODEL_NAME_REGISTRY.items() if model == "clusterformer_reader"
]
COLUMNS = {"tokens": ",", "seconds": ".3f", "times the row above": ".2f", "peak MiB": ",.0f"}


def make_reader(args: Namespace) -> ClusterformerReader:
    """The model of --arch."""
    dictionary = Dictionary()
    for word in range(WORDS - len(dictionary)):
        dictionary.add_symbol(str(word))
    options = Namespace(cluster_attention=args.attention, attention_kernel=args.impl)
    if args.clusters is not None:
        options.num_clusters = args.clusters
    ARCH_CONFIG_REGISTRY[args.arch](options)
    task = SimpleNamespace(source_dictionary=dictionary)
    return ClusterformerReader.build_model(options, task).eval().to(args.device)


def random_words(length: int, device: str) -> torch.Tensor:
    return torch.randint(Dictionary().nspecial, WORDS, (1, length), device=device)


@torch.no_grad()
def seconds_and_peak(
    model: ClusterformerReader, question: torch.Tensor, document: torch.Tensor
) -> tuple[float, float]:
    """Seconds and MiB of one forward pass."""
    cuda = document.is_cuda
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    clock = time.perf_counter if cuda else time.process_time
    start = clock()
    model(question, document)
    if cuda:
        torch.cuda.synchronize()
    return clock() - start, common.peak_memory("cuda" if cuda else "cpu")


def measure_one(args: Namespace, length: int) -> tuple[float, float]:
    """Least seconds of the repeats, and MiB; for a process of its own."""
    logging.disable(logging.INFO)
    torch.manual_seed(0)
    model = make_reader(args)
    question, short, document = (random_words(n, args.device) for n in (QUESTION, 1000, length))
    seconds_and_peak(model, question, short)
    return min(seconds_and_peak(model, question, document) for _ in range(args.repeats))


def measure_lengths(args: Namespace) -> list[dict]:
    """Print a row for each length, and return the rows."""
    print(common.table_head(COLUMNS))
    rows: list[dict] = []
    for length in args.lengths:
        seconds, peak = common.in_own_process(measure_one, args=args, length=length)
        times = seconds / rows[-1]["seconds"] if rows else None
        rows.append(dict(zip(COLUMNS, (length, seconds, times, peak), strict=True)))
        print(common.table_row(rows[-1], COLUMNS), flush=True)
    return rows


def main(argv: list[str] | None = None) -> int:
    logging.disable(logging.INFO)
    numbers = {
        "--lengths": ([2000, 4000, 8000, 16000, 32000], "tokens"),
        "--clusters": (None, "default: the model's"),
    }
    parser = common.make_parser("scripts.benchmarks.reader", __doc__, numbers)
    parser.add_argument("--attention", choices=attention_kinds(), default="kmeans")
    parser.add_argument("--arch", choices=ARCHITECTURES, default="clusterformer_reader_tiny")
    args = parser.parse_args(argv)
    common.settle_device(parser, args)
    torch.manual_seed(0)
    try:
        rows = measure_lengths(args)
    except common.Unavailable as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 1
    shown = ("attention", "arch", "clusters", "impl", "repeats")
    settings = ", ".join(f"{name} {getattr(args, name)}" for name in shown)
    common.write_record(args.json, parser.prog, args.device, settings, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
