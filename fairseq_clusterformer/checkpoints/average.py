"""The average of several checkpoints' parameters."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from fairseq_clusterformer.errors import UserError, bad_option

from .bundle import is_bundle, located, read_bundle
from .load import read_tensors


def average(paths: Sequence[Path], *, ema: bool = False) -> dict:
    """Return a checkpoint with the average of the parameters of checkpoints, bundles or installed
    models; `ema`: of the moving averages that ``--store-ema`` kept. A tensor that two names share
    in each is shared in the result too. The mean of minus infinity, which a log-sum-exp starts
    from, is minus infinity. Raises UserError: a file that is no checkpoint, or has no moving
    average, or parameters that differ in name or shape."""
    sums: dict[str, Tensor] = {}
    places: dict[str, tuple] = defaultdict(tuple)  # where a tensor lies in each checkpoint
    newest, latest, shapes = {}, -1, {}
    for path in map(located, paths):
        state = _read(path)
        moving = state.get("extra_state", {}).pop("ema", None)
        if ema and moving is None:
            raise bad_option("--ema", "given", "checkpoints of --store-ema", f"{path} has none")
        if ema:
            state["model"] |= moving
        # what is no tensor, such as a memory bank, is taken from the newest
        model = {n: t for n, t in state["model"].items() if isinstance(t, Tensor)}
        given = {name: list(tensor.shape) for name, tensor in model.items()}
        shapes = shapes or given
        if other := next((n for n in {**shapes, **given} if given.get(n) != shapes.get(n)), None):
            there, here = (of.get(other, "missing") for of in (shapes, given))
            problem = f"{other} is {there} in {paths[0]}, {here} in {path}"
            raise UserError(f"--inputs: {problem}; allowed: checkpoints of one model")
        for name, tensor in model.items():
            places[name] += ((tensor.data_ptr(), tensor.stride(), tensor.shape, tensor.dtype),)
            if tensor.is_floating_point():
                if not (tensor < torch.inf).all():
                    problem = f"{name} holds numbers that are not finite"
                    raise bad_option("--inputs", path, "checkpoints of finite weights", problem)
                wide = tensor.to(torch.promote_types(tensor.dtype, torch.float32), copy=True)
                sums[name] = sums[name] + wide if name in sums else wide
        updates = state.get("optimizer_history", [{}])[-1].get("num_updates", 0)
        if updates >= latest:
            newest, latest = state, updates
        state["last_optimizer_state"] = None
    means: dict[tuple, Tensor] = {}
    for name, total in sums.items():
        mean = (total / len(paths)).to(newest["model"][name].dtype)
        newest["model"][name] = means.setdefault(places[name], mean)
    return newest


def _read(path: Path) -> dict:
    if not is_bundle(path):
        return read_tensors(path, "--inputs")
    state = read_bundle(path, "--inputs")
    # what fairseq asks of a checkpoint that --finetune-from-model names
    state["optimizer_history"][-1] |= {"optimizer_name": "", "lr_scheduler_state": {}}
    return state | {"args": None, "extra_state": {}}
