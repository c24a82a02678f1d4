"""Linear maps, in inference on a CPU by what is faster there."""

from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

LARGE = 1 << 18  # numbers of a weight that hardly stays in a cache beside a model's others
MANY = 1 << 10  # rows of which oneDNN multiplies faster than MKL


@cache
def _is_amd() -> bool:
    told = Path("/proc/cpuinfo")
    return told.is_file() and "AuthenticAMD" in told.read_text(encoding="utf-8")


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """torch's ``linear``, which leaves it to MKL. On an AMD processor, one row is multiplied by
    parts of a large weight, as a batch: MKL uses one thread there, and half of what it can read.
    Many rows are multiplied as the pixels of a convolution, which is oneDNN's."""
    size, width = weight.shape
    one, many = x.numel() == width and size * width >= LARGE, x.numel() >= MANY * width
    plain = x.is_cpu and x.dtype == weight.dtype == torch.float32 and (one or many)
    plain = plain and type(weight) in (Tensor, nn.Parameter)
    graph = torch.is_grad_enabled() or torch.compiler.is_compiling()
    if not plain or graph or torch.is_autocast_enabled("cpu") or not _is_amd():
        return nn.functional.linear(x, weight, bias)
    if many:
        pixels = x.reshape(1, -1, 1, width).permute(0, 3, 1, 2)
        found = nn.functional.conv2d(pixels, weight[..., None, None], bias)
        return found.permute(0, 2, 3, 1).reshape(*x.shape[:-1], size)
    parts, row = max(2, torch.get_num_threads()), x.reshape(1, -1).T
    end = size - size % parts
    most = weight[:end].reshape(parts, size // parts, width)
    found = torch.bmm(most, row.expand(parts, -1, -1)).view(-1)
    if end < size:
        found = torch.cat([found, torch.mv(weight[end:], row[:, 0])])
    return (found if bias is None else found + bias).view(*x.shape[:-1], size)


def mapped(module: nn.Module, x: Tensor) -> Tensor:
    """``module(x)``; in inference by :func:`linear`, if it is a linear map without hooks."""
    hooks = module._forward_hooks or module._forward_pre_hooks or _has_any_global_hook()
    plain = type(module) is nn.Linear and not hooks and "forward" not in vars(module)
    inference = plain and not torch.is_grad_enabled()
    return linear(x, module.weight, module.bias) if inference else module(x)
