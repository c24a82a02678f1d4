"""What a command of fairseq's is given is looked at before anything is built or written; mistakes
and Ctrl-C end it in one line, without a traceback."""

import argparse
import ast
import copy
import math
import os
import re
import sys
from difflib import get_close_matches
from pathlib import Path

import omegaconf
import torch
from fairseq import models, optim, registry, tasks, utils
from fairseq.dataclass import utils as dataclass_utils
from fairseq.dataclass.configs import FairseqConfig
from fairseq.optim import lr_scheduler
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException, ValidationError
from torch.multiprocessing import ProcessRaisedException

from fairseq_clusterformer.errors import check_no_pipes, first_line, refused
from fairseq_clusterformer.moved import user_dir_of
from fairseq_clusterformer.ranges import check_ranges

from .saving import UNREADABLE
from .wrapping import mends

#: tasks of fairseq's, and what prepares their data
_OF_TEXT = ("language_modeling", "masked_lm", "clusterformer_masked_lm")
_PREPARED = dict.fromkeys(_OF_TEXT, "clusterformer prepare lm")
_PREPARED["translation"] = "clusterformer prepare translation"


@mends(tasks, "setup_task")
def check_numbers(setup, cfg, **kwargs):
    """Refuses options outside of their range; of a checkpoint, those of its model and task."""
    root = cfg._get_root() if omegaconf.OmegaConf.is_config(cfg) else {"task": cfg}
    check(root, ("task", "model") if kwargs.get("from_checkpoint") else tuple(root))
    if not kwargs.get("from_checkpoint"):
        check_data(cfg)
    return setup(cfg, **kwargs)


def check(root, sections: tuple[str, ...]) -> None:
    """Check the options of some sections. Raises ValueError: one is outside of its range."""
    model = root.get("model")
    name = getattr(model, "_name", "")
    kind = models.MODEL_REGISTRY.get(models.ARCH_MODEL_NAME_REGISTRY.get(name, name), object)
    ours = kind.__module__.startswith("fairseq_clusterformer")
    if ours and getattr(model, "base_layers", 0):  # which it would leave out
        raise refused("--base-layers", model.base_layers, "0 with this model")
    for name in sections:
        section = root.get(name)
        if isinstance(section, (omegaconf.DictConfig, argparse.Namespace)):
            check_ranges(section, dataclass_of(name, section))


def check_data(task) -> None:
    """Check the folders of a task of fairseq's; ours do so where they read the dictionary. Raises
    ValueError or UserError: one is missing, has pipes, or is the first and has no dictionary."""
    made_by, data = _PREPARED.get(getattr(task, "_name", None)), getattr(task, "data", None)
    shards = [Path(shard) for shard in utils.split_paths(data)] if isinstance(data, str) else []
    for shard in shards:
        check_no_pipes("DATA", shard)
    missing = [shard for shard in shards if not shard.is_dir()]
    if made_by and shards and (missing or not any(shards[0].glob("dict*.txt"))):
        problem = f"{missing[0]} is no folder" if missing else f"{shards[0]} has no dictionary"
        allowed = f"a folder that `{made_by}` or fairseq-preprocess made, or several, FIRST:SECOND"
        raise refused("DATA", data, allowed, problem)


def check_training(cfg) -> None:
    """Check what a training does before it has a task. ValueError: an option that cannot be."""
    check(cfg, ("common",))
    check_data(cfg.task)
    on_cpu = cfg.common.cpu or not torch.cuda.is_available()
    flat = not (cfg.common.fp16_no_flatten_grads or cfg.common.memory_efficient_fp16)
    if cfg.common.fp16 and on_cpu and flat:
        raise refused("--fp16", "given", "float32, or --fp16-no-flatten-grads with it", "no GPU")
    if not cfg.optimization.update_freq:
        raise refused("--update-freq", "empty", "numbers, separated by commas")
    if not isinstance(value_of(overrides := cfg.checkpoint.optimizer_overrides), dict):
        raise refused("--optimizer-overrides", overrides, "a dictionary: \"{'eps': 1e-6}\"")
    # build the optimizer and the schedule for one number, and update it
    section, option = copy.deepcopy(cfg.optimizer), "--optimizer"
    (weight := torch.nn.Parameter(torch.zeros(1))).grad = torch.zeros(1)
    if getattr(section, "_name", "composite") == "composite":  # which has parts by name
        return
    try:
        optimizer = optim.build_optimizer(section, [weight])
        betas = optimizer.optimizer.defaults.get("betas", ())
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas {betas}, and not two of 0 or more, below 1")
        optimizer.step()
        section, option = copy.deepcopy(cfg.lr_scheduler), "--lr-scheduler"
        lr_scheduler.build_lr_scheduler(section, optimizer)
    except RuntimeError:  # of what wants a GPU, where this number is not
        return
    except (AssertionError, *UNREADABLE) as error:
        is_plain = isinstance(section, argparse.Namespace)  # of all options
        given = vars(section)[option[2:].replace("-", "_")] if is_plain else dict(section)
        allowed = "options with which it can be built"
        raise refused(option, given, allowed, first_line(error)) from None


