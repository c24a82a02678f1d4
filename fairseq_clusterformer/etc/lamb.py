"""``--optimizer clusterformer_lamb``: LAMB (You et al. 2020, algorithm 2), on any device.

fairseq's own ``lamb`` needs apex and a GPU.
"""

from ast import literal_eval
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.optim import FairseqOptimizer, register_optimizer
from omegaconf import II

from fairseq_clusterformer.models.options import option


class Lamb(torch.optim.Optimizer):
    """Adam's update of each tensor x plus ``weight_decay * x``, scaled to the norm of x times the
    learning rate; not scaled where one of both norms is 0. State is float32 or more."""

    def __init__(self, params: Any, lr: float, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.0):
        defaults = {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Update all parameters that have a gradient."""
        for group in self.param_groups:
            (beta, beta_of_squares), rate = group["betas"], group["lr"]
            for x in group["params"]:
                if x.grad is None:
                    continue
                state, gradient, value = self.state[x], x.grad.float(), x.float()
                if not state:
                    state.update(step=0, exp_avg=torch.zeros_like(gradient))
                    state["exp_avg_sq"] = torch.zeros_like(gradient)
                state["step"] += 1
                mean = state["exp_avg"].lerp_(gradient, 1 - beta)
                square = state["exp_avg_sq"].lerp_(gradient.square(), 1 - beta_of_squares)
                root = (square / (1 - beta_of_squares ** state["step"])).sqrt() + group["eps"]
                update = mean / (1 - beta ** state["step"]) / root + group["weight_decay"] * value
                norm, of_update = value.norm(), update.norm()
                trust = torch.where((norm > 0) & (of_update > 0), norm / of_update, 1.0)
                x.sub_((rate * trust * update).to(x.dtype))


@dataclass
class LambConfig(FairseqDataclass):
    """Options of LAMB."""

    lamb_betas: str = option("(0.9, 0.999)", "of the means of gradients and of their squares")
    lamb_eps: float = option(1e-6, "added to the root of the mean square", at_least=0)
    weight_decay: float = option(0.0, "lambda, times the weights", at_least=0)
    lr: list[float] = II("optimization.lr")


@register_optimizer("clusterformer_lamb", dataclass=LambConfig)
class FairseqLamb(FairseqOptimizer):
    """:class:`Lamb` in fairseq's registry."""

    def __init__(self, cfg: LambConfig, params: Any):
        super().__init__(cfg)
        self._optimizer = Lamb(params, **self.optimizer_config)

    @property
    def optimizer_config(self) -> dict[str, Any]:
        """What overrides the options in a checkpoint."""
        cfg = self.cfg
        rate = cfg.lr[0] if isinstance(cfg.lr, Collection) else cfg.lr
        how = {"betas": literal_eval(cfg.lamb_betas), "eps": cfg.lamb_eps}
        return {"lr": rate, "weight_decay": cfg.weight_decay, **how}
