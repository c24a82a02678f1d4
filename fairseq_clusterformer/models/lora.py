"""Low-rank adaptation (LoRA, Hu et al. 2022, equation 3): each map's weight W is W + B A, of which
A and B are learned alone; and the routers of clusters, since nothing else finds new ones."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

_ORIGINAL = ".parametrizations.weight.original"
_PARTS = _BELOW, _ABOVE = ".parametrizations.weight.0.below", ".parametrizations.weight.0.above"


class LowRank(nn.Module):
    """W + B A of a weight W [M, N]: A [R, N] is drawn and B [M, R] is 0, so it begins as W."""

    def __init__(self, weight: Tensor, rank: int):
        super().__init__()
        self.below = nn.Parameter(torch.randn(rank, weight.size(1)) * weight.size(1) ** -0.5)
        self.above = nn.Parameter(torch.zeros(weight.size(0), rank))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.above @ self.below


def adapt(model: nn.Module, rank: int) -> None:
    """Freeze a language model, but for its routers and centroids, and adapt its layers' maps."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(".routers." in name or "centroids" in name)
    for layer in model.decoder.all_layers():
        for name, module in [*layer.named_modules()]:
            if isinstance(module, nn.Linear) and ".routers." not in f".{name}":
                low_rank = LowRank(module.weight, rank)
                parametrize.register_parametrization(module, "weight", low_rank)
    # activation checkpoints ask their inputs whether there is something to learn
    model.decoder.embed_tokens.register_forward_hook(
        lambda _, __, x: x.requires_grad_() if torch.is_grad_enabled() else None
    )


def adapt_state(state: dict[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    """Let the tensors of a model, in place, be those of one that was adapted to ``wanted``."""
    for name in _adapted(wanted):
        if f"{name}.weight" in state:
            state[name + _ORIGINAL] = state.pop(f"{name}.weight")
            state |= {name + part: wanted[name + part] for part in _PARTS}


def merged(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of the model that an adapted one computes, without A and B."""
    found = dict(state)
    for name in _adapted(state):
        weight, below, above = (found.pop(name + part) for part in (_ORIGINAL, *_PARTS))
        found[f"{name}.weight"] = weight + (above.float() @ below.float()).to(weight)
    return found


def _adapted(state: Mapping[str, Tensor]) -> Iterator[str]:
    return (name.removesuffix(_ORIGINAL) for name in state if name.endswith(_ORIGINAL))
