"""A checkpoint is looked at before a training goes on from it, or a command loads it."""

import math
import pickle
import re
import struct
from collections.abc import Mapping
from numbers import Real
from typing import Any

import torch
from fairseq import checkpoint_utils
from fairseq.data.iterators import EpochBatchIterator
from fairseq.logging import metrics
from fairseq.optim import FairseqOptimizer

from fairseq_clusterformer.errors import first_line, refused

from .wrapping import mends

#: what torch.load ends in where a file is something else; no code of ours runs in it
UNREADABLE = (OSError, EOFError, RuntimeError, LookupError, AttributeError, TypeError, ValueError)
UNREADABLE += (struct.error, pickle.UnpicklingError)
WRITTEN = "a checkpoint that fairseq has written"


class DamagedError(ValueError):
    """What is wrong with a checkpoint, in a few words."""


# What fairseq would train with until it fails, or not load, is refused in one line.


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
    load(self, fitting_state(self.optimizer, state_dict), optimizer_overrides)


@mends(metrics, "load_state_dict")
def load_metrics(load, state_dict):
    measured = metrics.get_meter("default", "wall") is not None
    load(state_dict)
    for name in state_dict:
        metrics.get_smoothed_values(name)  # what is no number shows here
    if measured and metrics.get_meter("default", "wall") is None:
        raise DamagedError("its metrics lack the time")


@mends(EpochBatchIterator, "load_state_dict")
def load_place(load, self, state_dict):
    try:
        load(self, state_dict)
    except RuntimeError:
        place = f"batch {state_dict['iterations_in_epoch']} of epoch {state_dict['epoch']}"
        allowed = "the same data and batches, or --reset-dataloader"
        problem = "this training has no such batch"
        raise refused("the checkpoint's place in the data", place, allowed, problem) from None


def why_no_checkpoint(error: BaseException) -> str:
    """What is wrong with a file, by the error that ``torch.load`` ended in. Of a file that is no
    checkpoint, pickle says a bare number, or what a byte of it would mean."""
    if isinstance(error, DamagedError):
        return str(error)
    if isinstance(error.__cause__, UNREADABLE):  # said already, with the file's name
        return why_no_checkpoint(error.__cause__)
    refusal = r"nsupported (?:global|class).*? ([\w.]+) (?:was not|whose module)"
    if found := re.search(refusal, str(error), re.DOTALL | re.IGNORECASE):
        return f"it needs {found[1]}, which fairseq does not write"
    if isinstance(error, EOFError):
        return "it is empty or cut off"
    if isinstance(error, OSError):
        return error.strerror or first_line(error)
    if "PytorchStreamReader" in str(error):
        return "it is cut off or damaged"
    return "it is no checkpoint, or damaged"


