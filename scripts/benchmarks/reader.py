"""Time and memory of ``clusterformer_reader`` by a document's length, and of K-Means.

    python -m scripts.benchmarks.reader
    python -m scripts.benchmarks.reader --memory --arch clusterformer_reader_base --lengths 100000
    python -m scripts.benchmarks.reader --kmeans

Measures forward passes without gradients of a model of random weights. Seconds are of the
processor, to which other programs do not add; on CUDA they are of the clock. The lengths take
turns, and the best of several counts. With --memory, each length runs once in a process of its
own; the memory at the peak includes all that was loaded (on CUDA: tensors only).
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
from fairseq_clusterformer.clustering.kmeans import spherical_kmeans
from fairseq_clusterformer.models.clusterformer_reader import ClusterformerReader
from scripts.benchmarks import common

WORDS = 50_265  # of RoBERTa
QUESTION = 20  # tokens
ARCHITECTURES = [
    name for name, model in ARCH_MODEL_NAME_REGISTRY.items() if model == "clusterformer_reader"
]
CLUSTERS = 512  # of K-Means alone
COLUMNS = {"tokens": ",", "seconds": ".3f", "times the row above": ".2f", "peak MiB": ",.0f"}


def make_reader(args: Namespace) -> ClusterformerReader:
    """The model of --arch, or four layers of which one goes across windows."""
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
    """Seconds and MiB, in a process of its own."""
    logging.disable(logging.INFO)
    torch.manual_seed(0)
    model = make_reader(args)
    words = [random_words(n, args.device) for n in (QUESTION, 1000, length)]
    seconds_and_peak(model, words[0], words[1])
    return seconds_and_peak(model, words[0], words[2])


def measure_in_turns(args: Namespace) -> list[tuple[float, float | None]]:
    """Seconds of each length; on CUDA memory too."""
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


def measure_lengths(args: Namespace) -> list[dict]:
    """Print a row for each length, and return the rows."""
    print(common.table_head(COLUMNS))
    if args.memory:
        found = (common.in_own_process(measure_one, args=args, length=n) for n in args.lengths)
    else:
        found = measure_in_turns(args)
    rows: list[dict] = []
    for length, (seconds, peak) in zip(args.lengths, found, strict=True):
        times = seconds / rows[-1]["seconds"] if rows else None
        measured = (length, seconds, times, peak)
        rows.append(dict(zip(COLUMNS, measured, strict=True)))
        print(common.table_row(rows[-1], COLUMNS), flush=True)
    return rows


def measure_kmeans(args: Namespace) -> list[dict]:
    """Print seconds of K-Means over noisy directions, one direction per cluster."""
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
    return [{"states": args.states, "processor seconds": used, "seconds": passed}]


def main(argv: list[str] | None = None) -> int:
    logging.disable(logging.INFO)
    numbers = {
        "--lengths": ([2000, 4000, 8000, 16000, 32000], "tokens"),
        "--width": (128, "of the model"),
        "--states": (100_000, "for K-Means"),
        "--clusters": (None, f"default: the model's, or {CLUSTERS} for K-Means"),
        "--kmeans-width": (1024, "of the states"),
    }
    parser = common.make_parser("scripts.benchmarks.reader", __doc__, numbers)
    parser.add_argument("--attention", choices=attention_kinds(), default="kmeans")
    parser.add_argument("--arch", choices=ARCHITECTURES, help="default: 4 layers of --width")
    parser.add_argument("--memory", action="store_true", help="each length in its own process")
    parser.add_argument("--kmeans", action="store_true", help="measure K-Means instead")
    parser.set_defaults(repeats=4)
    args = parser.parse_args(argv)
    common.settle_device(parser, args)
    torch.manual_seed(0)
    try:
        rows = (measure_kmeans if args.kmeans else measure_lengths)(args)
    except common.Unavailable as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 1
    shown = ("attention", "arch", "width", "clusters", "kmeans_width", "impl", "repeats")
    settings = ", ".join(f"{name} {getattr(args, name)}" for name in shown)
    common.write_record(args.json, parser.prog, args.device, settings, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