def check_names(cfg) -> None:
    """Check what hydra's configuration chooses. ValueError: no such file, task, model or part."""
    if not HydraConfig.initialized():
        return
    if cfg.task is None:
        name, allowed = HydraConfig.get().job.config_name, "a file of --config-dir, without .yaml"
        raise refused("--config-name", name, allowed, "it names no task")
    known = {name: {*of["registry"]} for name, of in registry.REGISTRIES.items()}
    known["task"] = {*tasks.TASK_REGISTRY}
    known["model"] = {*models.MODEL_REGISTRY, *models.ARCH_MODEL_REGISTRY}
    for section, names in known.items():
        chosen = cfg.get(section)
        chosen = chosen if chosen is None or isinstance(chosen, str) else chosen.get("_name")
        if chosen is not None and chosen not in names:
            problem, close = "unknown", get_close_matches(chosen, sorted(names))
            allowed = ", ".join(close) or "a registered name"
            if folder := user_dir_of(chosen):
                problem, allowed = "it has moved", f"it with common.user_dir={folder}"
            raise refused(f"{section}._name", chosen, allowed, problem)


def dataclass_of(section: str, options) -> type | None:
    """The dataclass that declares a section's options; None: argparse does."""
    name, declared = getattr(options, "_name", None), FairseqConfig.__dataclass_fields__
    if section == "task":
        return tasks.TASK_DATACLASS_REGISTRY.get(name)
    if section in registry.REGISTRIES and section in declared:
        return registry.REGISTRIES[section]["dataclass_registry"].get(name)
    if section in declared and section != "model":
        return declared[section].type
    return models.MODEL_DATACLASS_REGISTRY.get(models.ARCH_MODEL_NAME_REGISTRY.get(name, name))


# Values


@mends(dataclass_utils, "eval_str_list")
def refuse_lists(read, x, x_type=float):
    """Lets a list of numbers that Python cannot read, such as ``--lr abc``, be one line."""
    try:
        return read(x, x_type)
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        allowed = f"one {x_type.__name__} or several, separated by commas"
        raise argparse.ArgumentTypeError(f"is {x}; allowed: {allowed}") from None


_VALUES = (ast.Expression, ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.Load)
_VALUES += (ast.BinOp, ast.Add, ast.Mult, ast.UnaryOp, ast.USub)
_MOST = 1000  # times that a list can be repeated in all


def value_of(text: str) -> object:
    """The value of an option such as ``[(512, 3)] * 20``. Raises ValueError: it is no number,
    list or dictionary, but a program, which fairseq would run. TypeError, as ``eval``: no text."""
    if not isinstance(text, str):
        raise TypeError(f"eval() takes text, not {text!r}")
    try:
        tree = ast.parse(text.strip(), mode="eval")
        nodes = [*ast.walk(tree)]
        products = [node for node in nodes if isinstance(node, ast.BinOp)]
        numbers = [n.value for p in products for n in (p.left, p.right) if hasattr(n, "value")]
        if all(isinstance(n, _VALUES) for n in nodes) and math.prod(numbers) <= _MOST:
            return eval(compile(tree, "option", "eval"))  # of values alone
    except (SyntaxError, TypeError, RecursionError, MemoryError):
        pass
    raise refused("an option", text[:60], "a number, a list or a dictionary")


def read_options_as_values() -> None:
    """Lets the options of a stranger's checkpoint run no code: fairseq evaluates some."""
    for name, module in list(sys.modules.items()):
        if name.startswith("fairseq."):
            module.eval = value_of


# One line

#: what fairseq refuses, where it names an option
_REFUSALS = {AssertionError, Exception, NotImplementedError, RuntimeError}


def one_line(error: BaseException) -> str | None:
    """What a user needs to know of a mistake; None: it is an error of another kind."""
    said, cause = [], error
    if isinstance(error, HydraException):  # of a file, or an option behind fairseq-hydra-train
        said, cause = [" ".join(str(error).split())], error.__cause__
    if isinstance(cause, OmegaConfBaseException):
        said.append(f"{cause.full_key}: {first_line(cause)}")
        if not isinstance(cause, ValidationError):
            names = [str(key) for key in cause.parent_node or ()]
            close = get_close_matches(str(cause.key), names) or ["what the configuration names"]
            said.append(f"allowed: {', '.join(close)}")
    if said:
        return "; ".join(said)
    text = f"{type(error).__name__}: {error}"
    # these quote the traceback of their process
    if isinstance(error, ProcessRaisedException) or "Original Traceback" in text:
        text = str(error).strip().splitlines()[-1]
    # a file or a package that is missing, or a full disk, is no fault of the program's either
    known = "allowed: " in text or isinstance(error, (OSError, ImportError))
    if type(error) in _REFUSALS or isinstance(error, ValueError):
        known = known or re.search(r"(^|[\s`(])--[a-z]", str(error))
    return " ".join(text.split()) if known else None


def report_in_one_line() -> None:
    """Lets this process print one line where it is a command of fairseq."""
    command = Path(sys.argv[0] if sys.argv else "")
    started = command.name.startswith("fairseq-") or command.parent.name == "fairseq_cli"
    before = sys.excepthook
    if not started or hasattr(before, "__wrapped__"):
        return

    def excepthook(kind, error, trace):
        line = one_line(error)
        if issubclass(kind, KeyboardInterrupt):
            if os.environ.get("RANK", "0") != "0":  # torchrun's first process says it
                return
            line = f"{command.stem}: interrupted"
        if line is None:
            before(kind, error, trace)
        else:
            print(line, file=sys.stderr)

    excepthook.__wrapped__ = before
    sys.excepthook = excepthook
    os.environ["HYDRA_FULL_ERROR"] = "1"  # else hydra prints its errors itself, in several lines

    def return_value(self: JobReturn):
        if self.status == JobStatus.FAILED:
            raise self._return_value  # hydra would print a line before it
        return of_job.fget(self)

    of_job = JobReturn.return_value
    JobReturn.return_value = property(return_value, of_job.fset)
