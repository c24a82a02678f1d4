"""A training's state stays whole, is looked at before it is read, and has averages of weights."""

import logging
import math
import os
import pickle
import re
import struct
import sys
import weakref
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import torch
from fairseq import checkpoint_utils
from fairseq.dataclass.configs import CheckpointConfig
from fairseq.file_io import PathManager
from fairseq.logging import metrics
from fairseq.models.ema.ema import EMA
from fairseq.optim import FairseqOptimizer
from fairseq.optim.fp16_optimizer import _FP16OptimizerMixin
from fairseq.trainer import Trainer
from filelock import BaseFileLock
from torch import nn

from fairseq_clusterformer.errors import UserError, first_line, refused
from fairseq_clusterformer.outputs import hold

from .wrapping import mends

logger = logging.getLogger(__name__)

LOCK = ".training"
_UNROUNDED = "unrounded_weights"
#: what torch.load ends in where a file is something else; no code of ours runs in it
UNREADABLE = (OSError, EOFError, RuntimeError, LookupError, AttributeError, TypeError, ValueError)
UNREADABLE += (ArithmeticError, struct.error, pickle.UnpicklingError)
WRITTEN = "a checkpoint that fairseq has written"
GIVEN = "the checkpoint's"


class DamagedError(ValueError):
    """What is wrong with a checkpoint, in a few words."""


@mends(checkpoint_utils, "load_checkpoint_to_cpu")
def load_checkpoint_to_cpu(load, path, *args, **kwargs):
    try:
        state = load(path, *args, **kwargs)
        check_state(state)
    except FileNotFoundError:
        raise
    except UNREADABLE as error:
        problem = f"cannot be read ({why_no_checkpoint(error)})"
        raise refused("the checkpoint", path, WRITTEN, problem) from error
    return state


@mends(FairseqOptimizer, "load_state_dict")
def load_optimizer(load, self, state_dict, optimizer_overrides=None):
    for numbers in state_dict["state"].values():
        if not all(n.isfinite().all() for n in numbers.values() if torch.is_tensor(n)):
            raise DamagedError("its optimizer's numbers are not finite")
    load(self, state_dict, optimizer_overrides)
    self.is_restored = True


@mends(FairseqOptimizer, "step")
def first_step(step, self, *args, **kwargs):
    restored = vars(self).pop("is_restored", False)
    try:
        step(self, *args, **kwargs)
    except UNREADABLE as error:
        if not restored:
            raise
        allowed = "one of this model and optimizer, or --reset-optimizer"
        raise refused("the optimizer's state", GIVEN, allowed, first_line(error)) from error


@mends(metrics, "load_state_dict")
def load_metrics(load, state_dict):
    wall = metrics.get_meter("default", "wall")
    load(state_dict)
    for name in state_dict:
        metrics.get_smoothed_values(name)  # what is no number shows here
    if wall is not None and metrics.get_meter("default", "wall") is None:
        raise DamagedError("its metrics lack the time")


def why_no_checkpoint(error: BaseException) -> str:
    """What is wrong with a file, by the error that ``torch.load`` ended in: of a file that is no
    checkpoint, pickle says what a byte of it would mean."""
    if isinstance(error, DamagedError):
        return str(error)
    if isinstance(error.__cause__, UNREADABLE):  # said already, with the file's name
        return why_no_checkpoint(error.__cause__)
    refusal = r"nsupported (?:global|class).*? ([\w.]+) (?:was not|whose module)"
    if found := re.search(refusal, str(error), re.DOTALL | re.IGNORECASE):
        return f"it needs {found[1]}, which fairseq does not write"
    if isinstance(error, OSError):
        return error.strerror or first_line(error)
    return "it is no checkpoint, or is empty, cut off or damaged"


def check_state(state: object) -> None:
    """Raises DamagedError: no model of real numbers, stored whole, or no history of updates."""
    if not isinstance(state, Mapping) or "model" not in state:
        raise DamagedError("it holds no model")
    for name in ("model", "task_state", "extra_state"):
        if not isinstance(state.get(name, {}), Mapping):
            raise DamagedError(f"its {name} is no dictionary")
    model, history = state["model"], state.get("optimizer_history", [{}])
    tensors = filter(torch.is_tensor, model.values())
    real = all(t.layout is torch.strided and not t.is_complex() for t in tensors)
    if not real or not all(isinstance(name, str) for name in model):
        raise DamagedError("its model is not of named tensors of real numbers")
    made = isinstance(history, list) and history and isinstance(history[-1], Mapping)
    updates = history[-1].get("num_updates", 0) if made else None
    if not isinstance(updates, int) or not 0 <= updates < 2**31:
        raise DamagedError(f"its optimizer_history is {str(history)[-60:]}, not a list of updates")


# Saving


@mends(PathManager, "copy")
def copy_whole(copy, source: str, target: str, overwrite: bool = False) -> bool:
    """A copy of a checkpoint is whole or not there."""
    if PathManager.path_requires_pathmanager(target):
        return copy(source, target, overwrite)
    aside = f"{target}.tmp"  # as fairseq calls a checkpoint that it is writing
    copy(source, aside, True)
    os.replace(aside, target)
    return True


