"""Linear maps, in inference on a CPU by what is faster there."""

from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

LARGE = 1 << 18  # numbers of a weight that hardly stays in a cache beside a model's others
MANY = 1 << 10  # rows of which threads multiply faster by oneDNN than by MKL,
WIDE = 1 << 16  # with a weight of so many numbers at least


@cache
def _is_amd() -> bool:
    told = Path("/proc/cpuinfo")
    return told.is_file() and "AuthenticAMD" in told.read_text(encoding="utf-8")


def _is_plain(x: Tensor, weight: Tensor, least: int) -> bool:
    """Whether a product without gradients is of plain float32, with a weight of so many numbers
    at least, and MKL's on an AMD processor."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return False
    plain = x.is_cpu and x.dtype == weight.dtype == torch.float32 and weight.numel() >= least
    plain = plain and type(weight) in (Tensor, nn.Parameter)
    return plain and not torch.is_autocast_enabled("cpu") and _is_amd()


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """torch's ``linear``. One row is multiplied by parts of a large weight, as a batch, on an AMD
    processor: torch leaves it to MKL there, which uses one thread and half of what it can read."""
    if not _is_plain(x, weight, LARGE) or x.numel() != weight.size(1):
        return nn.functional.linear(x, weight, bias)
    rows, width = weight.shape
    parts, row = max(2, torch.get_num_threads()), x.reshape(1, -1).T
    end = rows - rows % parts
    most = weight[:end].reshape(parts, rows // parts, width)
    found = torch.bmm(most, row.expand(parts, -1, -1)).view(-1)
    if end < rows:
        found = torch.cat([found, torch.mv(weight[end:], row[:, 0])])
    return (found if bias is None else found + bias).view(*x.shape[:-1], rows)


def of_many(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """:func:`linear` of MANY rows. On an AMD processor they are the pixels of a convolution, which
    torch leaves to oneDNN: it takes less time than MKL, and the memory of the weight once more."""
    of_torch = torch.backends.mkldnn.matmul, torch.backends.mkldnn.conv
    full = {found.fp32_precision for found in of_torch} <= {"none", "ieee"}
    if not full or torch.get_num_threads() == 1 or not _is_plain(x, weight, WIDE):
        return linear(x, weight, bias)
    pixels = x.reshape(1, -1, 1, x.size(-1)).contiguous().permute(0, 3, 1, 2)
    found = nn.functional.conv2d(pixels, weight[..., None, None], bias)
    return found.permute(0, 2, 3, 1).reshape(*x.shape[:-1], -1)


def mapped(module: nn.Module, x: Tensor) -> Tensor:
    """``module(x)``; without gradients by :func:`linear`, and in inference by :func:`of_many`, if
    it is a linear map without hooks. (Activation checkpoints run first without gradients.)"""
    hooks = module._forward_hooks or module._forward_pre_hooks or _has_any_global_hook()
    plain = type(module) is nn.Linear and not hooks and "forward" not in vars(module)
    if not plain or torch.is_grad_enabled() or torch.compiler.is_compiling():
        return module(x)
    many = not module.training and x.numel() >= MANY * x.size(-1)
    return (of_many if many else linear)(x, module.weight, module.bias)
