"""What a command of fairseq's is given is looked at before anything is built or written."""

import argparse
import ast
import re
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path

import omegaconf
import torch
from fairseq import models, registry, tasks, utils
from fairseq.dataclass.configs import CheckpointConfig, FairseqConfig
from hydra.core.hydra_config import HydraConfig
from hydra.errors import CompactHydraException
from omegaconf.errors import OmegaConfBaseException, ValidationError

from fairseq_clusterformer.errors import check_no_pipes, refused
from fairseq_clusterformer.ranges import strays

from .wrapping import mends

#: tasks of fairseq's, and what prepares their data
_PREPARED = {
    "language_modeling": "clusterformer prepare lm",
    "masked_lm": "clusterformer prepare lm",
    "clusterformer_masked_lm": "clusterformer prepare lm",
    "translation": "clusterformer prepare translation",
}
#: models that train with one of fairseq's extensions
_EXTENSIONS = dict.fromkeys(("levenshtein_transformer", "insertion_transformer"), "fairseq.libnat")


@mends(tasks, "setup_task")
def check_numbers(setup, cfg, **kwargs):
    """Refuses options outside of their range wherever a task is set up, which every program does
    first. Of a checkpoint, only what its model and its task need is checked."""
    root = cfg._get_root() if omegaconf.OmegaConf.is_config(cfg) else {"task": cfg}
    check(root, ("task", "model") if kwargs.get("from_checkpoint") else tuple(root))
    if not kwargs.get("from_checkpoint"):
        check_data(cfg)
    return setup(cfg, **kwargs)


def check(root, sections: tuple[str, ...]) -> None:
    """Check the options of some sections. Raises ValueError: one is outside of its range."""
    if "model" in sections and root.get("model") is not None:
        _check_extensions(root.get("model"))
    for name in sections:
        section = root.get(name)
        if isinstance(section, (omegaconf.DictConfig, argparse.Namespace)):
            for problem in strays(section, dataclass_of(name, section)):
                raise ValueError(problem)


def _check_extensions(model) -> None:
    """Refuse what needs one of fairseq's extensions that include torch, where it was built without
    them, and BASE layers in a model of ours, which would leave them out."""
    name = getattr(model, "_name", None)
    name = models.ARCH_MODEL_NAME_REGISTRY.get(name, name)
    layers = getattr(model, "base_layers", 0)
    ours = models.MODEL_REGISTRY.get(name, object).__module__.startswith("fairseq_clusterformer")
    if layers and ours:
        raise refused("--base-layers", layers, "0 with this model")
    needed = "fairseq.libbase" if layers else _EXTENSIONS.get(name)
    if needed is not None and find_spec(needed) is None:
        given = ("--base-layers", layers) if layers else ("--arch", model._name)
        allowed = "another model, or fairseq built with it, as setup.py says"
        raise refused(*given, allowed, f"fairseq was built without {needed}")


def check_data(task) -> None:
    """Check the folders of a task of fairseq's; others do so where they read the dictionary.
    Raises ValueError: one is missing, or the first has no dictionary. UserError: see
    `check_no_pipes`."""
    made_by, data = _PREPARED.get(getattr(task, "_name", None)), getattr(task, "data", None)
    shards = [Path(shard) for shard in utils.split_paths(data)] if isinstance(data, str) else []
    for shard in shards:
        check_no_pipes("DATA", shard)
    if made_by is None or not shards:
        return
    missing = [shard for shard in shards if not shard.is_dir()]
    if not missing and any(shards[0].glob("dict*.txt")):
        return
    problem = f"{missing[0]} is no folder" if missing else f"{shards[0]} has no dictionary"
    allowed = f"a folder that `{made_by}` or fairseq-preprocess made, or several, FIRST:SECOND"
    raise refused("DATA", data, allowed, problem)


def check_training(cfg) -> None:
    """Check what a training does before it sets up its task: it draws numbers and writes. Raises
    ValueError: an option that cannot be, alone or with another."""
    check(cfg, ("common",))
    check_data(cfg.task)
    if cfg.dataset.batch_size is None and cfg.dataset.max_tokens is None:
        raise refused("--batch-size", "not given", "--batch-size or --max-tokens")
    _check_optimizer(cfg)
    on_cpu = cfg.common.cpu or not torch.cuda.is_available()
    flat = not (cfg.common.fp16_no_flatten_grads or cfg.common.memory_efficient_fp16)
    if cfg.common.fp16 and on_cpu and flat:
        raise refused("--fp16", "given", "float32, or --fp16-no-flatten-grads with it", "no GPU")
    if not cfg.checkpoint.no_save:
        _check_save_dir(Path(cfg.checkpoint.save_dir))


