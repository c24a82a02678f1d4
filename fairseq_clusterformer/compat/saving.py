"""What a training saves stays whole: copies, two trainings at once, and one that is finished."""

import logging
import math
import os
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace

from fairseq import checkpoint_utils
from fairseq.dataclass.configs import CheckpointConfig
from fairseq.file_io import PathManager
from fairseq.trainer import Trainer
from filelock import BaseFileLock

from fairseq_clusterformer.errors import UserError, first_line, refused
from fairseq_clusterformer.outputs import hold

from .resuming import GIVEN, UNREADABLE
from .wrapping import mends

logger = logging.getLogger(__name__)

LOCK = ".training"


@mends(PathManager, "copy")
def copy_whole(copy, source: str, target: str, overwrite: bool = False) -> bool:
    """A copy of a checkpoint is whole or not there."""
    if PathManager.path_requires_pathmanager(target):
        return copy(source, target, overwrite)
    aside = f"{target}.tmp"  # as fairseq calls a checkpoint that it is writing
    copy(source, aside, True)
    os.replace(aside, target)
    return True


@mends(checkpoint_utils, "load_checkpoint")
def load_checkpoint(load, cfg: CheckpointConfig, trainer: Trainer, **kwargs):
    """Refuses a folder where another training saves, and leaves one that is finished."""
    if trainer.is_data_parallel_master and not cfg.no_save:
        _lock(Path(cfg.save_dir), trainer)
    own = (last := _last(cfg)).is_file()
    if last.is_dir() and not cfg.no_save:
        raise refused("--save-dir", cfg.save_dir, "one without it", f"{last} is a folder")
    try:
        extra_state, batches = load(cfg, trainer, **kwargs)
        if not own or extra_state is None:
            return extra_state, batches
        if not cfg.reset_meters:
            stopping().update(extra_state.get("early_stopping", {}))
        reason = _why_finished(trainer, batches)
    except UNREADABLE as error:
        restored = own or Path(cfg.restore_file).is_file()
        if not restored or "; allowed: " in str(error):
            raise
        allowed = "one of the same data and batches, or --reset-dataloader --reset-meters"
        raise refused("the place in the data", GIVEN, allowed, first_line(error)) from error
    if reason:
        logger.info(f"{last} is finished ({reason}): there is nothing to do")
        # fairseq trains while this is at most the last epoch, which no NaN is
        batches = SimpleNamespace(next_epoch_idx=math.nan)
    return extra_state, batches


@mends(Trainer, "save_checkpoint")
def save_checkpoint(save, self: Trainer, filename: str, extra_state: dict):
    """Saves also how long no validation was better."""
    if "best" in stopping():
        extra_state["early_stopping"] = {k: stopping()[k] for k in ("best", "num_runs")}
    return save(self, filename, extra_state)


def stopping() -> dict:
    """What fairseq counts to stop early, as attributes of a function."""
    places = sys.modules["__main__"], sys.modules.get("fairseq_cli.train")
    functions = (vars(module).get("should_stop_early") for module in places if module)
    return next((vars(function) for function in functions if function), {})


def _last(cfg: CheckpointConfig) -> Path:
    """The checkpoint that a training goes on from, or would."""
    suffix, name = cfg.checkpoint_suffix or "", CheckpointConfig.restore_file
    own = Path(cfg.save_dir, name.replace(".pt", f"{suffix}.pt"))
    given = Path(cfg.restore_file)
    there = given.resolve().parent == own.resolve().parent
    return own if cfg.restore_file == name or not there else given


def _why_finished(trainer: Trainer, batches) -> str:
    """Why no update is left to make; empty: some are."""
    options = trainer.cfg.optimization
    made = {
        ("--max-update", options.max_update): trainer.get_num_updates(),
        ("--max-epoch", options.max_epoch): batches.next_epoch_idx - 1,
        ("--stop-time-hours", options.stop_time_hours): trainer.cumulative_training_time() / 3600,
        ("--patience", trainer.cfg.checkpoint.patience): stopping().get("num_runs", 0),
    }
    return next((f"{option} {most}" for (option, most), n in made.items() if 0 < most <= n), "")


def _lock(folder: Path, trainer: Trainer) -> None:
    """Hold a folder until the trainer or the process ends; ValueError: another holds it."""
    try:
        # a process can train there again, before its first trainer is gone
        how = {"is_singleton": True, "thread_local": False}
        lock = hold(folder / LOCK, "--save-dir", folder, what="training", **how)
    except UserError as error:
        raise ValueError(str(error)) from None
    weakref.finalize(trainer, _let_go, lock, folder / LOCK, os.getpid())


def _let_go(lock: BaseFileLock, path: Path, owner: int) -> None:
    if os.getpid() == owner:
        if lock.lock_counter == 1:
            path.unlink(missing_ok=True)
        lock.release()
