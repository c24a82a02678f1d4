"""Mends fairseq 0.12 for today's torch, numpy and hydra, and for every model of the process.

The plug-in calls ``apply`` when it is imported. fairseq imports ``--user-dir`` before it loads a
checkpoint or builds a data set: that is early enough for every command and worker. Batches change
as well, for dense models too: see `keep_last_batches`.
"""

import argparse
import collections
import contextlib
import functools
import io
import os
import sys
import types
import typing
import warnings
from pathlib import Path

import numpy as np
import omegaconf
import torch
import torch.distributed as dist
from fairseq import checkpoint_utils, options, utils
from fairseq.data import Dictionary, data_utils, indexed_dataset
from fairseq.data.indexed_dataset import IndexedDataset, MMapIndexedDataset
from fairseq.data.iterators import EpochBatchIterator
from fairseq.dataclass import utils as dataclass_utils
from fairseq.distributed import utils as distributed_utils
from fairseq.distributed.utils import _TensorPlaceholder
from fairseq.models.ema.ema import EMA
from fairseq.ngram_repeat_block import NGramRepeatBlock
from fairseq.trainer import Trainer
from numpy._core import multiarray
from omegaconf.base import ContainerMetadata, Metadata

from fairseq_clusterformer.errors import UserError, first_line

from .checks import check_numbers
from .one_line import report_in_one_line
from .processes import train_in_several_processes
from .saving import keep_trainings_whole

# fairseq calls torch.load without weights_only (checkpoint_utils.load_checkpoint_to_cpu,
# distributed/utils._broadcast_object_slow), which since torch 2.6 means True. These are the types
# that fairseq itself writes; each holds data only. Whatever else a file names is still refused.
CHECKPOINT_TYPES = (
    # models configured by argparse (transformer, roberta): the options
    argparse.Namespace,
    # --eval-bleu: the counts of n-grams among the meters
    multiarray._reconstruct,
    multiarray.scalar,
    np.ndarray,
    np.dtype,
    *(type(np.dtype(name)) for name in ("int32", "int64", "float32", "float64")),
    # a loaded checkpoint, saved again or sent to other workers: the options as omegaconf made them
    omegaconf.DictConfig,
    omegaconf.ListConfig,
    omegaconf.AnyNode,
    ContainerMetadata,
    Metadata,
    typing.Any,
    int,
    dict,
    list,
    collections.defaultdict,
    # broadcast_object: the place of a tensor that is sent separately
    _TensorPlaceholder,
)

# (start of the message, category, module that it comes from)
KNOWN_WARNINGS = (
    # dataclass/utils.convert_namespace_to_omegaconf and fairseq/config: hydra 1.0's ways
    (r"hydra\.experimental\.(initialize|compose)\(\) is no longer", UserWarning, ""),
    (r"\s*The version_base parameter is not specified", UserWarning, ""),
    (r"In 'config': Usage of deprecated keyword in package header", UserWarning, ""),
    (r"\s*'config' is validated against ConfigStore schema", UserWarning, ""),
    (r"\s*The strict flag in the compose API is deprecated", UserWarning, ""),
    # data/iterators.EpochBatchIterator: DataLoader(pin_memory=True), also without an accelerator
    (r"'pin_memory' argument is set as true but no accelerator", UserWarning, ""),
    # tasks/fairseq_task.train_step, optim/amp_optimizer: the older names
    (
        r"`torch\.cuda\.amp\.(autocast|GradScaler)\(args\.\.\.\)` is deprecated",
        FutureWarning,
        r"fairseq\.",
    ),
    # modules/multihead_attention: a boolean padding mask with a float future mask
    (
        r"Support for mismatched key_padding_mask and attn_mask",
        UserWarning,
        r"torch\.nn\.functional",
    ),
)


