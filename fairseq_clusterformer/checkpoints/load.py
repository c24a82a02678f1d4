"""Loads any checkpoint, a file that fairseq wrote or a bundle; and the average of several."""

import math
import re
from argparse import Namespace
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Optional

import torch
from fairseq import checkpoint_utils, tasks, utils
from fairseq.data import FairseqDataset
from fairseq.dataclass.utils import convert_namespace_to_omegaconf, overwrite_args_by_name
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY
from fairseq.tasks import TASK_REGISTRY
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn
from torch.nn.modules import module
from torch.overrides import TorchFunctionMode

from fairseq_clusterformer import plugin  # noqa: F401  all that a checkpoint may name
from fairseq_clusterformer.compat.checks import dataclass_of
from fairseq_clusterformer.compat.saving import UNREADABLE, check_state, why_no_checkpoint
from fairseq_clusterformer.errors import UserError, bad_option, check_no_pipes, first_line
from fairseq_clusterformer.models import lora
from fairseq_clusterformer.models.checkpoints import unfit_numbers
from fairseq_clusterformer.moved import user_dir_of
from fairseq_clusterformer.ranges import check_ranges

from .bundle import ALLOWED, Loaded, data_files, is_bundle, located, no_file, read_bundle

PLUGIN = "and the plug-in (--user-dir)"
#: options of what a training read or ran, which a stranger may have chosen
_PATHS = re.compile(r".*_(path|dir|file|script|checkpoint)|pretrained|lift|word_vectors")
_MAKE = (torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn)
_SPARE = 1 << 26  # numbers that a model may have beside twice those in its file


def load_checkpoint(
    path: Path | str,
    *,
    data: Path | str | None = None,
    task: str | Sequence[str] | None = None,
    option: str = "--checkpoint",
    **overrides: object,
) -> Loaded:
    """Load a checkpoint or a bundle. Raises UserError: a file or a folder that is missing, is
    something else, or does not fit.

    Args:
        path: a file that fairseq wrote, a bundle's folder, or the name of an installed model.
        data: a prepared folder with the model's dictionary; None: that of the training, or the
            bundle itself.
        task: names of the fairseq tasks that are allowed; None: any.
        option: what named `path`, for messages.
        overrides: options of the task and the model that should differ from the training's.
    """
    path = located(path)
    state = read_tensors(path, option)
    try:
        cfg = state["cfg"] if is_bundle(path) else _upgraded(state)
        _check_sections(cfg)
        wanted = [task] if isinstance(task, str) else task
        if wanted and cfg.task._name not in wanted:
            allowed = f"a model of the task {' or '.join(wanted)}"
            raise ValueError(f"of the task {cfg.task._name}; allowed: {allowed}")
        for name in ("task", "model"):
            _check_options(cfg, name, state["model"])
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        text, _, allowed = reason_of(error).partition("; allowed: ")
        raise bad_option(option, path, allowed or ALLOWED, text) from None
    given = str(data) if data is not None else getattr(cfg.task, "data", None) or ""
    folder = path if is_bundle(path) and data is None else Path(utils.split_paths(given)[0])
    if getattr(cfg.model, "lora", 0):
        overwrite_args_by_name(cfg, {"lora": 0})
        state["model"] = lora.merged(state["model"])
    overwrite_args_by_name(cfg, {**overrides, "data": str(folder)})
    allowed = f"the folder that {path} was trained on, wherever it is now"
    if not folder.is_dir():
        given = f"{folder}{', as the checkpoint says' if data is None else ''}"
        raise bad_option("--data", given, allowed, "no such folder")
    check_no_pipes("--data", folder)
    data_files(folder)
    try:
        loaded_task = tasks.setup_task(cfg.task, from_checkpoint=True)
        loaded_task.load_state_dict(state.get("task_state", {}))
    except Exception as error:
        # fairseq raises a plain Exception where a dictionary cannot be read
        if type(error) is not Exception and not isinstance(error, (OSError, ValueError)):
            raise
        raise bad_option("--data", folder, allowed, reason_of(error)) from None
    updates = state["optimizer_history"][-1]["num_updates"]
    try:
        with as_large_as(_numbers(state["model"])):
            model = loaded_task.build_model(cfg.model, from_checkpoint=True)
        model.set_num_updates(updates)  # before loading: a model commits to what it has seen
        # what serves training alone, such as a memory bank, is no tensor and in no bundle
        banks = {n: v for n, v in model.state_dict().items() if not isinstance(v, Tensor)}
        if is_bundle(path):
            state["model"] |= banks
        for name, value in state["model"].items():
            if not isinstance(value, Tensor) and name not in banks:
                raise ValueError(f"{name} is no tensor")
        if told := unfit_numbers(model, state["model"]):
            raise ValueError(told)
        model.load_state_dict(state["model"], strict=True, model_cfg=cfg.model)
    except MemoryError:
        raise
    except Exception as error:  # fairseq's models check little of what a file says
        allowed = f"a model of this version, with the data (--data) {PLUGIN} of its training"
        problem = f"does not fit the data in {folder} or this version ({reason_of(error)})"
        raise bad_option(option, path, allowed, problem) from error
    return Loaded(model.eval(), loaded_task, cfg, folder, path, updates)


