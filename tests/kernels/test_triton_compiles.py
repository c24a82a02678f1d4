"""The Triton kernels compile for a GPU; no GPU is needed for that.

The interpreter takes more than the compiler does. What compiles is what a call would launch:
launches are recorded instead of run.
"""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import os
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend
from triton.compiler import ASTSource
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction
from triton._C.libtriton import native_specialize_impl

from fairseq_clusterformer.attention.layout import chunk_layout, cluster_layout, window_layout
from fairseq_clusterformer.kernels.triton import counting_sort, triton_attention, triton_step

launches = []

def record(self, *args, grid=None, warmup=None, **kwargs):
    launches.append((self, args, kwargs))

Autotuner.run = JITFunction.run = record


def compile_launch(kernel, args, kwargs):
    options = {}
    if isinstance(kernel, Autotuner):
        config, kernel = kernel.configs[0], kernel.fn
        kwargs = kwargs | config.kwargs
        options = {"num_warps": config.num_warps, "num_stages": config.num_stages}
    values = dict(zip(kernel.arg_names, args)) | kwargs
    signature, constants, attributes = {}, {}, {}

    def specialise(path, kind, special, value):
        if isinstance(kind, tuple):
            for i, parts in enumerate(zip(kind, special, value)):
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
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    instructions = "wgmma" if "wgmma" in compiled.asm["ptx"] else "-"
    print(kernel.__name__, instructions, flush=True)


length = 96
mask = torch.arange(length) >= torch.tensor([[length], [length - 5]])
clusters = torch.randint(5, (2, 1, length))
for dtype, layout, biased, dropout in (
    (torch.bfloat16, window_layout(length, 11, causal=True), False, 0.0),
    (torch.bfloat16, cluster_layout(clusters, 5, 11, causal=True, padding_mask=mask), False, 0.0),
    (torch.float32, chunk_layout(clusters, 5, earlier_only=True), True, 0.1),
):
    q, k, v = (torch.randn(2, length, 2, 64, dtype=dtype).transpose(1, 2) for _ in range(3))
    bias = torch.randn(2, 1, length, requires_grad=True) if biased else None
    q.requires_grad_()
    out, lse = triton_attention(q, k, v, layout, key_bias=bias, dropout=dropout)
    ((out * out.detach()).sum() + lse.sum()).backward()
counting_sort(clusters, 5)
ring = torch.zeros(2, 2, 2, dtype=torch.long)
bias = torch.randn(2, 2, 2)
for dtype, held, number, options in (
    (torch.bfloat16, {}, None, {}),
    (torch.bfloat16, {"ring": ring.new_zeros(2, 2, 2, 8)}, ring, {"padding_mask": mask[:, -1:]}),
    (torch.bfloat16, {"seen": ring.repeat(1, 1, 5)}, ring, {}),
    (torch.float32, {"seen": ring.repeat(1, 1, 5)}, ring, {"padding_mask": mask[:, -1:]}),
    (
        torch.float32,
        {"seen": ring.repeat(1, 1, 5)},
        ring,
        {"own_apart": True, "key_bias": bias, "own_bias": bias[:, :1, 0]},
    ),
):
    q, k, v = (torch.randn(2, 6, 1, 64, dtype=dtype) for _ in range(3))
    rings, width = 10 if "seen" in held else 2, 129 if "key_bias" in options else 128
    held |= {"kept": q.new_zeros(2, 2, rings, 3, 8, width), "steps": q.new_empty(2, 3, 0)}
    triton_step(
        q, k, v, number, number, held, num_rings=5,
        **{"key_bias": None, "own_apart": False, "own_bias": None, "padding_mask": None} | options,
    )
for launch in launches:
    compile_launch(*launch)
"""


def test_every_kernel_compiles_for_hopper(tmp_path):
    pytest.importorskip("triton", reason="triton is not installed")
    environment = {n: v for n, v in os.environ.items() if n != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    script = tmp_path / "compile.py"
    script.write_text(SCRIPT)
    root = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    environment["PYTHONPATH"] = root
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line.split() for line in done.stdout.splitlines()]
    steps, lines = lines[-5:], lines[:-5]
    assert [name for name, _ in steps] == ["_step"] * 5
    kernels = {"_forward", "_backward_queries", "_backward_keys", "_bounds", "_spans"}
    assert {name for name, _ in lines[:-2]} == kernels
    assert len(lines[:-2]) == 3 * len(kernels)
    assert [name for name, _ in lines[-2:]] == ["_count", "_place"]
    # in half precision the matrix products are Hopper's own instructions
    half = [instructions for name, instructions in lines[:10] if name not in ("_bounds", "_spans")]
    assert half == ["wgmma"] * 6
