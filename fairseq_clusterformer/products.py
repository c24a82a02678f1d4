"""Linear maps, in a step of decoding on a CPU by what is faster there."""

from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

LARGE = 1 << 18  # numbers of a weight that hardly stays in a cache beside a model's others


@cache
def _is_amd() -> bool:
    told = Path("/proc/cpuinfo")
    return told.is_file() and "AuthenticAMD" in told.read_text(encoding="utf-8")


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """torch's ``linear``. One row is multiplied by parts of a large weight, as a batch, on an AMD
    processor: torch leaves it to MKL there, which uses one thread and half of what it can read."""
    rows, width = weight.shape
    plain = x.is_cpu and x.dtype == weight.dtype == torch.float32 and x.numel() == width
    plain = plain and rows * width >= LARGE and type(weight) in (Tensor, nn.Parameter)
    graph = torch.is_grad_enabled() or torch.compiler.is_compiling()
    if not plain or graph or torch.is_autocast_enabled("cpu") or not _is_amd():
        return nn.functional.linear(x, weight, bias)
    parts, row = max(2, torch.get_num_threads()), x.reshape(1, -1).T
    end = rows - rows % parts
    most = weight[:end].reshape(parts, rows // parts, width)
    found = torch.bmm(most, row.expand(parts, -1, -1)).view(-1)
    if end < rows:
        found = torch.cat([found, torch.mv(weight[end:], row[:, 0])])
    return (found if bias is None else found + bias).view(*x.shape[:-1], rows)


def mapped(module: nn.Module, x: Tensor) -> Tensor:
    """``module(x)``; in inference by :func:`linear`, if it is a linear map without hooks."""
    hooks = module._forward_hooks or module._forward_pre_hooks or _has_any_global_hook()
    plain = type(module) is nn.Linear and not hooks and "forward" not in vars(module)
    inference = plain and not torch.is_grad_enabled()
    return linear(x, module.weight, module.bias) if inference else module(x)