def average(paths: Sequence[Path], *, ema: bool = False) -> dict:
    """A checkpoint with the average of the parameters of checkpoints, bundles or installed models;
    `ema`: of the moving averages that ``--store-ema`` kept. What two names share in each is shared
    in the result. The mean of minus infinity, where a log-sum-exp starts, is minus infinity.
    Raises UserError: no checkpoint, no moving average, or other names or shapes."""
    sums: dict[str, Tensor] = {}
    places: dict[str, tuple] = defaultdict(tuple)  # where a tensor lies in each checkpoint
    newest, latest, shapes = {}, -1, {}
    for path in map(located, paths):
        state = read_tensors(path, "--inputs")
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


def dataset_of(loaded: Loaded, split: str, option: str) -> FairseqDataset:
    """A split of a model's data, which `option` names. UserError: none there, or an empty one."""
    try:
        loaded.task.load_dataset(split)
    except (FileNotFoundError, ValueError) as error:
        there = sorted({path.name.partition(".")[0] for path in loaded.folder.glob("*.idx")})
        allowed = ", ".join(there) or "one of a folder with texts (--data)"
        problem = first_line(error).partition("; allowed: ")[0]
        raise bad_option(option, split, allowed, problem) from None
    if not len(dataset := loaded.task.dataset(split)):
        raise bad_option(option, split, "a split with text", "it is empty")
    return dataset