def check_names(cfg) -> None:
    """Check what a configuration of hydra's chooses by name. Raises ValueError: there is no such
    file, task, model or other part."""
    if cfg.task is None and HydraConfig.initialized():
        name, allowed = HydraConfig.get().job.config_name, "a file of --config-dir, without .yaml"
        raise refused("--config-name", name, allowed, "it names no task")
    known = {name: {*of["registry"]} for name, of in registry.REGISTRIES.items()}
    known["task"] = {*tasks.TASK_REGISTRY}
    known["model"] = {*models.MODEL_REGISTRY, *models.ARCH_MODEL_REGISTRY}
    for section, names in known.items():
        chosen = cfg.get(section)
        chosen = chosen if chosen is None or isinstance(chosen, str) else chosen.get("_name")
        if chosen is not None and chosen not in names:
            close = ", ".join(get_close_matches(chosen, sorted(names))) or "a registered name"
            raise refused(f"{section}._name", chosen, close, "unknown")


def wrong_option(cfg, error: OmegaConfBaseException) -> str:
    """What is wrong with an option of hydra's that its dataclass refuses, in one line."""
    for name, section in cfg.items():
        if section and dataclass_of(name, section) is error.object_type:
            option = f"{name}.{error.full_key}"
            return _wrong(option, f"{option} is {section[error.key]}", error)
    return _wrong(error.full_key, error.full_key, error)


def wrong_configuration(error: CompactHydraException) -> str:
    """The same of a file of hydra's, or of an option behind ``fairseq-hydra-train``."""
    cause, text = error.__cause__, " ".join(str(error).split())
    if not isinstance(cause, OmegaConfBaseException):
        return text
    if given := re.search(r"(?:override |use \+)\+*([^ =]+)=(.*)", text):
        return _wrong(given[1], f"{given[1]} is {given[2]}", cause)
    value = f" is {cause.value}" if isinstance(cause, ValidationError) else ""
    return f"{text}: {_wrong(cause.full_key, f'{cause.full_key}{value}', cause)}"


def _wrong(option: str, given: str, error: OmegaConfBaseException) -> str:
    if isinstance(error, ValidationError):
        message = str(error.msg).splitlines()[0]
        types = {"Integer": "a whole number", "Float": "a number", "bool": "true or false"}
        types |= {"to string": "one word, or text in quotes", "expected": message.split("of ")[-1]}
        types |= {"ListConfig": "a list, such as [0.001]"}
        allowed = next((text for word, text in types.items() if word in message), message)
        return f"{given}; allowed: {allowed}"
    known = [str(key) for key in error.parent_node or ()]
    close = get_close_matches(option.rpartition(".")[2], known)
    allowed = ", ".join(close) or f"+{option}=..., if what it belongs to has such an option"
    return f"{given}: the configuration does not name it; allowed: {allowed}"


def _check_optimizer(cfg) -> None:
    """Refuse what fairseq's optimizers and schedules would end in a traceback for."""
    for option in ("--adam-betas", "--adamax-betas"):
        betas = getattr(cfg.optimizer, option[2:].replace("-", "_"), None)
        two = _literal(betas) if isinstance(betas, str) else (0, 0)
        two = two if isinstance(two, (tuple, list)) and len(two) == 2 else (None, None)
        if not all(isinstance(beta, (int, float)) and 0 <= beta < 1 for beta in two):
            raise refused(option, betas, 'two numbers below 1: "(0.9, 0.98)"')
    for option, given in (
        ("lr", cfg.optimization.lr),
        ("update-freq", cfg.optimization.update_freq),
    ):
        if given is not None and not len(given):
            raise refused(f"--{option}", "empty", "numbers, separated by commas")
    overrides = cfg.checkpoint.optimizer_overrides
    if not isinstance(_literal(overrides), dict):
        raise refused("--optimizer-overrides", overrides, "a dictionary: \"{'eps': 1e-6}\"")
    schedule = getattr(cfg.lr_scheduler, "_name", None)
    if schedule == "inverse_sqrt" and cfg.lr_scheduler.warmup_updates == 0:
        raise refused("--warmup-updates", 0, "1 or more with --lr-scheduler inverse_sqrt")


def _literal(written: str) -> object:
    """What Python's own notation means; None: it is none."""
    try:
        return ast.literal_eval(written)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def _check_save_dir(folder: Path) -> None:
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not there.is_dir():
        problem = "it is a file" if there == folder else f"{there} is a file"
        raise refused("--save-dir", folder, "a folder to write to", problem)
    if (last := folder / CheckpointConfig.restore_file).is_dir():
        allowed = "a folder with checkpoints, or a new one"
        raise refused("--save-dir", folder, allowed, f"{last} is a folder")


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