@mends(checkpoint_utils, "load_checkpoint")
def load_checkpoint(load, cfg: CheckpointConfig, trainer: Trainer, **kwargs):
    """Refuses a folder where another training saves, and leaves one that is finished."""
    if trainer.is_data_parallel_master and not cfg.no_save:
        _lock(Path(cfg.save_dir), trainer)
    # the checkpoint that this training goes on from, or would
    name, given = CheckpointConfig.restore_file, Path(cfg.restore_file)
    last = Path(cfg.save_dir, name.replace(".pt", f"{cfg.checkpoint_suffix or ''}.pt"))
    if cfg.restore_file != name and given.resolve().parent == last.resolve().parent:
        last = given
    own = last.is_file()
    if last.is_dir() and not cfg.no_save:
        raise refused("--save-dir", cfg.save_dir, "one without it", f"{last} is a folder")
    try:
        extra_state, batches = load(cfg, trainer, **kwargs)
        if not own or extra_state is None:
            return extra_state, batches
        if not cfg.reset_meters:
            stopping().update(extra_state.get("early_stopping", {}))
        reason = _why_finished(trainer, batches)
    except UNREADABLE as error:
        if not (own or given.is_file()) or "; allowed: " in str(error):
            raise
        allowed = "one of the same data and batches, or --reset-dataloader --reset-meters"
        raise refused("the place in the data", GIVEN, allowed, first_line(error)) from error
    if reason:
        logger.info(f"{last} is finished ({reason}): there is nothing to do")
        # fairseq trains while this is at most the last epoch, which no NaN is
        batches = SimpleNamespace(next_epoch_idx=math.nan)
    return extra_state, batches


@mends(Trainer, "save_checkpoint")
def save_checkpoint(save, self: Trainer, filename: str, extra_state: dict):
    """Saves also how long no validation was better."""
    if "best" in stopping():
        extra_state["early_stopping"] = {k: stopping()[k] for k in ("best", "num_runs")}
    return save(self, filename, extra_state)


def stopping() -> dict:
    """What fairseq counts to stop early, as attributes of a function."""
    places = sys.modules["__main__"], sys.modules.get("fairseq_cli.train")
    functions = (vars(module).get("should_stop_early") for module in places if module)
    return next((vars(function) for function in functions if function), {})


def _why_finished(trainer: Trainer, batches) -> str:
    """Why no update is left to make; empty: some are."""
    options = trainer.cfg.optimization
    made = {
        ("--max-update", options.max_update): trainer.get_num_updates(),
        ("--max-epoch", options.max_epoch): batches.next_epoch_idx - 1,
        ("--stop-time-hours", options.stop_time_hours): trainer.cumulative_training_time() / 3600,
        ("--patience", trainer.cfg.checkpoint.patience): stopping().get("num_runs", 0),
    }
    return next((f"{option} {most}" for (option, most), n in made.items() if 0 < most <= n), "")


def _lock(folder: Path, trainer: Trainer) -> None:
    """Hold a folder until the trainer or the process ends; ValueError: another holds it."""
    try:
        # a process can train there again, before its first trainer is gone
        how = {"is_singleton": True, "thread_local": False}
        lock = hold(folder / LOCK, "--save-dir", folder, what="training", **how)
    except UserError as error:
        raise ValueError(str(error)) from None
    weakref.finalize(trainer, _let_go, lock, folder / LOCK, os.getpid())


def _let_go(lock: BaseFileLock, path: Path, owner: int) -> None:
    if os.getpid() == owner:
        if lock.lock_counter == 1:
            path.unlink(missing_ok=True)
        lock.release()


# Weights: averages of --store-ema, half precision; and what a model is told in training


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
    """Lets ``--store-ema`` validate the average, of which ``checkpoint_best.pt`` has the best."""
    if self._ema is None:  # also before the first update
        return valid_step(self, sample, raise_oom)
    model = self.get_model()  # itself, which a translator's search has
    own, averages = (each.state_dict(keep_vars=True) for each in (model, self.ema.get_model()))
    # a tensor of two names is exchanged once
    pairs = {id(own[name]): (own[name], averages[name]) for name in _averaged(model)}

    def exchange() -> None:
        for one, other in pairs.values():
            one.data, other.data = other.data, one.data

    exchange()
    try:
        return valid_step(self, sample, raise_oom)
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
    pairs = [*zip(kept, own, strict=False)]
    same = (torch.equal(x.to(rounded), y.to(rounded).to(x.device)) for x, y in pairs)
    if len(kept) == len(own) and all(same):
        for saved, weights in pairs:
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
    """Calls modules' ``consolidate``, by which the first worker gets what it is to write."""
    if not cfg.no_save:
        for module in trainer.get_model().modules():
            if hasattr(module, "consolidate"):
                module.consolidate()
    return save(cfg, trainer, *args, **kwargs)