def apply() -> None:
    """Apply all changes. Calling it again changes nothing."""
    allow_checkpoint_types()
    restore_numpy_compat()
    refuse_lists()
    mend_ngram_blocking()
    keep_last_batches()
    gather_without_cuda()
    shuffle_after_curriculum()
    keep_whole_numbers()
    announce_epochs()
    announce_saving()
    check_numbers()
    name_damaged_data()
    know_user_dir()
    show_help_of_models()
    silence_known_warnings()
    keep_trainings_whole()
    train_in_several_processes()
    report_in_one_line()


def allow_checkpoint_types() -> None:
    """Lets ``torch.load(weights_only=True)`` read what fairseq writes."""
    torch.serialization.add_safe_globals(list(CHECKPOINT_TYPES))


def restore_numpy_compat() -> None:
    """Gives ``np.compat.long`` back, which numpy 2 dropped.

    data/token_block_dataset reads it for ``--sample-break-mode eos`` and for generation from any
    language model, data/language_pair_dataset for ``--num-batch-buckets``.
    """
    if not hasattr(np, "compat"):
        np.compat = types.ModuleType("numpy.compat", "Put back for fairseq.")
    if not hasattr(np.compat, "long"):
        np.compat.long = int


def refuse_lists() -> None:
    """Lets a list of numbers that Python cannot read, such as ``--lr abc``, be one line."""
    read = dataclass_utils.eval_str_list
    if hasattr(read, "__wrapped__"):
        return

    @functools.wraps(read)
    def eval_str_list(x, x_type=float):
        try:
            return read(x, x_type)
        except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
            allowed = f"one {x_type.__name__} or several, separated by commas"
            raise argparse.ArgumentTypeError(f"is {x}; allowed: {allowed}") from None

    dataclass_utils.eval_str_list = eval_str_list


def mend_ngram_blocking() -> None:
    """Makes ``--no-repeat-ngram-size`` work without fairseq's CUDA extension.

    ngram_repeat_block compares n-grams with the end of the token buffer, which is padding until
    the last step. Nothing was ever blocked.
    """
    blocked = NGramRepeatBlock._no_repeat_ngram
    if hasattr(blocked, "__wrapped__"):
        return

    @functools.wraps(blocked)
    def no_repeat_ngram(self, tokens, lprobs, bsz: int, beam_size: int, step: int):
        return blocked(self, tokens[:, : step + 1], lprobs, bsz, beam_size, step)

    NGramRepeatBlock._no_repeat_ngram = no_repeat_ngram


def keep_last_batches() -> None:
    """Keeps the last batch of a data set, whatever its size.

    fairseq drops it if its size is not a multiple of ``--required-batch-size-multiple``, which is
    8 by default. Up to 7 sentences were not translated, scored or trained on, without a message.
    """
    batches_of = data_utils.batch_by_size
    if hasattr(batches_of, "__wrapped__"):
        return

    @functools.wraps(batches_of)
    def batch_by_size(indices, *args, **kwargs):
        if not isinstance(indices, np.ndarray):
            indices = np.fromiter(indices, dtype=np.int64, count=-1)
        if not len(indices):
            return []
        batches = list(batches_of(indices, *args, **kwargs))
        left_out = indices[sum(map(len, batches)) :]
        return [*batches, left_out] if len(left_out) else batches

    data_utils.batch_by_size = batch_by_size


def gather_without_cuda() -> None:
    """Lets workers without a GPU exchange what cannot be summed, such as ranked pairs.

    fairseq's own function needs a GPU.
    """
    gather = distributed_utils.all_gather_list
    if hasattr(gather, "__wrapped__"):
        return

    @functools.wraps(gather)
    def all_gather_list(data, group=None, max_size=16384):
        group = group or distributed_utils.get_global_group()
        if dist.get_backend(group) != "gloo":
            return gather(data, group, max_size)
        everyone = [None] * dist.get_world_size(group)
        dist.all_gather_object(everyone, data, group=group)
        return everyone

    distributed_utils.all_gather_list = all_gather_list


