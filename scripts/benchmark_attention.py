#!/usr/bin/env python3
"""Time and memory of one attention layer, forward and backward, beside PyTorch's dense attention.

    python scripts/benchmark_attention.py --lengths 1024 4096 16384

Routing is included: ``neural`` computes similarities, assigns, sorts and attends; in
``neural+losses`` both clustering losses go forward and backward too, down to W_c, the centroids
and the layer's input. ``dense`` is PyTorch's ``scaled_dot_product_attention``
(causal). Contestants take turns within one run, so that a machine whose speed drifts is unfair to
none; medians are reported. Memory is the process's peak beyond inputs, outputs and gradients, each
contestant in a process of its own. One whose output at randomly chosen queries is not the softmax
attention over the keys that its layout names is not timed.
"""

import argparse
import json
import math
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fairseq_clusterformer.attention import AttentionConfig, build_router  # noqa: E402
from fairseq_clusterformer.kernels import ranged_attention  # noqa: E402

KINDS = ("dense", "window", "neural", "neural+losses")


class Contestant:
    """One kind of attention on q, k, v [1, H, N, E] and the layer's input x [1, N, D]."""

    def __init__(self, kind: str, length: int, heads: int, width: int, window: int):
        torch.manual_seed(0)
        self.kind = kind
        shape = (1, length, heads, width)
        self.tensors = [torch.randn(shape).transpose(1, 2).requires_grad_() for _ in range(3)]
        kind, _, self.losses = kind.partition("+")
        self.x = torch.randn(1, length, heads * width, requires_grad=bool(self.losses))
        self.weight = torch.randn(shape).transpose(1, 2)
        self.router = None
        if kind != "dense":
            config = AttentionConfig(window=window, num_clusters=math.isqrt(length))
            self.router = build_router(
                kind, config, embed_dim=heads * width, num_heads=heads, causal=True
            )

    def forward(self) -> list[Tensor]:
        """The output, and the losses of the clustering if they are asked for."""
        q, k, v = self.tensors
        if self.router is None:
            return [scaled_dot_product_attention(q, k, v, is_causal=True)]
        layout, report = self.router(self.x, q, k)
        out, _ = ranged_attention(q, k, v, layout)
        return [out, report.clustering_loss, report.sorting_loss] if self.losses else [out]

    def run(self) -> float:
        """Seconds of one forward and backward pass."""
        for tensor in (self.x, *self.tensors):
            tensor.grad = None
        begin = time.perf_counter()
        outputs = self.forward()
        torch.autograd.backward(outputs, [self.weight, *map(torch.ones_like, outputs[1:])])
        return time.perf_counter() - begin

    @torch.no_grad()
    def is_right(self, queries: int = 64) -> bool:
        """Whether some queries' outputs are attention over the keys that the layout names."""
        if self.router is None:
            return True
        q, k, v = (t[0] for t in self.tensors)
        layout, _ = self.router(self.x, *self.tensors[:2])
        out = self.forward()[0][0]
        identity = torch.arange(q.size(1)).view(1, 1, -1)
        query_order = identity if layout.query_order is None else layout.query_order
        key_order = identity if layout.key_order is None else layout.key_order
        for slot in torch.randint(q.size(1), (queries,)).tolist():
            token = query_order[0, 0, slot]
            keys = key_order[0, 0, layout.lo[0, 0, slot] : layout.hi[0, 0, slot]]
            logits = torch.einsum("he,hje->hj", q[:, token], k[:, keys]) / math.sqrt(q.size(-1))
            expected = torch.einsum("hj,hje->he", logits.softmax(-1), v[:, keys])
            if not torch.allclose(out[:, token], expected, atol=1e-4):
                return False
        return True


def peak_memory(kind: str, length: int, args: argparse.Namespace) -> float:
    """MiB beyond inputs, outputs and gradients, measured in a process of its own."""
    command = [sys.executable, __file__, "--memory-of", kind, "--lengths", str(length)]
    for option in ("heads", "width", "window"):
        command += [f"--{option}", str(getattr(args, option))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout)


def memory_here(kind: str, length: int, args: argparse.Namespace) -> float:
    contestant = Contestant(kind, length, args.heads, args.width, args.window)
    # Outputs and the three gradients are counted as given: make room for them, and touch it.
    given = [torch.ones_like(contestant.weight) for _ in range(4)]
    small = Contestant(kind, 256, args.heads, args.width, args.window)
    small.run()  # libraries allocate what they need once
    before = peak_of_this_process()
    del given
    contestant.run()
    return peak_of_this_process() - before


def peak_of_this_process() -> float:
    """MiB; getrusage would count what a parent had when it forked."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) / 1024


def compare(length: int, args: argparse.Namespace) -> list[dict]:
    """Rows of the table for one N."""
    contestants = [Contestant(k, length, args.heads, args.width, args.window) for k in args.kinds]
    for contestant in contestants:
        if not contestant.is_right():
            sys.exit(f"{contestant.kind} at N = {length} differs from the reference: not timed")
        contestant.run()
    seconds: dict[str, list[float]] = {c.kind: [] for c in contestants}
    for _ in range(args.repeats):
        for contestant in contestants:
            seconds[contestant.kind].append(contestant.run())
    dense = seconds.get("dense")
    rows = []
    for kind, times in seconds.items():
        row = {
            "kind": kind,
            "N": length,
            "milliseconds": statistics.median(times) * 1e3,
            "spread": (max(times) - min(times)) / statistics.median(times),
            "memory MiB": peak_memory(kind, length, args),
        }
        if dense is not None:
            ratios = [d / t for d, t in zip(dense, times, strict=True)]
            row["times as fast as dense"] = statistics.median(ratios)
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--lengths", nargs="+", type=int, default=[1024, 4096, 16384])
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--width", type=int, default=64, help="of a head")
    parser.add_argument("--window", type=int, default=128, help="K is sqrt(N)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="also write the numbers as JSON")
    parser.add_argument("--memory-of", choices=KINDS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    for option in ("heads", "width", "window", "repeats"):
        if getattr(args, option) < 1:
            sys.exit(f"--{option} is {getattr(args, option)}; allowed: 1 or more")
    if min(args.lengths) < 1:
        sys.exit(f"--lengths is {min(args.lengths)}; allowed: 1 or more")
    if args.memory_of is not None:
        print(memory_here(args.memory_of, args.lengths[0], args))
        return

    rows = []
    print("| kind | N | milliseconds | spread | memory MiB | times as fast as dense |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for length in args.lengths:
        for row in compare(length, args):
            ratio = row.get("times as fast as dense", math.nan)
            print(
                f"| {row['kind']} | {row['N']} | {row['milliseconds']:.0f} | {row['spread']:.0%} "
                f"| {row['memory MiB']:.0f} | {ratio:.1f} |",
                flush=True,
            )
            rows.append(row)
    if args.out is not None:
        result = {
            "command": "python scripts/benchmark_attention.py "
            + " ".join(a for a in sys.argv[1:] if "json" not in a and a != "--out"),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, "
            f"{torch.get_num_threads()} threads, torch {torch.__version__}",
            "settings": f"B = 1, H = {args.heads}, E = {args.width}, W = {args.window}, "
            "K = sqrt(N), float32, causal, forward + backward, routing included",
            "date": time.strftime("%Y-%m-%d"),
            "rows": rows,
        }
        partial = args.out.with_name(args.out.name + ".partial")
        partial.write_text(json.dumps(result, indent=2) + "\n")
        partial.replace(args.out)


if __name__ == "__main__":
    main()
