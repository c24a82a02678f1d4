"""Mends fairseq 0.12 for today's torch, numpy and hydra, and for every model of the process.

fairseq imports ``--user-dir`` before it loads a checkpoint or builds a data set: that is early
enough for every command and worker. Batches change as well: see `data.keep_last_batches`.
"""

import argparse
import collections
import contextlib
import io
import os
import sys
import types
import typing
import warnings
from collections.abc import Callable
from pathlib import Path

import bitarray.util
import numpy as np
import omegaconf
import torch
from fairseq import options, utils
from fairseq.distributed.utils import _TensorPlaceholder
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.tasks import TASK_REGISTRY
from numpy._core import multiarray
from omegaconf.base import ContainerMetadata, Metadata

from fairseq_clusterformer.errors import refused
from fairseq_clusterformer.moved import check_moved

from . import data, processes, saving  # noqa: F401  they mend as well
from .checks import read_options_as_values, report_in_one_line
from .wrapping import mends

# fairseq calls torch.load without weights_only (checkpoint_utils.load_checkpoint_to_cpu,
# distributed/utils._broadcast_object_slow), which since torch 2.6 means True. These are the types
# that fairseq itself writes; each holds data only. Whatever else a file names is still refused.
CHECKPOINT_TYPES = [
    argparse.Namespace,  # options of models that argparse configures, as roberta
    # --eval-bleu: the counts of n-grams among the meters
    *(multiarray._reconstruct, multiarray.scalar, np.ndarray, np.dtype),
    *(type(np.dtype(name)) for name in ("int32", "int64", "float32", "float64")),
    # a loaded checkpoint, saved again or sent to other workers: the options as omegaconf made them
    *(omegaconf.DictConfig, omegaconf.ListConfig, omegaconf.AnyNode, typing.Any),
    *(ContainerMetadata, Metadata, int, dict, list, collections.defaultdict),
    _TensorPlaceholder,  # broadcast_object: the place of a tensor that is sent separately
]

#: how warnings begin that no user can act on: of fairseq's ways with hydra 1.0, of
#: DataLoader(pin_memory=True) without an accelerator, of a boolean padding mask with a float
#: future mask, of norms under autocast, and of torch's older names
KNOWN_WARNINGS = {
    UserWarning: r"hydra\.experimental\.\w+\(\) is no longer|\s*The version_base parameter is not "
    r"|In 'config': Usage of deprecated keyword|\s*'config' is validated against ConfigStore"
    r"|\s*The strict flag in the compose API|'pin_memory' argument is set as true but no accel"
    r"|Support for mismatched key_padding_mask and|Mismatch dtype between input and weight",
    FutureWarning: r"`torch\.cuda\.amp\.(autocast|GradScaler)\(",
}


def apply(begin: Callable | None = None) -> None:
    """Apply all changes; again, it changes nothing. A training's processes are given `begin`."""
    torch.serialization.add_safe_globals(CHECKPOINT_TYPES)
    read_options_as_values()
    restore_names()
    silence_known_warnings()
    processes.started["begin"] = begin or processes.started.get("begin")
    processes.check_configurations()
    report_in_one_line()


def restore_names() -> None:
    """Gives back what fairseq reads of other libraries and they have dropped: ``np.compat.long``
    (``--sample-break-mode eos``, generation from language models, ``--num-batch-buckets``),
    ``np.int`` and ``np.float`` (masks of spans, models with a CRF), and bitarray's ``rindex``
    (``--dataset-impl huffman``)."""
    for owner, name, value in (
        (np, "compat", types.SimpleNamespace(long=int)),
        (np, "int", int),
        (np, "float", float),
        (bitarray.util, "rindex", lambda bits, value=1: bits.index(value, right=True)),
    ):
        if name not in vars(owner):
            setattr(owner, name, value)


def silence_known_warnings() -> None:
    """The filters come last, so that ``-W error`` and ``PYTHONWARNINGS`` still win."""
    for category, message in KNOWN_WARNINGS.items():
        warnings.filterwarnings("ignore", message, category, append=True)


# Options


@mends(utils, "split_paths")
def keep_colons(split, paths: str, separator: str = os.pathsep) -> list[str]:
    """A folder whose name has a colon is one folder."""
    return [paths] if os.path.isdir(paths) else split(paths, separator)


@mends(utils, "import_user_module")
def know_user_dir(load, args):
    """Lets ``--user-dir`` name this package, which is here, however it is spelled."""
    package, given = Path(__file__).parents[1], Path(getattr(args, "user_dir", None) or ".")
    # fairseq looks for a name beside itself
    if given != Path(package.name) and given.resolve() != package.resolve():
        load(args)


@mends(options, "parse_args_and_arch")
def show_help_of_models(parse, parser, input_args=None, *args, **kwargs):
    """Makes ``--help`` list the options of the model and the task that the line names, and names
    a missing ``--arch``, and what has moved."""
    given = sys.argv[1:] if input_args is None else list(input_args)
    check_moved(given, {"arch": ARCH_MODEL_REGISTRY, "task": TASK_REGISTRY})
    rest = [word for word in given if word not in ("-h", "--help")]
    if rest == given:
        try:
            return parse(parser, input_args, *args, **kwargs)
        except RuntimeError as error:
            if error.args:
                raise
            allowed = "a model, such as clusterformer_lm or transformer; --help lists them"
            raise refused("--arch", "not given", allowed) from None
    # whatever else the line has, or lacks
    with contextlib.suppress(Exception, SystemExit), contextlib.redirect_stderr(io.StringIO()):
        parse(parser, rest, *args, **kwargs)  # adds the options to the parser
    parser.print_help()
    raise SystemExit(0)
