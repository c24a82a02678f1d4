"""Mends fairseq 0.12 for today's torch, numpy and hydra, and for every model of the process.

The plug-in calls ``apply`` when it is imported. fairseq imports ``--user-dir`` before it loads a
checkpoint or builds a data set: that is early enough for every command and worker. Batches change
as well, for dense models too: see `keep_last_batches`.
"""

import argparse
import ast
import collections
import contextlib
import io
import math
import os
import sys
import types
import typing
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import bitarray.util
import numpy as np
import omegaconf
import torch
import torch.distributed as dist
from fairseq import checkpoint_utils, options, utils
from fairseq.data import Dictionary, bucket_pad_length_dataset, data_utils, indexed_dataset
from fairseq.data.indexed_dataset import (
    IndexedCachedDataset,
    IndexedDataset,
    MMapIndexedDataset,
)
from fairseq.data.iterators import EpochBatchIterator
from fairseq.dataclass import utils as dataclass_utils
from fairseq.distributed import utils as distributed_utils
from fairseq.distributed.utils import _TensorPlaceholder
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.models.ema.ema import EMA
from fairseq.ngram_repeat_block import NGramRepeatBlock
from fairseq.optim.fp16_optimizer import _FP16OptimizerMixin
from fairseq.search import DiverseBeamSearch, LexicallyConstrainedBeamSearch
from fairseq.tasks import TASK_REGISTRY
from fairseq.trainer import Trainer
from numpy._core import multiarray
from omegaconf.base import ContainerMetadata, Metadata
from torch import nn

from fairseq_clusterformer.errors import UserError, first_line, refused
from fairseq_clusterformer.moved import check_moved

from . import processes, resuming, saving  # noqa: F401  they mend as well
from .one_line import report_in_one_line
from .wrapping import mend, mends

# fairseq calls torch.load without weights_only (checkpoint_utils.load_checkpoint_to_cpu,
# distributed/utils._broadcast_object_slow), which since torch 2.6 means True. These are the types
# that fairseq itself writes; each holds data only. Whatever else a file names is still refused.
CHECKPOINT_TYPES = [argparse.Namespace]  # options of models that argparse configures, as roberta
# --eval-bleu: the counts of n-grams among the meters
CHECKPOINT_TYPES += [multiarray._reconstruct, multiarray.scalar, np.ndarray, np.dtype]
CHECKPOINT_TYPES += [type(np.dtype(name)) for name in ("int32", "int64", "float32", "float64")]
# a loaded checkpoint, saved again or sent to other workers: the options as omegaconf made them
CHECKPOINT_TYPES += [omegaconf.DictConfig, omegaconf.ListConfig, omegaconf.AnyNode, typing.Any]
CHECKPOINT_TYPES += [ContainerMetadata, Metadata, int, dict, list, collections.defaultdict]
# broadcast_object: the place of a tensor that is sent separately
CHECKPOINT_TYPES += [_TensorPlaceholder]

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
    (r"`torch\.cuda\.amp\.(autocast|GradScaler)\(", FutureWarning, r"fairseq\."),
    # modules/multihead_attention: a boolean padding mask with a float future mask
    (r"Support for mismatched key_padding_mask and", UserWarning, r"torch\.nn\.functional"),
)


def apply(begin: Callable[[], None] | None = None) -> None:
    """Apply all changes. Calling it again changes nothing.

    Args:
        begin: what a training's further processes call first.
    """
    mend()
    allow_checkpoint_types()
    read_options_as_values()
    restore_names()
    know_user_dir()
    silence_known_warnings()
    if begin is not None:
        processes.started["begin"] = begin
    processes.check_configurations()
    report_in_one_line()


def allow_checkpoint_types() -> None:
    """Lets ``torch.load(weights_only=True)`` read what fairseq writes."""
    torch.serialization.add_safe_globals(CHECKPOINT_TYPES)


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


@mends(bucket_pad_length_dataset, "get_buckets")
def find_buckets(_, sizes, num_buckets: int) -> np.ndarray:
    """Lets ``--num-batch-buckets`` find its lengths: numpy's percentile has other arguments."""
    places = np.linspace(0, 100, num_buckets + 1)[1:]
    return np.unique(np.percentile(sizes, places, method="lower"))


@mends(IndexedCachedDataset, "__getitem__")
def read_what_is_not_kept(item_of, self, index):
    """Lets data of ``--dataset-impl lazy`` and ``cached`` be read where nothing was kept of it in
    memory: fairseq has stopped to do so, and takes lazy data for cached."""
    kept = index in self.cache_index
    return item_of(self, index) if kept else IndexedDataset.__getitem__(self, index)


