#!/usr/bin/env python3
"""What ``clusterformer_reader`` costs by the length of a document, and K-Means of a memory bank.

    python scripts/benchmark_reader.py
    python scripts/benchmark_reader.py --memory --arch clusterformer_reader_base --lengths 100000
    python scripts/benchmark_reader.py --kmeans

Forward passes without gradients of a model of random weights: seconds of the processor, which
other programs on it do not add to, or of the clock on CUDA. The lengths in turns, the best of
some; with --memory each once, in a process of its own, whose memory at its peak is counted with
all that was loaded (on CUDA, always: of the tensors).
"""

import logging
import sys
import time
from argparse import Namespace
from types import SimpleNamespace

import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_NAME_REGISTRY
from torch.nn.functional import normalize

from fairseq_clusterformer.attention import attention_kinds
from fairseq_clusterformer.cli.common import Parser, whole_number
from fairseq_clusterformer.clustering.kmeans import spherical_kmeans
from fairseq_clusterformer.models.clusterformer_reader import ClusterformerReader
from scripts.benchmarks.common import (
    Unavailable,
    add_device_options,
    in_own_process,
    markdown,
    peak_memory,
    settle_device,
)

WORDS = 50_265  # of RoBERTa
QUESTION = 20  # tokens
ARCHITECTURES = [
    name for name, model in ARCH_MODEL_NAME_REGISTRY.items() if model == "clusterformer_reader"
]
CLUSTERS = 512  # of K-Means alone


def make_reader(args: Namespace) -> ClusterformerReader:
    """An architecture, or four layers, of which one goes across windows of the paper's size."""
    dictionary = Dictionary()
    for word in range(WORDS - len(dictionary)):
        dictionary.add_symbol(str(word))
    options = Namespace(cluster_attention=args.attention, attention_kernel=args.impl)
    if args.clusters is not None:
        options.num_clusters = args.clusters
    if args.arch is not None:
        ARCH_CONFIG_REGISTRY[args.arch](options)
    else:
        options.encoder_layers, options.cluster_layers = 4, "2"
        options.encoder_embed_dim = args.width
        options.encoder_ffn_embed_dim = 4 * args.width
        options.encoder_attention_heads = max(1, args.width // 32)
    task = SimpleNamespace(source_dictionary=dictionary)
    return ClusterformerReader.build_model(options, task).eval().to(args.device)


def random_words(length: int, device: str) -> torch.Tensor:
    return torch.randint(Dictionary().nspecial, WORDS, (1, length), device=device)


@torch.no_grad()
def seconds_and_peak(
    model: ClusterformerReader, question: torch.Tensor, document: torch.Tensor
) -> tuple[float, float]:
    """Of one forward pass; MiB."""
    cuda = document.is_cuda
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    clock = time.perf_counter if cuda else time.process_time
    start = clock()
    model(question, document)
    if cuda:
        torch.cuda.synchronize()
    return clock() - start, peak_memory("cuda" if cuda else "cpu")


def measure_one(args: Namespace, length: int) -> tuple[float, float]:
    """The same, in the process of ``--memory``."""
    logging.disable(logging.INFO)
    torch.manual_seed(0)
    model = make_reader(args)
    words = [random_words(n, args.device) for n in (QUESTION, 1000, length)]
    seconds_and_peak(model, words[0], words[1])
    return seconds_and_peak(model, words[0], words[2])


def measure_in_turns(args: Namespace) -> list[tuple[float, float | None]]:
    """Seconds of each length, and on CUDA memory."""
    model = make_reader(args)
    question = random_words(QUESTION, args.device)
    documents = [random_words(length, args.device) for length in args.lengths]
    seconds_and_peak(model, question, documents[0])
    runs = [
        [seconds_and_peak(model, question, document) for document in documents]
        for _ in range(args.repeats)
    ]
    best = [min(taken) for taken in zip(*runs, strict=True)]
    return best if args.device == "cuda" else [(seconds, None) for seconds, _ in best]


def measure_lengths(args: Namespace) -> None:
    """Print seconds, how many times those of the length before, and MiB at the peak."""
    print(markdown(("tokens", "seconds", "times the row above", "peak MiB")))
    print(markdown(("---:",) * 4))
    if args.memory:
        rows = (in_own_process(measure_one, args=args, length=n) for n in args.lengths)
    else:
        rows = measure_in_turns(args)
    before = None
    for length, (seconds, peak) in zip(args.lengths, rows, strict=True):
        times = None if before is None else f"{seconds / before:.2f}"
        memory = None if peak is None else f"{peak:,.0f}"
        print(markdown((f"{length:,}", f"{seconds:.3f}", times, memory)), flush=True)
        before = seconds


def measure_kmeans(args: Namespace) -> None:
    """Print seconds of K-Means over noisy directions, as many as there are clusters."""
    clusters = args.clusters or CLUSTERS
    directions = torch.randn(clusters, args.kmeans_width)
    states = directions[torch.randint(clusters, (args.states,))]
    states = normalize(states + 2 * torch.randn_like(states), dim=-1)
    start = time.process_time(), time.perf_counter()
    spherical_kmeans(states, clusters)
    used, passed = time.process_time() - start[0], time.perf_counter() - start[1]
    print(
        f"{args.states:,} states of {args.kmeans_width:,} in {clusters} clusters: "
        f"{used:.1f} s of processors, {passed:.1f} s of the clock"
    )


def main(arguments: list[str] | None = None) -> int:
    """Measure what the command line asks for; returns the exit status."""
    logging.disable(logging.INFO)
    parser = Parser(prog="benchmark_reader.py", description=__doc__)
    add_device_options(parser)
    parser.add_argument(
        "--lengths", nargs="+", type=whole_number, default=[2000, 4000, 8000, 16000, 32000]
    )
    parser.add_argument("--attention", choices=attention_kinds(), default="kmeans")
    parser.add_argument("--arch", choices=ARCHITECTURES, help="default: 4 layers of --width")
    parser.add_argument("--width", type=whole_number, default=128, help="of the model")
    parser.add_argument("--repeats", type=whole_number, default=4)
    parser.add_argument("--memory", action="store_true", help="each length in its own process")
    parser.add_argument("--kmeans", action="store_true", help="measure K-Means instead")
    parser.add_argument("--states", type=whole_number, default=100_000)
    parser.add_argument(
        "--clusters", type=whole_number, help="default: the model's, or 512 of --kmeans"
    )
    parser.add_argument("--kmeans-width", type=whole_number, default=1024, help="of the states")
    args = parser.parse_args(arguments)
    settle_device(parser, args)
    torch.manual_seed(0)
    try:
        (measure_kmeans if args.kmeans else measure_lengths)(args)
    except Unavailable as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
