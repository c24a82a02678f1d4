"""The folder that a converted model is written to: its checkpoint, a report and a picture."""

import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from fairseq.models import MODEL_DATACLASS_REGISTRY
from fairseq.tasks import TASK_DATACLASS_REGISTRY
from omegaconf import DictConfig, OmegaConf, open_dict

import fairseq_clusterformer
from fairseq_clusterformer import __version__
from fairseq_clusterformer.checkpoints.bundle import copy_data, is_bundle
from fairseq_clusterformer.checkpoints.load import Loaded
from fairseq_clusterformer.outputs import whole_folder

from .convert import Converted, Head
from .model import CRITERIONS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NEAR, FITTED, REST, CHANCE = "#9fb3c8", "#2f6fb3", "#e9edf1", "#b00020"
CHECKPOINT, REPORT, PICTURE = ("checkpoint.pt", "convert.json", "convert.png")
DATA = "data"  # what the model's text needs, where it comes from no data folder

#: what a model starts from, which is the checkpoint now
_STARTS = ("word_vectors", "pretrained_checkpoint", "pretrained", "freeze_word_vectors")
_SHORTEST = 100  # updates of the training that follows


def write(
    converted: Converted, out: Path, *, force: bool = False, recipe: dict | None = None
) -> None:
    """Write the checkpoint, the report and the picture into a folder that is complete or not there
    at all; of a bundle, also the files that its text needs. The `recipe` is what it is made from,
    see :func:`~fairseq_clusterformer.outputs.written`. Raises UserError: if ``out`` is there or
    cannot be written."""
    from fairseq_clusterformer.visual.figure import save

    with whole_folder(out, force=force, recipe=recipe) as new:
        found = report(converted)
        if is_bundle(converted.loaded.folder):
            copy_data(converted.loaded.folder, new / DATA)
            with open_dict(converted.loaded.cfg):
                converted.loaded.cfg.task.data = str(out.absolute() / DATA)
        torch.save(_state(converted.loaded), new / CHECKPOINT)
        text = json.dumps(found, indent=1) + "\n"
        (new / REPORT).write_text(text, encoding="utf-8")
        save(draw_recall(converted.heads, converted.near), new / PICTURE)


def draw_recall(heads: Sequence[Head], window: int) -> "Figure":
    """A bar for each head, layer by layer: what the near window holds of the dense head's
    attention, what clusters add, and a mark where chance would be; in numbers, how they began."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(16, 2 + 0.3 * len(heads)), layout="constrained")
    axes, places = figure.add_subplot(), range(len(heads))
    axes.barh(places, [1.0 for _ in heads], color=REST)
    axes.barh(places, [head.after for head in heads], color=FITTED, label="beyond")
    near = [min(1.0 - head.far, head.after) for head in heads]
    axes.barh(places, near, color=NEAR, label="near")
    drawn = [place for place in places if heads[place].kind not in ("window", "full")]
    chance = "as many keys drawn at random"
    axes.plot([heads[i].chance for i in drawn], drawn, "|", color=CHANCE, ms=16, label=chance)
    names = [f"{h.side}, layer {h.layer}, head {h.head}: {h.kind}" for h in heads]
    axes.set(xlim=(0, 1.35), xticks=[], yticks=places, yticklabels=names)
    for place, head in zip(places, heads, strict=True):
        began = ""
        if head.before is not None:
            began = f"; began {head.before:.0%}, chance {head.chance_before:.0%}"
        axes.text(1.01, place, f"{head.after:.0%}{began}", verticalalignment="center")
    axes.invert_yaxis()
    axes.spines[:].set_visible(False)
    near = f"near: up to {window} tokens away"
    axes.set_title(f"What the heads see\nshare of the dense attention of each head; {near}")
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, frameon=False)
    return figure


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


def report(converted: Converted) -> dict:
    """What became of each head, as JSON has it."""
    return {
        "made by": {"fairseq_clusterformer": __version__},
        "checkpoint": str(converted.loaded.path),
        "arch": converted.loaded.cfg.model._name,
        "attention": converted.specs,
        "near": converted.near,
        "routing losses": converted.losses,
        "heads": [asdict(head) for head in converted.heads],
    }


def fine_tuning(converted: Converted, out: Path) -> str:
    """The command that goes on with training: a tenth of the dense model's updates, at a tenth of
    its learning rate."""
    cfg, arch = converted.loaded.cfg, converted.loaded.cfg.model._name
    updates = max(_SHORTEST, converted.dense_updates // 10)
    rate = max(OmegaConf.select(cfg, "optimization.lr", default=[5e-4])) / 10
    criterion = CRITERIONS[arch]
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