def shuffle_after_curriculum() -> None:
    """Lets ``--curriculum N`` end.

    A data loader that fairseq used again stayed as in its first epoch and never shuffled.
    """
    iterate = EpochBatchIterator._get_iterator_for_epoch
    if hasattr(iterate, "__wrapped__"):
        return

    @functools.wraps(iterate)
    def iterator_for_epoch(self, epoch, shuffle, *args, **kwargs):
        if self.dataloader is not None:
            self.epoch_batch_sampler.shuffle = shuffle
        return iterate(self, epoch, shuffle, *args, **kwargs)

    EpochBatchIterator._get_iterator_for_epoch = iterator_for_epoch


def keep_whole_numbers() -> None:
    """Lets ``--store-ema`` average models that have whole numbers and truth values.

    fairseq multiplies every tensor by the decay, which is an error for these. The average takes
    the newest ones.
    """
    init = EMA.__init__
    if hasattr(init, "__wrapped__"):
        return

    @functools.wraps(init)
    def init_ema(self, model, config, device=None, skip_keys=None):
        whole = {n for n, t in model.state_dict().items() if not _is_averaged(t)}
        init(self, model, config, device, {*(skip_keys or ()), *whole})

    EMA.__init__ = init_ema


def _is_averaged(value) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def announce_epochs() -> None:
    """Calls a model's ``set_epoch`` when an epoch begins, with every task. fairseq does not."""
    begin = Trainer.begin_epoch
    if hasattr(begin, "__wrapped__"):
        return

    @functools.wraps(begin)
    def begin_epoch(self, epoch: int):
        begin(self, epoch)
        if hasattr(self.get_model(), "set_epoch"):
            self.get_model().set_epoch(epoch)

    Trainer.begin_epoch = begin_epoch


def announce_saving() -> None:
    """Calls ``consolidate`` of a model's modules before a checkpoint is written.

    Only the first worker writes it. Here the others can send it what they have.
    """
    save = checkpoint_utils.save_checkpoint
    if hasattr(save, "__wrapped__"):
        return

    @functools.wraps(save)
    def save_checkpoint(cfg, trainer, *args, **kwargs):
        if not cfg.no_save:
            for module in trainer.get_model().modules():
                if hasattr(module, "consolidate"):
                    module.consolidate()
        return save(cfg, trainer, *args, **kwargs)

    checkpoint_utils.save_checkpoint = save_checkpoint


def name_damaged_data() -> None:
    """Lets one line name a dictionary or an indexed file that cannot be read."""
    for owner, method, files in (
        (Dictionary, "add_from_file", "{}"),
        (MMapIndexedDataset, "_do_init", "{}.idx, .bin"),
        (IndexedDataset, "read_index", "{}.idx, .bin"),
    ):
        _name_file(owner, method, files)
    for owner in (MMapIndexedDataset, MMapIndexedDataset.Index):
        _end_quietly(owner)
    _name_unknown_tokens()


def _name_unknown_tokens() -> None:
    """A token that the dictionary does not have would be a row that no embedding has."""
    make, item_of = indexed_dataset.make_dataset, MMapIndexedDataset.__getitem__
    if hasattr(make, "__wrapped__"):
        return

    @functools.wraps(make)
    def make_dataset(path, impl, fix_lua_indexing=False, dictionary=None):
        data = make(path, impl, fix_lua_indexing, dictionary)
        if isinstance(data, MMapIndexedDataset) and dictionary is not None:
            data.num_symbols = len(dictionary)
        return data

    @functools.wraps(item_of)
    def item(self, index):
        tokens = item_of(self, index)
        most = getattr(self, "num_symbols", None)
        if most is not None and len(tokens) and not 0 <= int(tokens.max()) < most:
            raise NamedError(
                f"{self._path}.bin: damaged (token {tokens.max()} of a dictionary of "
                f"{most} in item {index}); allowed: data as it was prepared with its dictionary"
            )
        return tokens

    indexed_dataset.make_dataset, MMapIndexedDataset.__getitem__ = make_dataset, item