@mends(LexicallyConstrainedBeamSearch, "init_constraints")
def name_missing_constraints(begin, self, batch_constraints, beam_size: int):
    """Only ``fairseq-interactive`` reads constraints."""
    if batch_constraints is None:
        allowed = "fairseq-interactive, with constraints behind each line, separated by tabs"
        raise refused("--constraints", "given", allowed, "prepared data has none")
    begin(self, batch_constraints, beam_size)


@mends(DiverseBeamSearch, "step")
def find_sentences(step_of, self, step, lprobs, scores, prev_output_tokens=None, ids=None):
    """Lets ``--diverse-beam-groups`` find the sentences of a batch that are not finished. fairseq
    takes their numbers in the data set for their places in the batch."""
    if step == 0:
        self.first_ids = ids
    places = (ids[:, None] == self.first_ids).int().argmax(1)
    return step_of(self, step, lprobs, scores, prev_output_tokens, places)


@mends(dataclass_utils, "eval_str_list")
def refuse_lists(read, x, x_type=float):
    """Lets a list of numbers that Python cannot read, such as ``--lr abc``, be one line."""
    try:
        return read(x, x_type)
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        allowed = f"one {x_type.__name__} or several, separated by commas"
        raise argparse.ArgumentTypeError(f"is {x}; allowed: {allowed}") from None


_VALUES = (ast.Expression, ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.Load)
_VALUES += (ast.BinOp, ast.Add, ast.Mult, ast.UnaryOp, ast.USub)
_MOST = 1000  # times that a list can be repeated in all


def value_of(text: str) -> object:
    """The value of an option such as ``[(512, 3)] * 20``. Raises ValueError: it is no number,
    list or dictionary, but a program, which fairseq would run. TypeError, as ``eval``: no text."""
    if not isinstance(text, str):
        raise TypeError(f"eval() takes text, not {text!r}")
    try:
        tree = ast.parse(text.strip(), mode="eval")
        nodes = [*ast.walk(tree)]
        products = [node for node in nodes if isinstance(node, ast.BinOp)]
        numbers = [n.value for p in products for n in (p.left, p.right) if hasattr(n, "value")]
        if all(isinstance(n, _VALUES) for n in nodes) and math.prod(numbers) <= _MOST:
            return eval(compile(tree, "option", "eval"))  # of values alone
    except (SyntaxError, TypeError, RecursionError, MemoryError):
        pass
    raise refused("an option", text[:60], "a number, a list or a dictionary")


def read_options_as_values() -> None:
    """Lets the options of a checkpoint, or of a stranger's bundle, run no code: fairseq evaluates
    some of them."""
    for name, module in list(sys.modules.items()):
        if name.startswith("fairseq."):
            module.eval = value_of


@mends(utils, "split_paths")
def keep_colons(split, paths: str, separator: str = os.pathsep) -> list[str]:
    """A folder whose name has a colon is one folder."""
    return [paths] if os.path.isdir(paths) else split(paths, separator)


@mends(NGramRepeatBlock, "_no_repeat_ngram")
def mend_ngram_blocking(blocked, self, tokens, lprobs, bsz: int, beam_size: int, step: int):
    """Makes ``--no-repeat-ngram-size`` work without fairseq's CUDA extension: it compared n-grams
    with the end of the token buffer, padding until the last step, and blocked nothing."""
    return blocked(self, tokens[:, : step + 1], lprobs, bsz, beam_size, step)


@mends(data_utils, "batch_by_size")
def keep_last_batches(batches_of, indices, *args, **kwargs):
    """Keeps the last batch of a data set, whatever its size. fairseq drops one that is no multiple
    of ``--required-batch-size-multiple``, 8 by default, without a message: up to 7 sentences."""
    if not isinstance(indices, np.ndarray):
        indices = np.fromiter(indices, dtype=np.int64, count=-1)
    if not len(indices):
        return []
    batches = list(batches_of(indices, *args, **kwargs))
    left_out = indices[sum(map(len, batches)) :]
    return [*batches, left_out] if len(left_out) else batches


@mends(distributed_utils, "all_gather_list")
def gather_without_cuda(gather, data, group=None, max_size=16384):
    """Lets workers exchange what cannot be summed, such as ranked pairs, without a GPU, which
    fairseq's own function needs."""
    group = group or distributed_utils.get_global_group()
    if dist.get_backend(group) != "gloo":
        return gather(data, group, max_size)
    everyone = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, data, group=group)
    return everyone


