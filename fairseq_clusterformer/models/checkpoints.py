"""One clear last line for a checkpoint that cannot be loaded, where fairseq's trainer says "ensure
that the architectures match", or trains from scratch."""

import logging
import re
from collections import defaultdict
from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from fairseq.dataclass.configs import CheckpointConfig
from fairseq.file_io import PathManager
from fairseq.trainer import Trainer
from torch import Tensor, nn

from fairseq_clusterformer.compat.saving import UNREADABLE, WRITTEN, why_no_checkpoint
from fairseq_clusterformer.compat.wrapping import mends
from fairseq_clusterformer.errors import shortened

logger = logging.getLogger(__name__)


class CheckpointError(ValueError):
    """A state dict that does not fit the model. The message says what differs."""


def unfit(option: str, path: object, problem: str, allowed: str = "") -> CheckpointError:
    """The error of a file or a folder that an option names."""
    return CheckpointError(f"{option} is {path}: {problem}{allowed and f'; allowed: {allowed}'}")


class ExplainedCheckpoints:
    """Mixin before a fairseq model: one line says what does not fit."""

    def load_state_dict(self, state_dict, strict=True, model_cfg=None, args=None):
        """As fairseq's; raises CheckpointError for tensors of other shapes, of numbers that are
        none, or (if ``strict``) missing or unknown ones."""
        if told := unfit_numbers(self, state_dict):
            raise CheckpointError(told)
        self.upgrade_state_dict(state_dict)
        try:
            return nn.Module.load_state_dict(self, self._kept(state_dict), strict)
        except RuntimeError as error:  # which has a line for each tensor
            raise CheckpointError(shortened(" ".join(str(error).split()))) from None

    def _kept(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of a deeper model whose layers ``--decoder-layers-to-keep`` and its like
        keep, by the names that they have here (LayerDrop, Fan et al. 2020)."""
        for side in ("encoder", "decoder"):
            stack = getattr(self, side, None)
            kept = stack.plan.kept if hasattr(stack, "plan") else ()
            number = {str(old): new for new, old in enumerate(kept)}
            layer = re.compile(rf"({side}\..*?\blayers\.)(\d+)(\..*)")
            found = {name: layer.fullmatch(name) for name in state}
            if not number or len({match[2] for match in found.values() if match}) == len(number):
                continue  # all are kept, or the others were gone when it was saved
            state = {
                f"{match[1]}{number[match[2]]}{match[3]}" if match else name: state[name]
                for name, match in found.items()
                if not match or match[2] in number
            }
            if getattr(stack, "centroids", None) is None:  # no layer is left that takes them
                state.pop(f"{side}.centroids", None)
        return state


def unfit_numbers(model: nn.Module, given: Mapping[str, Any]) -> str:
    """What no model computes with: what is no tensor, whole numbers and such as are not finite (a
    buffer may be -inf), in one line; empty: there is none."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    found = defaultdict(list)
    for name, own in model.state_dict().items():
        if name not in given or not torch.is_tensor(own):
            continue
        if not torch.is_tensor(tensor := given[name]):
            found["without numbers"].append(name)
        elif own.is_floating_point() and not tensor.is_floating_point():
            found["of whole numbers"].append(name)
        elif own.is_floating_point():
            least = None if name in parameters else torch.finfo(tensor.dtype).min
            numbers = tensor if least is None else tensor.clamp_min(least)
            # a finite sum has no other terms, and is quicker to have; it may itself be too large
            if not numbers.sum().isfinite() and not numbers.isfinite().all():
                found["that are not finite"].append(name)
    named = (f"tensors {what}: {len(names)}, such as {names[0]}" for what, names in found.items())
    return "; ".join(named)


def read_checkpoint(option: str, path: str) -> dict[str, Any]:
    """A checkpoint that an option names, on the CPU; "model" has its tensors, "cfg", where it is,
    its options. Raises CheckpointError: no such file, or fairseq has not written it."""
    if not Path(path).is_file():
        raise unfit(option, path, "no such file", "a checkpoint")
    try:
        return checkpoint_utils.load_checkpoint_to_cpu(path)
    except UNREADABLE as error:
        problem = f"cannot be read ({why_no_checkpoint(error)})"
        raise unfit(option, path, problem, WRITTEN) from error


def renamed(given: dict[str, Tensor]) -> dict[str, Tensor]:
    """Parameters of an encoder by today's names, without "encoder." in front. RoBERTa was released
    with other names, and with queries, keys and values as one."""
    found = {}
    for name, tensor in given.items():
        side = r"^(decoder\.(?=sentence_encoder|lm_head)|encoder\.)?(sentence_encoder\.)?"
        short = re.sub(side, "", name).replace("emb_layer_norm.", "layernorm_embedding.")
        if "in_proj_" in short:
            for which, part in zip("qkv", tensor.chunk(3), strict=True):
                found[short.replace("in_proj_", f"{which}_proj.")] = part
        else:
            found[short] = tensor
    return found


def check_words(option: str, path: str, words: Dictionary) -> None:
    """Raise CheckpointError where the folder of a checkpoint has a dictionary of other words."""
    beside = Path(path).parent / "dict.txt"
    if not beside.is_file():
        return
    theirs: list[str] = Dictionary.load(str(beside)).symbols
    own = words.symbols[: -1 if words.symbols[-1] == "<mask>" else None]  # a task's own word
    if theirs != own:
        pairs = enumerate(zip_longest(theirs, own))
        first, (word, ours) = next((n, pair) for n, pair in pairs if pair[0] != pair[1])
        problem = f"{beside} is another dictionary (word {first} is {word!r}, here {ours!r})"
        raise unfit(option, path, problem, "data of that one")


@mends(Trainer, "load_checkpoint")
def explain_loading(load, self: Trainer, filename: str, *args, **kwargs):
    """Lets fairseq's trainer say why it cannot load a checkpoint into one of our models, and go
    on from the newest whole one where the last one is broken or missing."""
    explains = isinstance(self.get_model(), ExplainedCheckpoints)
    cfg = self.cfg.checkpoint
    option, value = "--save-dir", cfg.save_dir
    if filename == cfg.finetune_from_model:
        option, value = "--finetune-from-model", filename
    elif cfg.restore_file != CheckpointConfig.restore_file:
        option, value = "--restore-file", cfg.restore_file
    if explains and not Path(filename).is_file():
        ours = Path(filename).resolve().parent == Path(cfg.save_dir).resolve()
        # one of --save-dir may be missing: jobs are started anew with the same command
        if option == "--restore-file" and not ours:
            raise unfit(option, value, "no such file", "a checkpoint")
        if option == "--save-dir" and not cfg.no_last_checkpoints:
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
            allowed = "one of this architecture or the dense one that it extends, of equal sizes"
            problem = f"{filename} does not fit the model: {cause}"
            raise unfit(option, value, problem, allowed) from None
        said = "it has no " * isinstance(cause, KeyError) + " ".join(str(cause).split())
        problem = f"{filename} does not fit this training ({shortened(said)})"
        allowed = "the same model, criterion and optimizer, or --reset-optimizer and its like"
        raise unfit(option, value, problem, allowed) from error


def _why_unreadable(filename: str) -> str:
    """What is wrong with a file; empty: nothing, or there is none."""
    try:
        if Path(filename).is_file():
            state = checkpoint_utils.load_checkpoint_to_cpu(filename)
            state["extra_state"]["train_iterator"]["epoch"]
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
