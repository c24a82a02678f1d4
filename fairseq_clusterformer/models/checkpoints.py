"""One clear last line for a checkpoint that cannot be loaded.

fairseq's trainer says "ensure that the architectures match", and trains from scratch if the file
of ``--restore-file`` does not exist.
"""

import logging
import re
from argparse import Namespace
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from fairseq import checkpoint_utils
from fairseq.dataclass.configs import CheckpointConfig
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.file_io import PathManager
from fairseq.trainer import Trainer
from omegaconf import DictConfig, OmegaConf, open_dict
from torch import Tensor, nn

from fairseq_clusterformer.attention.spec import written
from fairseq_clusterformer.compat.resuming import UNREADABLE, WRITTEN, why_no_checkpoint
from fairseq_clusterformer.compat.wrapping import mends
from fairseq_clusterformer.errors import first_line

logger = logging.getLogger(__name__)


class CheckpointError(ValueError):
    """A state dict that does not fit the model. The message says what differs."""


def unfit(option: str, path: object, problem: str, allowed: str = "") -> CheckpointError:
    """The error of a file or a folder that an option names."""
    return CheckpointError(f"{option} is {path}: {problem}{allowed and f'; allowed: {allowed}'}")


class ExplainedCheckpoints:
    """Mixin before a fairseq model: one line says what does not fit."""

    @classmethod
    def hub_models(cls):
        return {}  # not those of fairseq's class

    def load_state_dict(self, state_dict, strict=True, model_cfg=None, args=None):
        """As fairseq's; raises CheckpointError for tensors of other shapes, numbers that are not
        finite, or (if ``strict``) missing or unknown tensors."""
        if model_cfg is None and args is not None:
            model_cfg = convert_namespace_to_omegaconf(args).model
        wrong = [
            name
            for name, tensor in self.state_dict().items()
            if torch.is_tensor(tensor) and not torch.is_tensor(state_dict.get(name, tensor))
        ]
        differences = {"without numbers": wrong}
        if not wrong:
            self.upgrade_state_dict(state_dict)
            given = self._prune(state_dict, model_cfg)
            other_shapes = {
                name: f"{name} {list(given[name].shape)}, here {list(tensor.shape)}"
                for name, tensor in self.state_dict().items()  # which may have new sizes
                if name in given and torch.is_tensor(tensor) and given[name].shape != tensor.shape
            }
            fitting = {name: t for name, t in given.items() if name not in other_shapes}
            result = nn.Module.load_state_dict(self, fitting, strict=False)
            differences["of another shape"] = list(other_shapes.values())
            differences |= unfit_numbers(self, given)
            if strict:
                missing = [name for name in result.missing_keys if name not in other_shapes]
                differences |= {"missing": missing, "of another model": result.unexpected_keys}
        if told := explained(differences):
            raise CheckpointError(told)
        return result

    def _prune(self, state: dict[str, Tensor], cfg: DictConfig | Namespace | None):
        """The tensors of the layers that ``--encoder-layers-to-keep`` and its like keep, with
        their new numbers. The options then say how deep the model is, as its checkpoints will:
        fairseq forgets that, and drops all layers of a side that is not pruned."""
        for side in ("encoder", "decoder"):
            keep = getattr(cfg, f"{side}_layers_to_keep", None)
            if not keep:
                continue
            stack = getattr(self, side)
            layer = re.compile(rf"({side}\..*?\blayers\.)(\d+)(\..*)")
            found = {name: layer.fullmatch(name) for name in state}
            kept = sorted({int(number) for number in keep.split(",")})
            # as deep as the model: pruned when it was saved
            if len({match[2] for match in found.values() if match}) > len(kept):
                number = {str(old): new for new, old in enumerate(kept)}
                state = {
                    f"{match[1]}{number[match[2]]}{match[3]}" if match else name: state[name]
                    for name, match in found.items()
                    if not match or match[2] in number
                }
                if getattr(stack, "centroids", None) is None:  # no layer is left that takes them
                    state.pop(f"{side}.centroids", None)
            spec = f"{side}_attention" if hasattr(cfg, f"{side}_attention") else "attention"
            with open_dict(cfg) if OmegaConf.is_config(cfg) else nullcontext():
                setattr(cfg, spec, written(stack.plan.layers))
                setattr(cfg, f"{side}_layers", len(kept))
                setattr(cfg, f"{side}_layers_to_keep", "")
        return state