@mends(EpochBatchIterator, "_get_iterator_for_epoch")
def shuffle_after_curriculum(iterate, self, epoch, shuffle, *args, **kwargs):
    """Lets ``--curriculum N`` end: a data loader that is used again never shuffled."""
    if self.dataloader is not None:
        self.epoch_batch_sampler.shuffle = shuffle
    return iterate(self, epoch, shuffle, *args, **kwargs)


@mends(EMA, "__init__")
def keep_what_is_no_mean(init, self, model, config, device=None, skip_keys=None):
    """Lets ``--store-ema`` average models that have more than weights: see `_averaged`. It takes
    the newest of others. fairseq multiplies every tensor by the decay: an error for whole numbers
    and truth values, and not a number for a logarithm of 0 where ``--ema-start-update`` makes the
    decay 0."""
    newest = model.state_dict().keys() - _averaged(model)
    init(self, model, config, device, {*(skip_keys or ()), *newest})


@mends(EMA, "build_fp32_params")
def average_tensors_alone(build, self, state_dict=None):
    """Lets ``--ema-fp32`` average models that keep more than tensors, as K-Means does."""
    given = self.model.state_dict() if state_dict is None else state_dict
    build(self, {name: value for name, value in given.items() if isinstance(value, torch.Tensor)})


@mends(EMA, "restore")
def keep_versions(restore, self, state_dict, build_fp32_params=False):
    """Keeps a decoder's ``version`` in its average. Without one, fairseq takes the last layer norm
    for that of an older decoder, and drops it."""
    versions = {n: t for n, t in self.model.state_dict().items() if "version" in n}
    restore(self, {**versions, **state_dict}, build_fp32_params)


@mends(_FP16OptimizerMixin, "state_dict")
def save_unrounded(state_of, self):
    """Lets ``--bf16`` and ``--fp16`` resume to the bit: a checkpoint has the weights that are
    updated, in float32. fairseq saves what they are rounded to."""
    return {**state_of(self), _UNROUNDED: [weights.detach() for weights in _unrounded(self)]}


@mends(_FP16OptimizerMixin, "load_state_dict")
def load_unrounded(load, self, state_dict, optimizer_overrides=None):
    """Takes them if they round to the model's: its weights may have come from elsewhere."""
    load(self, state_dict, optimizer_overrides)
    kept, own = state_dict.get(_UNROUNDED, ()), _unrounded(self)
    if [weights.shape for weights in kept] != [weights.shape for weights in own]:
        return
    rounded = self.fp16_params[0].dtype
    pairs = list(zip(kept, own, strict=True))
    if all(torch.equal(a.to(rounded), b.to(rounded).to(a.device)) for a, b in pairs):
        for saved, weights in pairs:
            weights.data.copy_(saved)


_UNROUNDED = "unrounded_weights"


def _unrounded(optimizer: _FP16OptimizerMixin) -> list[torch.Tensor]:
    weights = optimizer.fp32_params
    return [*weights.values()] if isinstance(weights, dict) else list(weights)


def _averaged(model: nn.Module) -> set[str]:
    """A model's floating-point tensors but ``pending...``, observed since the last update."""
    return {
        name
        for name, value in model.state_dict().items()
        if isinstance(value, torch.Tensor)
        and value.is_floating_point()
        and not name.rpartition(".")[2].startswith("pending")
    }


@mends(Trainer, "valid_step")
def validate_the_average(valid_step, self, sample, raise_oom=False):
    """Lets ``--store-ema`` validate the average, which is what will be used, instead of the newest
    weights: ``checkpoint_best.pt`` is then the one whose average is best."""
    if self._ema is None:  # also before the first update
        return valid_step(self, sample, raise_oom)
    with _exchanged(self.get_model(), self.ema.get_model()):
        return valid_step(self, sample, raise_oom)


@contextlib.contextmanager
def _exchanged(model: nn.Module, average: nn.Module) -> Iterator[None]:
    """Exchange the averaged tensors of two models, by reference."""
    kept = _averaged(model)  # of the model itself, which a translator's search has

    def tensors(of: nn.Module) -> dict[str, torch.Tensor]:
        found = dict(of.named_parameters(remove_duplicate=False))
        return {**found, **dict(of.named_buffers(remove_duplicate=False))}

    averages = tensors(average)
    own = {name: tensor for name, tensor in tensors(model).items() if name in kept}
    # a tensor of two names is exchanged once
    pairs = {id(tensor): (tensor, averages[name]) for name, tensor in own.items()}

    def exchange() -> None:
        for one, other in pairs.values():
            one.data, other.data = other.data, one.data

    exchange()
    try:
        yield
    finally:
        exchange()


