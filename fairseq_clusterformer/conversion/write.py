"""The folder that a converted model is written to: its checkpoint and a report."""

import json
import shlex
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import torch
from fairseq.models import MODEL_DATACLASS_REGISTRY
from fairseq.tasks import TASK_DATACLASS_REGISTRY
from omegaconf import DictConfig, OmegaConf, open_dict

import fairseq_clusterformer
from fairseq_clusterformer import __version__
from fairseq_clusterformer.checkpoints.bundle import copy_data, is_bundle
from fairseq_clusterformer.checkpoints.load import Loaded
from fairseq_clusterformer.outputs import whole_folder

from .convert import Converted
from .model import TARGETS

CHECKPOINT, REPORT = "checkpoint.pt", "convert.json"
DATA = "data"  # what the model's text needs, where it comes from no data folder
#: what a model starts from, which is the checkpoint now
_STARTS = ("word_vectors", "pretrained_checkpoint", "pretrained", "freeze_word_vectors")
_SHORTEST = 100  # updates of the training that follows


def write(
    converted: Converted, out: Path, *, force: bool = False, recipe: dict | None = None
) -> None:
    """Write the checkpoint and the report into a folder that is complete or not there at all; of a
    bundle, also the files that its text needs. The `recipe` is what it is made from, see
    :func:`~fairseq_clusterformer.outputs.written`. Raises UserError: if ``out`` is there or cannot
    be written."""
    loaded, arch = converted.loaded, converted.loaded.cfg.model._name
    report = {"made by": {"fairseq_clusterformer": __version__}, "checkpoint": str(loaded.path)}
    report |= {"arch": arch, "attention": converted.specs, "near": converted.near}
    report |= {"routing losses": converted.losses, "heads": [*map(asdict, converted.heads)]}
    with whole_folder(out, force=force, recipe=recipe) as new:
        if is_bundle(loaded.folder):
            copy_data(loaded.folder, new / DATA)
            with open_dict(loaded.cfg):
                loaded.cfg.task.data = str(out.absolute() / DATA)
        torch.save(_state(loaded), new / CHECKPOINT)
        text = json.dumps(report, indent=1) + "\n"
        (new / REPORT).write_text(text, encoding="utf-8")


def _state(loaded: Loaded) -> dict:
    """A checkpoint from which a training starts anew, as fairseq reads it."""
    iterator = {"version": 2, "epoch": 1, "iterations_in_epoch": 0, "shuffle": True}
    history = {"criterion_name": "", "optimizer_name": "", "lr_scheduler_state": {}}
    return {
        "args": None,
        "cfg": OmegaConf.to_container(loaded.cfg, resolve=True, enum_to_str=True),
        "model": loaded.model.state_dict(),
        "criterion": None,
        "optimizer_history": [history | {"num_updates": 0}],
        "task_state": loaded.task.state_dict(),
        "extra_state": {"train_iterator": iterator, "val_loss": None},
        "last_optimizer_state": None,
    }


def fine_tuning(converted: Converted, out: Path) -> str:
    """The command that goes on with training: a tenth of the dense model's updates, at a tenth of
    its learning rate."""
    cfg, arch = converted.loaded.cfg, converted.loaded.cfg.model._name
    updates = max(_SHORTEST, converted.dense_updates // 10)
    rate = max(OmegaConf.select(cfg, "optimization.lr", default=[5e-4])) / 10
    criterion = TARGETS[arch].criterion
    if arch == "clusterformer_lm" and cfg.model.get("adaptive_softmax_cutoff"):
        criterion = "clusterformer_adaptive_loss"
    words = [
        *("fairseq-train", cfg.task.data),
        *("--user-dir", Path(fairseq_clusterformer.__file__).parent),
        *("--task", cfg.task._name, *_flags(cfg, "task", TASK_DATACLASS_REGISTRY)),
        *("--arch", arch, *_flags(cfg, "model", MODEL_DATACLASS_REGISTRY)),
        *("--finetune-from-model", out / CHECKPOINT, "--criterion", criterion),
        *("--optimizer", "adam", "--adam-betas", "(0.9, 0.98)", "--lr", f"{rate:g}"),
        *("--lr-scheduler", "polynomial_decay", "--warmup-updates", updates // 20),
        *("--total-num-update", updates, "--max-update", updates, "--clip-norm", "1.0"),
    ]
    names = ("batch_size", "max_tokens")
    size = {name: OmegaConf.select(cfg, f"dataset.{name}") for name in names}
    if not any(size.values()):
        size["max_tokens"] = 4096
    positions = converted.loaded.model.max_positions()
    if size["max_tokens"] and isinstance(positions, int):  # one text at least
        size["max_tokens"] = max(size["max_tokens"], positions)
    for name, value in size.items():
        if value is not None:
            words += [f"--{name.replace('_', '-')}", value]
    smoothing = OmegaConf.select(cfg, "criterion.label_smoothing")
    if smoothing is not None and "label_smoothed" in criterion:
        words += ["--label-smoothing", smoothing]
    words += ["--save-dir", out / "finetuned"]
    return shlex.join(map(str, words)).replace(" --", " \\\n  --")


def _flags(cfg: DictConfig, section: str, registry: dict[str, type]) -> Iterator[str]:
    """Yield the words of a command line that say where options differ from their defaults."""
    defaults = vars(registry[cfg[section]._name]())
    task = cfg.task.keys() if section == "model" else ()
    for name, default in defaults.items():
        value = cfg[section].get(name)
        if isinstance(default, str) and default.startswith("${"):
            default = OmegaConf.select(cfg, default[2:-1])
        if name in ("_name", "data", *_STARTS, *task) or value is None:
            continue
        if value == default or str(value) == str(default) or value is False:
            continue
        yield f"--{name.replace('_', '-')}"
        if value is not True:
            yield str(list(value)) if OmegaConf.is_list(value) else str(value)
