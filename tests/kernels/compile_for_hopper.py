"""Compiles the Triton kernels for sm_90 and prints what each needs; no GPU is needed for that.

    python -m tests.kernels.compile_for_hopper [--all]

What is compiled is what calls would launch: launches are recorded instead of run. Each line is
JSON: the kernel, what it was compiled for, its matrix instruction, and bytes of local memory per
thread (spilled registers) and of shared memory. ``--all``: in every precision and width, plain and
with all that costs registers.
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
from triton.runtime.jit import JITFunction

from fairseq_clusterformer.kernels.kernel import Carry
from fairseq_clusterformer.kernels.layout import Call, Layout
from fairseq_clusterformer.kernels.triton.attention import backward, forward

LENGTH = 96
launches = []


def record(self, *args, grid=None, warmup=None, **kwargs):
    """In place of a launch."""
    launches.append((self, dict(zip(self.arg_names, args, strict=False)) | kwargs))


def record_attention(dtype: torch.dtype, width: int, everything: bool) -> None:
    q, k, v = (torch.randn(2, LENGTH, 2, width, dtype=dtype).transpose(1, 2) for _ in range(3))
    slot = torch.arange(LENGTH).view(1, 1, LENGTH)
    layout, options = Layout(lo=(slot - 7).clamp(min=0), hi=slot + 1), (None, None)
    if everything:
        count = torch.full((2, 1), LENGTH)
        layout = Layout(layout.lo, layout.hi, slot, slot, count, count)
        options = torch.randn(2, 1, LENGTH), torch.tensor(7)
    call = Call(q, k, v, *options, layout, 0.1 if everything else 0.0)
    out, lse = forward(call)
    backward(call, out, lse, Carry(out, lse))


def compiled(kernel: JITFunction, values: dict) -> dict:
    """What the launch of a kernel needs."""
    options = {name: values[name] for name in ("num_warps", "num_stages") if name in values}
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


def work(dtype: str, width: int, everything: bool) -> list[str]:
    """One line for each launch."""
    launches.clear()
    record_attention(getattr(torch, dtype), width, everything)
    of = {"dtype": dtype, "width": width, "everything": everything}
    return [
        json.dumps({"kernel": kernel.__name__, **of, **compiled(kernel, values)})
        for kernel, values in launches
    ]


if __name__ == "__main__":
    JITFunction.run = record
    jobs = [("bfloat16", 64, True)]
    if "--all" in sys.argv:
        jobs = list(product(("float32", "float16", "bfloat16"), (256, 128, 64), (True, False)))
    with ProcessPoolExecutor(os.cpu_count() if "--all" in sys.argv else 1) as pool:
        for lines in pool.map(work, *zip(*jobs, strict=True)):
            print("\n".join(lines), flush=True)