def _end_quietly(owner: type) -> None:
    """What was not begun has nothing to close; Python would print a traceback."""
    end = owner.__del__
    if hasattr(end, "__wrapped__"):
        return

    @functools.wraps(end)
    def quiet(self):
        with contextlib.suppress(AttributeError):
            end(self)

    owner.__del__ = quiet


def _name_file(owner: type, method: str, files: str) -> None:
    read = getattr(owner, method)
    if hasattr(read, "__wrapped__"):
        return

    @functools.wraps(read)
    def named(self, path, *args, **kwargs):
        try:
            result = read(self, path, *args, **kwargs)
            if isinstance(self, MMapIndexedDataset):
                _check_whole(self, path)
            return result
        except FileNotFoundError:
            raise
        except Exception as error:  # of every kind, from AssertionError to struct.error
            if not isinstance(path, str) or isinstance(error, NamedError):
                raise
            allowed = "a file as it was prepared"
            message = f"{files.format(path)}: damaged ({first_line(error)}); allowed: {allowed}"
            raise NamedError(message) from None

    setattr(owner, method, named)


class NamedError(UserError, ValueError):
    """A damaged file, which the message names."""


def _check_whole(data: MMapIndexedDataset, path: str) -> None:
    """Raises ValueError: an index whose items are not those of the file of data."""
    size, there = data._index.dtype().itemsize, os.path.getsize(f"{path}.bin")
    sizes, places = data._index._sizes, data._index._pointers
    ends = np.cumsum(sizes, dtype=np.int64) * size
    whole = (sizes >= 0).all() and (places + sizes.astype(np.int64) * size == ends).all()
    if len(sizes) and (not whole or ends[-1] != there):
        raise ValueError(f"the index wants {ends[-1]:,} bytes of data, and there are {there:,}")


def know_user_dir() -> None:
    """Lets ``--user-dir`` name this package after Python has imported it, however it is spelled.

    fairseq would otherwise call the name "not globally unique" unless the path is exactly the one
    that Python found.
    """
    package = Path(__file__).parents[1]
    beside_fairseq = os.path.join(os.path.dirname(utils.__file__), "..", package.name)
    known = {str(package), str(package.resolve())}
    if os.path.exists(beside_fairseq):  # where fairseq looks for --user-dir NAME
        known |= {beside_fairseq, os.path.abspath(beside_fairseq)}
    function = utils.import_user_module
    function.memo = getattr(function, "memo", set()) | known


def show_help_of_models() -> None:
    """Makes ``--help`` of fairseq's programs list the options of the model and the task that the
    command line names. fairseq prints it before it knows them."""
    parse = options.parse_args_and_arch
    if hasattr(parse, "__wrapped__"):
        return

    @functools.wraps(parse)
    def parse_args_and_arch(parser, input_args=None, *args, **kwargs):
        given = sys.argv[1:] if input_args is None else list(input_args)
        asked = [word for word in given if word in ("-h", "--help")]
        if not asked:
            return parse(parser, input_args, *args, **kwargs)
        rest = [word for word in given if word not in asked]
        with contextlib.suppress(SystemExit), contextlib.redirect_stderr(io.StringIO()):
            parse(parser, rest, *args, **kwargs)  # adds the options to the parser
        parser.print_help()
        raise SystemExit(0)

    options.parse_args_and_arch = parse_args_and_arch


def silence_known_warnings() -> None:
    """Ignores the warnings of every fairseq command that no user can act on.

    The filters come last, so that ``-W error`` and ``PYTHONWARNINGS`` still win.
    """
    for message, category, module in KNOWN_WARNINGS:
        warnings.filterwarnings("ignore", message, category, module, append=True)
