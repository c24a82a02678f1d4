"""Compiles the Triton kernels for sm_90 and prints what each needs; no GPU is needed for that.

    python -m tests.kernels.compile_for_hopper [--all]

What is compiled is what calls would launch: launches are recorded instead of run. Each line is
JSON: the kernel, what it was compiled for, its matrix instruction, and bytes of local memory per
thread (spilled registers) and of shared memory. ``--all``: every choice of tiles, in every
precision and width, plain and with all that costs registers.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from itertools import product

import torch
import triton
from triton._C.libtriton import native_specialize_impl
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend
from triton.compiler import ASTSource
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

from fairseq_clusterformer.kernels.kernel import Carry, Wanted
from fairseq_clusterformer.kernels.layout import Call, Layout
from fairseq_clusterformer.kernels.triton.backward import backward
from fairseq_clusterformer.kernels.triton.forward import forward

LENGTH = 96
launches = []


def record(self, *args, grid=None, warmup=None, **kwargs):
    """In place of a launch."""
    values = dict(zip(self.arg_names, args, strict=False)) | kwargs
    tiles, kernel = [None], self
    if isinstance(self, Autotuner):
        kernel, tiles = self.fn, self.early_config_prune(self.configs, values | {"work": 1})
    launches.append((kernel, values, tiles))


def record_attention(dtype: torch.dtype, width: int, everything: bool) -> None:
    q, k, v = (torch.randn(2, LENGTH, 2, width, dtype=dtype).transpose(1, 2) for _ in range(3))
    slot = torch.arange(LENGTH).view(1, 1, LENGTH)
    layout, options = Layout(lo=(slot - 7).clamp(min=0), hi=slot + 1), (None, None)
    if everything:
        count = torch.full((2, 1), LENGTH)
        layout = Layout(layout.lo, layout.hi, slot, slot, count, count)
        options = torch.randn(2, 1, LENGTH), torch.tensor(7)
    dropout = 0.1 if everything else 0.0
    call = Call(q, k, v, *options, layout, dropout)
    out, lse = forward(call)
    backward(call, Wanted(out, lse), Carry(out, lse))


def compiled(kernel: JITFunction, values: dict, tile: triton.Config | None) -> dict:
    """What the launch of a kernel needs."""
    options = {}
    if tile is not None:
        values = values | tile.kwargs
        options = {"num_warps": tile.num_warps, "num_stages": tile.num_stages}
    signature, constants, attributes = {}, {}, {}

    def specialise(path, kind, special, value):
        if isinstance(kind, tuple):
            for i, parts in enumerate(zip(kind, special, value, strict=True)):
                specialise((*path, i), *parts)
        elif kind == "constexpr":
            constants[path] = value
        elif special == "D":
            attributes[path] = [["tt.divisibility", 16]]

    for i, parameter in enumerate(kernel.params):
        value = values[parameter.name]
        if parameter.is_constexpr:
            signature[parameter.name], constants[i,] = "constexpr", value
            continue
        kind, special = native_specialize_impl(
            CUDABackend, value, False, not parameter.do_not_specialize, True
        )
        signature[parameter.name] = kind
        specialise((i,), kind, special, value)
    source = ASTSource(kernel, signature, constants, attributes)
    binary = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary.asm["cubin"])
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        usage = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    ptx = binary.asm["ptx"]
    return {
        "instruction": next((x for x in ("wgmma", "mma.sync") if f"{x}." in ptx), None),
        "local": int(re.search(r"STACK:(\d+)", usage)[1]),
        "shared": binary.metadata.shared,
    }


def work(name: str) -> list[str]:
    """One line for each choice of tiles of the launches of that name."""
    of, dtype, width, everything = json.loads(name)
    launches.clear()
    record_attention(getattr(torch, dtype), width, everything)
    lines = []
    for kernel, values, tiles in launches:
        for tile in tiles if of == "all" else tiles[:1]:
            found = {"kernel": kernel.__name__, "dtype": dtype, "width": width}
            found |= {"everything": everything, "tile": str(tile)}
            lines.append(json.dumps(found | compiled(kernel, values, tile)))
    return lines


if __name__ == "__main__":
    Autotuner.run = JITFunction.run = record
    jobs = [("first", "bfloat16", 64, True)]
    if "--all" in sys.argv:
        numbers = ("float32", "float16", "bfloat16")
        jobs = [("all", *rest) for rest in product(numbers, (256, 128, 64), (True, False))]
    with ProcessPoolExecutor(os.cpu_count() if "--all" in sys.argv else 1) as pool:
        for lines in pool.map(work, map(json.dumps, jobs)):
            print("\n".join(lines), flush=True)
