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

from fairseq_clusterformer.errors import UserError
from fairseq_clusterformer.outputs import hold

from .wrapping import mends

logger = logging.getLogger(__name__)

LOCK = ".training"
#: of the training in this process: its options, and the updates of what it saved last; of one in
#: other processes that was interrupted: what its first process says of that
now = SimpleNamespace(cfg=None, trainer=None, saved=0, said="")


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
    own = _last(cfg).is_file()
    extra_state, batches = load(cfg, trainer, **kwargs)
    now.cfg, now.trainer = cfg, weakref.ref(trainer)
    now.saved = trainer.get_num_updates() if own else 0
    if own and extra_state is not None:
        stopping = extra_state.get("early_stopping")
        if stopping and not cfg.reset_meters:
            vars(_should_stop_early()).update(stopping)
        if reason := _why_finished(trainer, batches):
            logger.info(f"{_last(cfg)} is finished ({reason}): there is nothing to do")
            # fairseq trains while this is at most the last epoch, which no NaN is
            batches = SimpleNamespace(next_epoch_idx=math.nan)
    return extra_state, batches


@mends(Trainer, "save_checkpoint")
def save_checkpoint(save, self: Trainer, filename: str, extra_state: dict):
    """Saves also how long no validation was better."""
    stopping = vars(_should_stop_early())
    if "best" in stopping:
        extra_state["early_stopping"] = {k: stopping[k] for k in ("best", "num_runs")}
    saved = save(self, filename, extra_state)
    now.saved = self.get_num_updates()
    return saved


def what_is_saved() -> str:
    """For the line that says that a training was interrupted."""
    trainer = now.trainer and now.trainer()
    if trainer is None or now.cfg.no_save:
        return now.said
    said = f" at {trainer.get_num_updates()} updates; "
    if not now.saved:
        return f"{said}{now.cfg.save_dir} has no checkpoint of it yet"
    last = Path(now.cfg.save_dir, f"checkpoint_last{trainer.checkpoint_suffix}.pt")
    if not last.is_file():
        return f"{said}the newest checkpoint in {now.cfg.save_dir} has {now.saved}"
    goes_on = ", from which the same command goes on" if last == _last(now.cfg) else ""
    return f"{said}{last} has {now.saved}{goes_on}"


def _last(cfg: CheckpointConfig) -> Path:
    suffix, name = cfg.checkpoint_suffix or "", CheckpointConfig.restore_file
    own = Path(cfg.save_dir, name.replace(".pt", f"{suffix}.pt"))
    given = Path(cfg.restore_file)
    there = given.resolve().parent == own.resolve().parent
    return own if cfg.restore_file == name or not there else given


def _should_stop_early():
    """fairseq's function, which has what it counts as attributes."""
    main = sys.modules["__main__"]
    if not hasattr(main, "should_stop_early"):
        import fairseq_cli.train as main
    return main.should_stop_early


def _why_finished(trainer: Trainer, batches) -> str:
    """Why no update is left to make; empty: some are."""
    options, updates = trainer.cfg.optimization, trainer.get_num_updates()
    patience = trainer.cfg.checkpoint.patience
    if 0 < options.max_update <= updates:
        return f"{updates} updates, --max-update {options.max_update}"
    if 0 < options.max_epoch < batches.next_epoch_idx:
        return f"{batches.next_epoch_idx - 1} epochs, --max-epoch {options.max_epoch}"
    if 0 < options.stop_time_hours < trainer.cumulative_training_time() / 3600:
        return f"--stop-time-hours {options.stop_time_hours}"
    if 0 < patience <= getattr(_should_stop_early(), "num_runs", 0):
        return f"no better since {patience} validations, --patience {patience}"
    return ""


def _lock(folder: Path, trainer: Trainer) -> None:
    """Hold a folder until the trainer or the process ends; ValueError: another holds it."""
    try:
        # a process can train there again, before its first trainer is gone
        how = {"is_singleton": True, "thread_local": False}
        lock = hold(folder / LOCK, "--save-dir", folder, what="training", **how)
    except UserError as error:
        raise ValueError(str(error)) from None
    owner = os.getpid()

    def let_go() -> None:
        if os.getpid() == owner:
            if lock.lock_counter == 1:
                (folder / LOCK).unlink(missing_ok=True)
            lock.release()

    weakref.finalize(trainer, let_go)
