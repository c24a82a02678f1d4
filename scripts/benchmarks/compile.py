#!/usr/bin/env python3
"""The softmax of a group of tiles: PyTorch's operations in place, or fused by ``torch.compile``.

    python scripts/benchmark_compile.py

It is the part of ``kernels/blocks`` that a compiler could fuse: hide what is not seen, and from
logits make weights, their sum and their peak. Both are checked against each other, and timed in
turns; compiling is not counted. Sizes are those that ``neural`` meets with W = 128 and 64 slots a
tile. Needs a C++ compiler.
"""

import logging
import math
import statistics
import sys

import torch
from torch import Tensor

from fairseq_clusterformer.cli.common import Parser, whole_number
from scripts.benchmarks.common import (
    DTYPES,
    add_device_options,
    interleaved,
    markdown,
    settle_device,
    spread,
)

TILE = 64
# Tiles of one group, and key slots that each sees: about the 1M numbers of a group on a CPU.
SIZES = ((10, 192), (8, 256), (6, 320))


def in_place(logits: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As in ``kernels/blocks``: logits [c, H, T, S] become weights; hidden, [c, T, S], is -inf or
    0."""
    logits += hidden.unsqueeze(1)
    peak = logits.amax(-1, keepdim=True).clamp_(min=torch.finfo(logits.dtype).min)
    logits.sub_(peak).exp2_()
    return logits, logits.sum(-1, keepdim=True), peak


def fused(logits: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same without a word about memory: that is the compiler's business."""
    logits = logits + hidden.unsqueeze(1)
    peak = logits.amax(-1, keepdim=True).clamp(min=torch.finfo(logits.dtype).min)
    weights = (logits - peak).exp2()
    return weights, weights.sum(-1, keepdim=True), peak


def main(argv: list[str] | None = None) -> int:
    parser = Parser(prog="benchmark_compile.py", description=__doc__)
    parser.add_argument("--heads", type=whole_number, default=8)
    parser.add_argument("--repeats", type=whole_number, default=50)
    parser.add_argument("--dtype", choices=list(DTYPES), default="float32")
    add_device_options(parser)
    args = parser.parse_args(argv)
    settle_device(parser, args)
    logging.getLogger("filelock").setLevel(logging.WARNING)
    compiled = torch.compile(fused, dynamic=True)  # sizes of groups differ: compile once
    print(markdown(("tiles", "slots", "in place, ms", "spread", "compiled, ms", "spread")))
    print(markdown(["---:"] * 6))
    for tiles, slots in SIZES:
        shape = (tiles, args.heads, TILE, slots)
        logits = torch.randn(shape, device=args.device, dtype=DTYPES[args.dtype])
        seen = torch.rand(tiles, TILE, slots, device=args.device) < 0.7
        hidden = torch.where(seen, 0.0, -math.inf).to(logits.dtype)
        results = in_place(logits.clone(), hidden), compiled(logits, hidden)
        tolerance = 1e-5 if args.dtype == "float32" else 1e-2
        for ours, other in zip(*results, strict=True):
            if not torch.allclose(ours, other, rtol=tolerance):
                print("benchmark_compile.py: error: results differ", file=sys.stderr)
                return 1
        scratch = logits.clone()
        seconds = interleaved(
            {
                "in place": lambda x=scratch, h=hidden: in_place(x, h),
                "compiled": lambda x=logits, h=hidden: compiled(x, h),
            },
            args.repeats,
            args.device,
        )
        cells = [str(tiles), str(slots)]
        for times in seconds.values():
            cells += [f"{1e3 * statistics.median(times):.2f}", f"{spread(times):.0%}"]
        print(markdown(cells), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
