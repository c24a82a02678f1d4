"""``--optimizer clusterformer_lamb``: LAMB (You et al. 2020, algorithm 2). fairseq's own needs
apex and a GPU."""

from ast import literal_eval
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.optim import FairseqOptimizer, register_optimizer
from omegaconf import II

from fairseq_clusterformer.models.options import option


class Lamb(torch.optim.AdamW):
    """AdamW's update of each tensor x, scaled to the norm of x times the learning rate; not scaled
    where one of both norms is 0."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Update all parameters that have a gradient."""
        before = [[x.clone() for x in group["params"]] for group in self.param_groups]
        rates = [group["lr"] for group in self.param_groups]
        for group in self.param_groups:
            group["lr"] = 1.0
        super().step()
        for group, olds, group["lr"] in zip(self.param_groups, before, rates, strict=True):
            for x, old in zip(group["params"], olds, strict=True):
                update = old - x
                norm, of_update = old.norm(), update.norm()
                trust = torch.where((norm > 0) & (of_update > 0), norm / of_update, 1.0)
                x.copy_(old - group["lr"] * trust * update)


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
        rate, decay = self.cfg.lr, self.cfg.weight_decay
        how = {"lr": rate[0] if isinstance(rate, Collection) else rate, "weight_decay": decay}
        return how | {"betas": literal_eval(self.cfg.lamb_betas), "eps": self.cfg.lamb_eps}
