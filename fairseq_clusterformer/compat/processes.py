"""Several processes train one model, on CPUs too, and the jobs of a sweep train several."""

import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from fairseq import checkpoint_utils, utils
from fairseq.distributed import utils as distributed_utils
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode

from fairseq_clusterformer.errors import refused

from . import saving
from .checks import check_names, check_training
from .wrapping import mends

logger = logging.getLogger(__name__)

#: what torchrun says to each process
_LAUNCHED = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK")
_ON_CPUS = ("legacy_ddp", "no_c10d")  # what shares gradients without GPUs
#: what each process that is started is given, as "begin", and calls with its options
started: dict[str, Callable | None] = {}
_jobs: dict[Path, int] = {}  # which job of a sweep saves where


@mends(distributed_utils, "call_main")
def call_main(call, cfg, main, **kwargs):
    """Lets torchrun, and on CPUs ``--distributed-world-size``, start processes that train one
    model: fairseq counts GPUs."""
    if Path(main.__code__.co_filename).name == "train.py":
        _check(cfg)
    if cfg.common.bf16 and utils.xm is None:
        for section in cfg.values():  # fairseq takes --bf16 for a TPU, which is not here
            if getattr(section, "tpu", False):
                section.tpu = False
    _join(cfg)
    training = cfg.distributed_training
    alone = training.distributed_world_size == 1
    if alone or training.distributed_init_method or not _on_cpus(cfg):
        return call(cfg, main, **kwargs)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        training.distributed_init_method = f"tcp://localhost:{free.getsockname()[1]}"
    training.distributed_rank = None  # fairseq gives each its own
    kwargs |= {"start_rank": 0, "after_distributed_init_fn": started["begin"]}
    # a terminal sends Ctrl-C to all processes: it is this one's to end the others
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    how = {"nprocs": training.distributed_world_size, "join": False}
    run = distributed_utils.distributed_main
    processes = torch.multiprocessing.spawn(run, (main, cfg, kwargs), **how)
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        while not processes.join():
            pass
    finally:
        for process in processes.processes:
            process.terminate()


def check_configurations() -> None:
    """Check what ``fairseq-hydra-train`` has read if it imports the plug-in in its first job,
    before fairseq adds defaults a second time."""
    train = sys.modules.get("fairseq_cli.train")
    if train is None or not HydraConfig.initialized():
        return

    @mends(train, "add_defaults")
    def add_defaults(add, cfg):
        add(cfg)
        _check(cfg)
        if cfg.distributed_training.distributed_init_method is None:
            _join(cfg)
            if cfg.distributed_training.distributed_init_method is not None:
                distributed_utils.distributed_init(cfg)


def _on_cpus(cfg) -> bool:
    return not cfg.common.tpu and (cfg.common.cpu or not torch.cuda.is_available())


def _check(cfg) -> None:
    """Check a training. Give a job of hydra's its own folder, and nothing of the one before."""
    check_names(cfg)
    check_training(cfg)
    if not HydraConfig.initialized():
        return
    for state in (vars(checkpoint_utils.save_checkpoint), saving.stopping()):
        state.pop("best", None)
    hydra = HydraConfig.get()
    folder = Path(cfg.checkpoint.save_dir).absolute()
    if hydra.mode != RunMode.MULTIRUN:
        return
    if folder == Path(hydra.runtime.cwd, hydra.sweep.dir):
        cfg.checkpoint.save_dir = hydra.runtime.output_dir
    elif _jobs.setdefault(folder, hydra.job.num) != hydra.job.num:
        problem = f"job {_jobs[folder]} of this sweep saves there"
        allowed = "hydra.sweep.dir='${checkpoint.save_dir}', so that each job has a folder in it"
        raise refused("checkpoint.save_dir", cfg.checkpoint.save_dir, allowed, problem)


def _join(cfg) -> None:
    """Take the place that torchrun gives this process, and what processes on CPUs need."""
    training = cfg.distributed_training
    launched = all(name in os.environ for name in _LAUNCHED)
    size = int(os.environ["WORLD_SIZE"]) if launched else 1
    if size > 1 and training.distributed_init_method is None:
        training.distributed_init_method = "env://"
        training.distributed_world_size = size
        training.distributed_rank = int(os.environ["RANK"])
        training.device_id = int(os.environ["LOCAL_RANK"])
        training.distributed_no_spawn = True
    if training.distributed_world_size > 1 and _on_cpus(cfg):
        training.distributed_backend = "gloo"
        if training.ddp_backend not in _ON_CPUS:
            if training.distributed_rank in (None, 0):
                logger.info(f"--ddp-backend {training.ddp_backend} wants GPUs: legacy_ddp instead")
            training.ddp_backend = "legacy_ddp"
        if training.distributed_init_method is not None:  # else fairseq starts one for each GPU
            training.distributed_no_spawn = True
