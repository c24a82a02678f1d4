"""A checkpoint is looked at before a training goes on from it, or a command loads it."""

import pickle
import re
import struct
from collections.abc import Mapping

import torch
from fairseq import checkpoint_utils
from fairseq.logging import metrics
from fairseq.optim import FairseqOptimizer

from fairseq_clusterformer.errors import first_line, refused

from .wrapping import mends

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