def unfit_numbers(model: nn.Module, given: Mapping[str, Tensor]) -> dict[str, list[str]]:
    """Tensors that are not finite (a buffer may be -inf), or unexpectedly of whole numbers."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    found: dict[str, list[str]] = {"that are not finite": [], "of whole numbers": []}
    for name, own in model.state_dict().items():
        tensor = given.get(name)
        if not torch.is_tensor(own) or not torch.is_tensor(tensor) or not own.is_floating_point():
            continue
        if not tensor.is_floating_point():
            found["of whole numbers"].append(name)
            continue
        numbers = tensor if name in parameters else tensor.clamp_min(torch.finfo(tensor.dtype).min)
        # a finite sum has no other terms, and is quicker to have; but it may be too large itself
        if not numbers.sum().isfinite() and not numbers.isfinite().all():
            found["that are not finite"].append(name)
    return found


def explained(differences: Mapping[str, list[str]]) -> str:
    """What differs, in one line; empty: nothing."""
    return "; ".join(
        f"tensors {what}: {len(names)}, such as {names[0]}"
        for what, names in differences.items()
        if names
    )


def read_checkpoint(option: str, path: str) -> dict[str, Any]:
    """A checkpoint that an option names, on the CPU; "model" has its tensors, "cfg", where it is,
    its options. Raises CheckpointError: no such file, or fairseq has not written it."""
    if not Path(path).is_file():
        raise unfit(option, path, "no such file", "a checkpoint")
    try:
        state = checkpoint_utils.load_checkpoint_to_cpu(path)
        state["model"]
        return state
    except UNREADABLE as error:
        problem = f"it cannot be read ({why_no_checkpoint(error)})"
        raise unfit(option, path, problem, WRITTEN) from error


@mends(Trainer, "load_checkpoint")
def explain_loading(load, self: Trainer, filename: str, *args, **kwargs):
    """Lets fairseq's trainer say why it cannot load a checkpoint into one of our models, and go
    on from the newest whole one where the last one is broken or missing."""
    explains = isinstance(self.get_model(), ExplainedCheckpoints)
    option, value = _option(self.cfg.checkpoint, filename)
    ours = Path(filename).resolve().parent == Path(self.cfg.checkpoint.save_dir).resolve()
    # one of --save-dir may be missing: jobs are started anew with the same command
    missing = option == "--restore-file" and not ours and not Path(filename).is_file()
    if explains and missing:
        raise unfit(option, value, "no such file", "a checkpoint")
    lost = option == "--save-dir" and not Path(filename).is_file()
    if explains and lost and not self.cfg.checkpoint.no_last_checkpoints:
        # else the best of the training would be written over by a new one's first
        _restore_newest(self, filename, f"{option} is {value}: {filename} is missing")
    try:
        return load(self, filename, *args, **kwargs)
    except Exception as error:
        if reason := _why_unreadable(filename):
            problem = f"{filename} cannot be read ({reason})"
            if not _restore_newest(self, filename, f"{option} is {value}: {problem}"):
                raise unfit(option, value, problem, WRITTEN) from error
            return load(self, filename, *args, **kwargs)
        # fairseq's own says that architectures should match, in the place of what happened
        cause = error.__context__ if type(error) is Exception else error
        if isinstance(cause, MemoryError):
            raise
        if explains and isinstance(cause, CheckpointError):
            problem = f"{filename} does not fit the model: {cause}"
            allowed = "a checkpoint of this architecture or of the dense one that it extends, "
            allowed += "with the same sizes and dictionary"
            raise unfit(option, value, problem, allowed) from None
        said = f"it has no {cause}" if isinstance(cause, KeyError) else _said(cause)
        problem = f"{filename} does not fit this training ({said})"
        allowed = "a checkpoint of the same model, criterion and optimizer; "
        allowed += "--reset-optimizer, --reset-lr-scheduler, --reset-meters leave parts out"
        raise unfit(option, value, problem, allowed) from error


def _said(error: BaseException) -> str:
    """What an error says; torch puts it behind a heading."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2]) if lines and lines[0].endswith(":") else first_line(error)


def _why_unreadable(filename: str) -> str:
    """What is wrong with a file; empty: nothing, or there is none."""
    try:
        if Path(filename).is_file():
            checkpoint_utils.load_checkpoint_to_cpu(filename)["extra_state"]["train_iterator"][
                "epoch"
            ]
    except Exception as error:
        return why_no_checkpoint(error)
    return ""


def _restore_newest(trainer: Trainer, filename: str, problem: str) -> bool:
    """Copy the newest checkpoint of the training itself that can be read, if there is one, to a
    file that is broken or missing."""
    folder = Path(filename).parent
    if folder.resolve() != Path(trainer.cfg.checkpoint.save_dir).resolve():
        return False
    ours = re.compile(r"checkpoint(\d+|_\d+_\d+|_best|\.best_.*)" + trainer.checkpoint_suffix)
    found = [path for path in folder.glob("checkpoint*.pt") if ours.fullmatch(path.stem)]
    found.sort(key=lambda path: path.stat().st_mtime_ns, reverse=True)
    whole = next((str(path) for path in found if not _why_unreadable(str(path))), None)
    if whole is not None:
        logger.warning(f"{problem}; training goes on from {whole}, the newest whole one")
        PathManager.copy(whole, filename, overwrite=True)
    return whole is not None


def _option(cfg: CheckpointConfig, filename: str) -> tuple[str, str]:
    """The option that made fairseq load a file, and its value."""
    if filename == cfg.finetune_from_model:
        return "--finetune-from-model", cfg.finetune_from_model
    if cfg.restore_file != CheckpointConfig.restore_file:
        return "--restore-file", cfg.restore_file
    return "--save-dir", cfg.save_dir
