"""``--optimizer adam`` on CPUs: torch's fused AdamW, as fairseq takes apex's on GPUs."""

import torch
from fairseq.optim.adam import FairseqAdam

from .wrapping import wrap


class FusedAdam(torch.optim.AdamW):
    """What fairseq's ``Adam`` computes, in one pass over memory instead of eight; epsilon is added
    to the root of the mean square once this is corrected. Each loads the other's state."""

    supports_flat_params = True

    def __setstate__(self, state: dict) -> None:
        for group in state["param_groups"]:
            group["fused"] = True  # fairseq's own has no such thing
        super().__setstate__(state)


def _fuse(init, self, cfg, params) -> None:
    params = list(params)
    init(self, cfg, params)
    each = [x for group in self.param_groups for x in group["params"]]
    on_cpu = all(x.device.type == "cpu" and x.dtype.itemsize >= 4 for x in each)
    if on_cpu and not getattr(cfg, "use_old_adam", False) and not getattr(cfg, "tpu", False):
        self._optimizer = FusedAdam(params, **self.optimizer_config, fused=True)


def fuse_adam() -> None:
    """Mend fairseq's Adam: where all weights are float32 on a CPU, and ``--use-old-adam`` is not
    given."""
    wrap(FairseqAdam, "__init__", _fuse)