def _check_options(cfg: DictConfig, name: str, tensors: dict) -> None:
    """Raises ValueError: a task or a model that is unknown; an option whose type or range is not
    what its dataclass declares, or that asks for more layers or positions than the tensors have,
    as far as a model makes these without tensors of its own. Options that name files, or how to
    score translations, served training alone, and are emptied."""
    section, found = cfg[name], f"its {name} {cfg[name]._name}"
    known = TASK_REGISTRY if name == "task" else {**MODEL_REGISTRY, **ARCH_MODEL_REGISTRY}
    if section._name not in known and (folder := user_dir_of(section._name)):
        raise ValueError(f"{found} is that of a plug-in; allowed: it with --user-dir {folder}")
    if section._name not in known:
        allowed = f"{ALLOWED}, {PLUGIN} of its training"
        raise ValueError(f"{found} is unknown to this version; allowed: {allowed}")
    plain = isinstance(section, Namespace)  # as models of argparse have them
    kind, values = dataclass_of(name, section), vars(section) if plain else section
    if kind is not None:
        if plain and name == "task":  # which fairseq makes of a dictionary
            raise ValueError("its task is a namespace; allowed: a dictionary")
        declared = {item.name: item for item in fields(kind) if item.name in values}
        for key, item in declared.items():  # omegaconf takes any number for text
            if item.type in (str, Optional[str]) and isinstance(values[key], (int, float)):  # noqa: UP045
                raise ValueError(f"{key} is {values[key]}; allowed: text")
        given = {key: values[key] if plain else section._get_node(key) for key in declared}
        OmegaConf.merge(kind(), {k: v for k, v in given.items() if v is not None or not plain})
    check_ranges(section, kind)
    for key in ("source_lang", "target_lang"):
        if "/" in str(values.get(key)):
            raise ValueError(f"{key} is {values[key]}; allowed: a language")
    sizes = {str(key): value for key, value in values.items() if type(value) is int}
    width = max([1, *(v for k, v in sizes.items() if k.endswith("embed_dim"))])
    limits = {"layers": len(tensors), "positions": (2 * _numbers(tensors) + _SPARE) // width}
    for key, value in sizes.items() if name == "model" else ():
        most = next((most for end, most in limits.items() if key.endswith(end)), value)
        if value > most:
            raise ValueError(f"{key} is {value}; allowed: at most {most}, by the tensors")
    for key in [key for key, value in values.items() if value and _PATHS.fullmatch(str(key))]:
        overwrite_args_by_name(cfg, {key: "" if isinstance(values[key], str) else None})
    if values.get("eval_bleu"):
        overwrite_args_by_name(cfg, {"eval_bleu": False})


def _numbers(tensors: dict) -> int:
    return sum(tensor.numel() for tensor in tensors.values() if isinstance(tensor, Tensor))


class _Budget(TorchFunctionMode):
    """Refuses new tensors of more numbers than are left, before there is memory for them."""

    def __init__(self, numbers: int):
        super().__init__()
        self._most, self._left = max(2 * numbers, _SPARE >> 10), 2 * numbers + _SPARE

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in _MAKE:
            given = [*args, kwargs.get("size")]
            self._check("tensor", next((s for s in given if isinstance(s, (tuple, list))), args))
        elif func is torch.arange:
            self._check("tensor", [int(max(args, default=0))])
        return func(*args, **kwargs)

    def _check(self, name: str, shape: Sequence[int], what: str = "more than the file holds"):
        if math.prod(shape) > (self._left if what.startswith("more") else self._most):
            raise ValueError(f"its options ask for a {name} of {list(shape)}, {what}")

    def count(self, _module: nn.Module, name: str, tensor: Tensor | None) -> None:
        if tensor is not None:
            self._check(name, tensor.shape)
            self._left -= tensor.numel()
            if isinstance(tensor, nn.Parameter):
                self._check(name, tensor.shape, "which is not in the file")


@contextmanager
def as_large_as(numbers: int) -> Iterator[None]:
    """Stops models of far more numbers than a file has; ValueError: their options ask for them."""
    with ExitStack() as hooks:
        budget = hooks.enter_context(_Budget(numbers))
        hooks.callback(module.register_module_parameter_registration_hook(budget.count).remove)
        hooks.callback(module.register_module_buffer_registration_hook(budget.count).remove)
        yield


def read_tensors(path: Path, option: str) -> dict:
    """All of a bundle, or of a file of fairseq's, on the CPU. UserError: it is none of these."""
    if is_bundle(path):
        return read_bundle(path, option)
    if not path.is_file():
        raise no_file(path, option)
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        check_state(state)
    except UNREADABLE as error:
        problem = f"cannot be read ({why_no_checkpoint(error)})"
        raise bad_option(option, path, ALLOWED, problem) from None
    return state


def _upgraded(state: dict) -> DictConfig:
    """A file's options in the form of today's; ValueError, or what fairseq raises: it has none."""
    if cfg := state.get("cfg"):
        if not isinstance(cfg, (dict, DictConfig)):
            raise ValueError("its cfg holds no options of a training")
        state["cfg"] = OmegaConf.create(cfg, flags={"allow_objects": True})
        if found := re.search(r"\$\{[\w.]+:[^}]*\}?", str(state["cfg"])):  # such as oc.env
            found = found[0][:60]
            raise ValueError(f"its options hold {found}, which stands for something else")
        _check_sections(state["cfg"])
    elif not isinstance(state.get("args"), Namespace):
        raise ValueError("holds no options of a training")
    checkpoint_utils._upgrade_state_dict(state)
    if state.get("args") is not None:  # fairseq before version 1.0
        state["cfg"] = convert_namespace_to_omegaconf(state["args"])
    for unused in ("last_optimizer_state", "criterion"):
        state.pop(unused, None)
    return state["cfg"]


def _check_sections(cfg: DictConfig) -> None:
    for name in ("task", "model"):
        section = cfg.get(name)
        is_section = isinstance(section, (DictConfig, Namespace)) and "_name" in section
        if not is_section or not isinstance(section._name, str):
            raise ValueError(f"its options name no {name}")


def reason_of(error: BaseException) -> str:
    """An error of a library in a few words."""
    if isinstance(error, FileNotFoundError) and error.filename:
        return f"holds no {Path(error.filename).name}"
    if isinstance(error, KeyError):
        return f"has no {error}"
    lines = [line.strip() for line in str(error).strip().splitlines()] or [repr(error)]
    if lines[0].startswith("Error(s) in loading") and lines[1:]:
        return lines[1]
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
