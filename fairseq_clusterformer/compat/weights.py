"""Averages of weights (``--store-ema``), half precision, and what a model is told in training."""

import contextlib
from collections.abc import Iterator

import torch
from fairseq import checkpoint_utils
from fairseq.models.ema.ema import EMA
from fairseq.optim.fp16_optimizer import _FP16OptimizerMixin
from fairseq.trainer import Trainer
from torch import nn

from .wrapping import mends

_UNROUNDED = "unrounded_weights"


@mends(EMA, "__init__")
def keep_what_is_no_mean(init, self, model, config, device=None, skip_keys=None):
    """Lets ``--store-ema`` take the newest of what has no mean. fairseq multiplies every tensor
    by the decay: an error for whole numbers, and not a number for the logarithm of 0 times 0."""
    newest = model.state_dict().keys() - _averaged(model)
    init(self, model, config, device, {*(skip_keys or ()), *newest})


@mends(EMA, "build_fp32_params")
def average_tensors_alone(build, self, state_dict=None):
    """Lets ``--ema-fp32`` average models that keep more than tensors, as K-Means does."""
    given = self.model.state_dict() if state_dict is None else state_dict
    build(self, {name: value for name, value in given.items() if isinstance(value, torch.Tensor)})


@mends(EMA, "restore")
def keep_versions(restore, self, state_dict, build_fp32_params=False):
    """Keeps a decoder's ``version``, without which fairseq drops its last layer norm."""
    versions = {n: t for n, t in self.model.state_dict().items() if "version" in n}
    restore(self, {**versions, **state_dict}, build_fp32_params)


def _averaged(model: nn.Module) -> set[str]:
    """A model's floating-point tensors but ``pending...``, observed since the last update."""
    return {
        name
        for name, value in model.state_dict().items()
        if isinstance(value, torch.Tensor)
        and value.is_floating_point()
        and not name.rpartition(".")[2].startswith("pending")
    }


@mends(Trainer, "valid_step")
def validate_the_average(valid_step, self, sample, raise_oom=False):
    """Lets ``--store-ema`` validate the average, which is what will be used: of
    ``checkpoint_best.pt`` the average is best."""
    if self._ema is None:  # also before the first update
        return valid_step(self, sample, raise_oom)
    with _exchanged(self.get_model(), self.ema.get_model()):
        return valid_step(self, sample, raise_oom)


@contextlib.contextmanager
def _exchanged(model: nn.Module, average: nn.Module) -> Iterator[None]:
    """Exchange the averaged tensors of two models, of the model itself, which a translator's
    search has."""
    own, averages = (each.state_dict(keep_vars=True) for each in (model, average))
    # a tensor of two names is exchanged once
    pairs = {id(own[name]): (own[name], averages[name]) for name in _averaged(model)}

    def exchange() -> None:
        for one, other in pairs.values():
            one.data, other.data = other.data, one.data

    exchange()
    try:
        yield
    finally:
        exchange()


@mends(_FP16OptimizerMixin, "state_dict")
def save_unrounded(state_of, self):
    """Lets ``--bf16`` and ``--fp16`` resume to the bit: fairseq saves rounded weights alone."""
    return {**state_of(self), _UNROUNDED: [weights.detach() for weights in _unrounded(self)]}


@mends(_FP16OptimizerMixin, "load_state_dict")
def load_unrounded(load, self, state_dict, optimizer_overrides=None):
    """Takes them if they round to the model's: its weights may have come from elsewhere."""
    load(self, state_dict, optimizer_overrides)
    kept, own = state_dict.get(_UNROUNDED, ()), _unrounded(self)
    rounded = self.fp16_params[0].dtype
    if [each.shape for each in kept] == [each.shape for each in own] and all(
        torch.equal(saved.to(rounded), weights.to(rounded).to(saved.device))
        for saved, weights in zip(kept, own, strict=True)
    ):
        for saved, weights in zip(kept, own, strict=True):
            weights.data.copy_(saved)


def _unrounded(optimizer: _FP16OptimizerMixin) -> list[torch.Tensor]:
    weights = optimizer.fp32_params
    return [*weights.values()] if isinstance(weights, dict) else list(weights)


@mends(Trainer, "begin_epoch")
def announce_epochs(begin, self, epoch: int):
    """Calls a model's ``set_epoch`` when an epoch begins, with every task. fairseq does not."""
    begin(self, epoch)
    if hasattr(self.get_model(), "set_epoch"):
        self.get_model().set_epoch(epoch)


@mends(checkpoint_utils, "save_checkpoint")
def announce_saving(save, cfg, trainer, *args, **kwargs):
    """Calls ``consolidate`` of a model's modules, in which workers send what they have to the
    first, before it writes a checkpoint."""
    if not cfg.no_save:
        for module in trainer.get_model().modules():
            if hasattr(module, "consolidate"):
                module.consolidate()
    return save(cfg, trainer, *args, **kwargs)