@mends(Trainer, "begin_epoch")
def announce_epochs(begin, self, epoch: int):
    """Calls a model's ``set_epoch`` when an epoch begins, with every task. fairseq does not."""
    begin(self, epoch)
    if hasattr(self.get_model(), "set_epoch"):
        self.get_model().set_epoch(epoch)


@mends(checkpoint_utils, "save_checkpoint")
def announce_saving(save, cfg, trainer, *args, **kwargs):
    """Calls ``consolidate`` of a model's modules before the first worker writes a checkpoint: here
    the others can send it what they have."""
    if not cfg.no_save:
        for module in trainer.get_model().modules():
            if hasattr(module, "consolidate"):
                module.consolidate()
    return save(cfg, trainer, *args, **kwargs)


@mends(MMapIndexedDataset, "__del__")
@mends(MMapIndexedDataset.Index, "__del__")
def end_quietly(end, self):
    """What was not begun has nothing to close."""
    with contextlib.suppress(AttributeError):
        end(self)


@mends(indexed_dataset, "make_dataset")
def know_the_dictionary(make, path, impl, fix_lua_indexing=False, dictionary=None):
    """Notes in the data how many symbols there are, for `name_unknown_tokens`."""
    data = make(path, impl, fix_lua_indexing, dictionary)
    if isinstance(data, MMapIndexedDataset) and dictionary is not None:
        data.num_symbols = len(dictionary)
    return data


@mends(MMapIndexedDataset, "__getitem__")
def name_unknown_tokens(item_of, self, index):
    """A token that the dictionary does not have would be a row that no embedding has."""
    tokens = item_of(self, index)
    most = getattr(self, "num_symbols", None)
    if most is not None and len(tokens) and not 0 <= int(tokens.max()) < most:
        problem = f"token {tokens.max()} of a dictionary of {most} in item {index}"
        allowed = "data as it was prepared with its dictionary"
        raise NamedError(f"{self._path}.bin: damaged ({problem}); allowed: {allowed}")
    return tokens


@mends(Dictionary, "add_from_file")
@mends(MMapIndexedDataset, "_do_init")
@mends(IndexedDataset, "read_index")
def name_damaged_data(read, self, path, *args, **kwargs):
    """Lets one line name a dictionary or an indexed file that cannot be read."""
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
        files = path if isinstance(self, Dictionary) else f"{path}.idx, .bin"
        problem = f"damaged ({first_line(error)})"
        raise NamedError(f"{files}: {problem}; allowed: a file as it was prepared") from None


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
    fairseq calls it "not globally unique" unless the path is exactly the one that Python found."""
    package = Path(__file__).parents[1]
    beside_fairseq = os.path.join(os.path.dirname(utils.__file__), "..", package.name)
    known = {str(package), str(package.resolve())}
    if os.path.exists(beside_fairseq):  # where fairseq looks for --user-dir NAME
        known |= {beside_fairseq, os.path.abspath(beside_fairseq)}
    function = utils.import_user_module
    function.memo = getattr(function, "memo", set()) | known


@mends(options, "parse_args_and_arch")
def show_help_of_models(parse, parser, input_args=None, *args, **kwargs):
    """Makes ``--help`` of fairseq's programs list the options of the model and the task that the
    command line names. fairseq prints it before it knows them. Without ``--arch`` fairseq raises
    an error that says nothing. What has moved is named."""
    given = sys.argv[1:] if input_args is None else list(input_args)
    check_moved(given, {"arch": ARCH_MODEL_REGISTRY, "task": TASK_REGISTRY})
    asked = [word for word in given if word in ("-h", "--help")]
    if not asked:
        try:
            return parse(parser, input_args, *args, **kwargs)
        except RuntimeError as error:
            if error.args:
                raise
            allowed = "a model, such as clusterformer_lm or transformer; --help lists them"
            raise refused("--arch", "not given", allowed) from None
    rest = [word for word in given if word not in asked]
    # whatever else the line has, or lacks
    with contextlib.suppress(Exception, SystemExit), contextlib.redirect_stderr(io.StringIO()):
        parse(parser, rest, *args, **kwargs)  # adds the options to the parser
    parser.print_help()
    raise SystemExit(0)


def silence_known_warnings() -> None:
    """Ignores the warnings of every fairseq command that no user can act on. The filters come
    last, so that ``-W error`` and ``PYTHONWARNINGS`` still win."""
    for message, category, module in KNOWN_WARNINGS:
        warnings.filterwarnings("ignore", message, category, module, append=True)
