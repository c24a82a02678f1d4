#!/usr/bin/env python3
"""What ``clusterformer_reader`` costs by the length of a document, and K-Means of a memory bank.

    python scripts/benchmark_reader.py
    python scripts/benchmark_reader.py --kmeans

Forward passes of a model of random weights, the lengths in turns, the best of some: seconds of
the processor, which other programs on it do not add to, or of the clock on CUDA. glibc asks the
kernel for each tensor above 32 MiB anew; MALLOC_MMAP_THRESHOLD_ and MALLOC_TRIM_THRESHOLD_ of
4294967296 show what the model costs without.
"""

import logging
import sys
import time
from argparse import Namespace
from types import SimpleNamespace

import torch
from benchmarking import MIB, add_device_options, markdown, settle_device
from data_command import Parser, whole_number
from fairseq.data import Dictionary
from torch.nn.functional import normalize

from fairseq_clusterformer.attention import attention_kinds
from fairseq_clusterformer.clustering.kmeans import spherical_kmeans
from fairseq_clusterformer.models.clusterformer_reader import ClusterformerReader

WORDS = 1000
QUESTION = 16  # tokens


def make_reader(attention: str, width: int, impl: str) -> ClusterformerReader:
    """Four layers, of which one goes across windows of the paper's size."""
    dictionary = Dictionary()
    for word in range(WORDS):
        dictionary.add_symbol(str(word))
    args = Namespace(
        encoder_layers=4,
        encoder_embed_dim=width,
        encoder_ffn_embed_dim=4 * width,
        encoder_attention_heads=max(1, width // 32),
        cluster_layers="2",
        cluster_attention=attention,
        attention_kernel=impl,
    )
    task = SimpleNamespace(source_dictionary=dictionary)
    return ClusterformerReader.build_model(args, task).eval()


def random_words(length: int) -> torch.Tensor:
    return torch.randint(Dictionary().nspecial, WORDS, (1, length))


@torch.no_grad()
def measure_lengths(args: Namespace) -> None:
    """Print seconds, how many times those of the length before, and on CUDA peak memory."""
    model = make_reader(args.attention, args.width, args.impl).to(args.device)
    question = random_words(QUESTION).to(args.device)
    documents = {n: random_words(n).to(args.device) for n in args.lengths}
    model(question, documents[args.lengths[0]])
    best, peak = dict.fromkeys(documents, float("inf")), {}
    clock = time.process_time if args.device == "cpu" else time.perf_counter
    for _ in range(args.repeats):
        for length, document in documents.items():
            if args.device == "cuda":
                torch.cuda.reset_peak_memory_stats()
            start = clock()
            model(question, document)
            if args.device == "cuda":
                torch.cuda.synchronize()
                peak[length] = round(torch.cuda.max_memory_allocated() / MIB)
            best[length] = min(best[length], clock() - start)
    print(markdown(("tokens", "seconds", "times the row above", "peak MiB")))
    print(markdown(("---:",) * 4))
    before = None
    for length, seconds in best.items():
        times = None if before is None else f"{seconds / before:.2f}"
        print(markdown((f"{length:,}", f"{seconds:.3f}", times, peak.get(length))))
        before = seconds


def measure_kmeans(args: Namespace) -> None:
    """Print seconds of K-Means over noisy directions, as many as there are clusters."""
    directions = torch.randn(args.clusters, args.kmeans_width)
    states = directions[torch.randint(args.clusters, (args.states,))]
    states = normalize(states + 2 * torch.randn_like(states), dim=-1)
    start = time.process_time(), time.perf_counter()
    spherical_kmeans(states, args.clusters)
    used, passed = time.process_time() - start[0], time.perf_counter() - start[1]
    print(
        f"{args.states:,} states of {args.kmeans_width:,} in {args.clusters} clusters: "
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
    parser.add_argument("--width", type=whole_number, default=128, help="of the model")
    parser.add_argument("--repeats", type=whole_number, default=4)
    parser.add_argument("--kmeans", action="store_true", help="measure K-Means instead")
    parser.add_argument("--states", type=whole_number, default=100_000)
    parser.add_argument("--clusters", type=whole_number, default=512)
    parser.add_argument("--kmeans-width", type=whole_number, default=1024, help="of the states")
    args = parser.parse_args(arguments)
    settle_device(parser, args)
    torch.manual_seed(0)
    (measure_kmeans if args.kmeans else measure_lengths)(args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
