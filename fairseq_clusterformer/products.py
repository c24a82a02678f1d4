"""Linear maps, in inference on a CPU by the library that is fastest there."""

from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn


@cache
def _mkl_is_slow() -> bool:
    """Whether MKL, which torch multiplies by, is at a loss on this processor, and oneDNN is there:
    on AMD's, products take up to a fifth longer, and those with a vector are of one thread."""
    told, onednn = Path("/proc/cpuinfo"), torch.ops.mkldnn
    amd = told.is_file() and "AuthenticAMD" in told.read_text(encoding="utf-8")
    return amd and torch.backends.mkl.is_available() and hasattr(onednn, "_linear_pointwise")


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """torch's ``linear``, in float32 without gradients by what is fastest on a CPU."""
    plain = x.is_cpu and x.dtype == weight.dtype == torch.float32 and x.numel() > 0
    plain &= type(weight) in (Tensor, nn.Parameter)  # others may be quantised or spread
    plain &= not (torch.is_grad_enabled() or torch.compiler.is_compiling())
    if not plain or torch.is_autocast_enabled("cpu") or not _mkl_is_slow():
        return nn.functional.linear(x, weight, bias)
    if x.numel() > x.size(-1):
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    # One row, as in a step of decoding: a batch of products with parts of the weight.
    parts, (rows, width), row = max(2, torch.get_num_threads()), weight.shape, x.reshape(1, -1).T
    end = rows - rows % parts
    most = weight[:end].reshape(parts, rows // parts, width)
    found = torch.bmm(most, row.expand(parts, -1, -1)).view(-1)
    if end < rows:
        found = torch.cat([found, torch.mv(weight[end:], row[:, 0])])
    return (found if bias is None else found + bias).view(*x.shape[:-1], rows)


def mapped(module: nn.Module, x: Tensor) -> Tensor:
    """``module(x)``, by :func:`linear` if it is a linear map that nothing was added to."""
    added = module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module)
    plain = type(module) is nn.Linear and not added
    return linear(x, module.weight, module.bias) if plain else module(x)