def _is_number(value: object) -> bool:
    return isinstance(value, Real) or (torch.is_tensor(value) and value.numel() == 1)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _are_tensors(value: object) -> bool:
    """Of real numbers, stored whole; what else it has, such as a bank of K-Means, is no tensor."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        return False
    tensors = [tensor for tensor in value.values() if torch.is_tensor(tensor)]
    return all(t.layout is torch.strided and not t.is_complex() for t in tensors)


def _are_numbers(value: Mapping) -> bool:
    """Of a schedule; it has a best loss once there was a validation."""
    return all(_is_number(v) or (v is None and n == "best") for n, v in value.items())


#: what parts should be, the function that is true of it, and the parts; without training, there
#: is no last_optimizer_state
_PARTS = {
    "a list of updates": (lambda part: isinstance(part, list) and part, "optimizer_history"),
    "a dictionary": (
        lambda part: isinstance(part, Mapping),
        "optimizer_history.-1 extra_state task_state",
    ),
    "a dictionary or nothing": (
        lambda part: part is None or isinstance(part, Mapping),
        "last_optimizer_state",
    ),
    "tensors of real numbers": (_are_tensors, "model extra_state.ema"),
    "a name": (
        lambda part: isinstance(part, str),
        "optimizer_history.-1.criterion_name optimizer_history.-1.optimizer_name",
    ),
    "a whole number": (
        _is_count,
        "optimizer_history.-1.num_updates extra_state.train_iterator.epoch"
        " extra_state.train_iterator.iterations_in_epoch extra_state.train_iterator.version"
        " extra_state.early_stopping.num_runs",
    ),
    "true or false": (lambda part: isinstance(part, bool), "extra_state.train_iterator.shuffle"),
    "a number": (
        _is_number,
        "extra_state.previous_training_time extra_state.best extra_state.early_stopping.best"
        " last_optimizer_state.loss_scale",
    ),
    "numbers": (_are_numbers, "optimizer_history.-1.lr_scheduler_state"),
}


def check_state(state: object) -> None:
    """Check what is the same for each model and optimizer. Raises DamagedError."""
    if not isinstance(state, Mapping) or "model" not in state:
        raise DamagedError("it holds no model")
    for what, (is_right, paths) in _PARTS.items():
        for path in paths.split():
            part: Any = state
            try:
                for name in path.split("."):
                    part = part[int(name) if isinstance(part, list) else name]
                right = is_right(part)
            except (KeyError, IndexError):
                continue
            except (TypeError, ValueError, AttributeError):
                right = part is None  # which was allowed
            if not right:
                raise DamagedError(f"its {path} is {str(part)[:60]}, not {what}")


def fitting_state(optimizer: torch.optim.Optimizer, state: object) -> dict:
    """A state for an optimizer, with what its groups lack. Raises DamagedError: it is of other
    parameters, or its numbers are none."""
    own = optimizer.state_dict()["param_groups"]
    try:
        groups, entries = state["param_groups"], state["state"]
        sizes = [len(group["params"]) for group in groups]
        numbers = [number for group in groups for number in group["params"]]
        known = all(number in numbers and isinstance(e, Mapping) for number, e in entries.items())
    except (TypeError, KeyError, AttributeError):
        raise DamagedError("its last_optimizer_state is damaged") from None
    if sizes != [len(group["params"]) for group in own] or not known:
        raise DamagedError("its last_optimizer_state is of other parameters")
    for group, mine in zip(groups, own, strict=True):
        for name, value in group.items():
            if name != "params" and not _alike(value, mine.get(name)):
                raise DamagedError(f"its optimizer's {name} is {str(value)[:60]}")
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    names: dict[int, set] = {}
    for number, weight in zip(numbers, weights, strict=True):
        if (kept := entries.get(number)) is not None:
            for name, value in kept.items():
                if not _fits(value, weight.shape):
                    problem = f"does not fit a parameter of {list(weight.shape)}"
                    raise DamagedError(f"its optimizer's {name} {problem}")
            if kept.keys() != names.setdefault(weight.dim(), kept.keys()):
                raise DamagedError("its last_optimizer_state lacks numbers of some parameters")
    filled = [{**mine, **group} for group, mine in zip(groups, own, strict=True)]
    return {**state, "param_groups": filled}


def _alike(value: object, own: object) -> bool:
    """Whether an optimizer that has one value of an option can have the other."""
    if isinstance(own, (list, tuple)):
        fits = isinstance(value, (list, tuple)) and len(value) == len(own)
        return fits and all(map(_alike, value, own))
    if isinstance(own, Real) and not isinstance(own, bool):
        return _is_number(value) and math.isfinite(value)
    return own is None or isinstance(value, type(own))


def _fits(value: object, shape: torch.Size) -> bool:
    """Whether an optimizer can keep it of a parameter: a number, or one for each of its numbers or
    (Adafactor) for its rows and columns."""
    if not torch.is_tensor(value):
        return isinstance(value, Real) and math.isfinite(value)
    rows, columns = shape[:-1], shape[:-2] + shape[-1:]
    shapes = [(), (1,), shape, rows, columns, (*rows, 1), (*shape[:-2], 1, *shape[-1:])]
    real = value.layout is torch.strided and not value.is_complex()
    return real and value.shape in map(torch.Size, shapes) and bool(value.isfinite().all())
