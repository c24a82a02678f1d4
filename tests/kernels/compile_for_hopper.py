"""Compiles the Triton kernels for sm_90 and prints what each needs; no GPU is needed for that.

    python -m tests.kernels.compile_for_hopper

What is compiled is what calls would launch: launches are recorded instead of run. Each line is
JSON: the kernel, its matrix instruction, and bytes of local memory per thread (spilled registers)
and of shared memory.
"""

import json
import re
import subprocess
import tempfile

import torch
import triton
from triton._C.libtriton import native_specialize_impl
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from fairseq_clusterformer.kernels.kernel import Call, Carry, Layout
from fairseq_clusterformer.kernels.triton.attention import backward, forward

LENGTH = 96
launches = []


def record(self, *args, grid=None, warmup=None, **kwargs):
    """In place of a launch."""
    launches.append((self, dict(zip(self.arg_names, args, strict=False)) | kwargs))


def record_attention(dtype: torch.dtype, width: int) -> None:
    """With all that costs registers."""
    q, k, v = (torch.randn(2, LENGTH, 2, width, dtype=dtype).transpose(1, 2) for _ in range(3))
    slot, count = torch.arange(LENGTH).view(1, 1, LENGTH), torch.full((2, 1), LENGTH)
    layout = Layout((slot - 7).clamp(min=0), slot + 1, slot, slot, count, count)
    call = Call(q, k, v, torch.randn(2, 1, LENGTH), torch.tensor(7), layout, 0.1)
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


if __name__ == "__main__":
    JITFunction.run = record
    record_attention(torch.bfloat16, 64)
    for kernel, values in launches:
        print(json.dumps({"kernel": kernel.__name__, **compiled(kernel, values)}), flush=True)
