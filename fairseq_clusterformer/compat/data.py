"""Batches, data sets and searches of fairseq's."""

import contextlib
import os

import numpy as np
import torch.distributed as dist
from fairseq.data import Dictionary, bucket_pad_length_dataset, data_utils, indexed_dataset
from fairseq.data.indexed_dataset import IndexedCachedDataset, IndexedDataset, MMapIndexedDataset
from fairseq.data.iterators import EpochBatchIterator
from fairseq.distributed import utils as distributed_utils
from fairseq.ngram_repeat_block import NGramRepeatBlock
from fairseq.search import DiverseBeamSearch

from fairseq_clusterformer.errors import UserError, first_line

from .wrapping import mends


@mends(data_utils, "batch_by_size")
def keep_last_batches(batches_of, indices, *args, **kwargs):
    """Keeps the last batch of a data set, whatever its size. fairseq drops one that is no multiple
    of ``--required-batch-size-multiple``, 8 by default, without a message: up to 7 sentences."""
    if not isinstance(indices, np.ndarray):
        indices = np.fromiter(indices, dtype=np.int64, count=-1)
    batches = list(batches_of(indices, *args, **kwargs)) if len(indices) else []
    left_out = indices[sum(map(len, batches)) :]
    return [*batches, left_out] if len(left_out) else batches


@mends(bucket_pad_length_dataset, "get_buckets")
def find_buckets(_, sizes, num_buckets: int) -> np.ndarray:
    """Lets ``--num-batch-buckets`` find its lengths: numpy's percentile has other arguments."""
    places = np.linspace(0, 100, num_buckets + 1)[1:]
    return np.unique(np.percentile(sizes, places, method="lower"))


@mends(EpochBatchIterator, "_get_iterator_for_epoch")
def shuffle_after_curriculum(iterate, self, epoch, shuffle, *args, **kwargs):
    """Lets ``--curriculum N`` end: a data loader that is used again never shuffled."""
    if self.dataloader is not None:
        self.epoch_batch_sampler.shuffle = shuffle
    return iterate(self, epoch, shuffle, *args, **kwargs)


@mends(distributed_utils, "all_gather_list")
def gather_without_cuda(gather, data, group=None, max_size=16384):
    """Lets workers without GPUs exchange what cannot be summed, such as ranked pairs."""
    group = group or distributed_utils.get_global_group()
    if dist.get_backend(group) != "gloo":
        return gather(data, group, max_size)
    everyone = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, data, group=group)
    return everyone


@mends(NGramRepeatBlock, "_no_repeat_ngram")
def mend_ngram_blocking(blocked, self, tokens, lprobs, bsz: int, beam_size: int, step: int):
    """Makes ``--no-repeat-ngram-size`` work without fairseq's CUDA extension: it compared n-grams
    with the end of the token buffer, padding until the last step, and blocked nothing."""
    return blocked(self, tokens[:, : step + 1], lprobs, bsz, beam_size, step)


@mends(DiverseBeamSearch, "step")
def find_sentences(step_of, self, step, lprobs, scores, prev_output_tokens=None, ids=None):
    """Lets ``--diverse-beam-groups`` find the sentences of a batch that are not finished. fairseq
    takes their numbers in the data set for their places in the batch."""
    if step == 0:
        self.first_ids = ids
    places = (ids[:, None] == self.first_ids).int().argmax(1)
    return step_of(self, step, lprobs, scores, prev_output_tokens, places)


# Files


class NamedError(UserError, ValueError):
    """A damaged file, which the message names."""


@mends(IndexedCachedDataset, "__getitem__")
def read_what_is_not_kept(item_of, self, index):
    """Lets data of ``--dataset-impl lazy`` and ``cached`` be read that are not in memory."""
    kept = index in self.cache_index
    return item_of(self, index) if kept else IndexedDataset.__getitem__(self, index)


@mends(MMapIndexedDataset, "__del__")
@mends(MMapIndexedDataset.Index, "__del__")
def end_quietly(end, self):
    """What was not begun has nothing to close."""
    with contextlib.suppress(AttributeError):
        end(self)


@mends(indexed_dataset, "make_dataset")
def know_the_dictionary(make, path, impl, fix_lua_indexing=False, dictionary=None):
    data = make(path, impl, fix_lua_indexing, dictionary)
    if isinstance(data, MMapIndexedDataset) and dictionary is not None:
        check_tokens(data, len(dictionary))
    return data


def check_tokens(data: MMapIndexedDataset, most: int) -> None:
    """Raises NamedError: a token beyond the dictionary, for which no embedding has a row."""
    tokens = np.frombuffer(data._bin_buffer, dtype=data._index.dtype)
    if len(tokens) and not tokens.max() < most:
        raise _damaged(f"{data._path}.bin", f"token {tokens.max()} of a dictionary of {most}")


@mends(Dictionary, "add_from_file")
@mends(MMapIndexedDataset, "_do_init")
@mends(IndexedDataset, "read_index")
def name_damaged_data(read, self, path, *args, **kwargs):
    """Lets one line name a dictionary or an indexed file that cannot be read."""
    try:
        result = read(self, path, *args, **kwargs)
        if isinstance(self, MMapIndexedDataset):  # are the index's items those of the data?
            index, there = self._index, os.path.getsize(f"{path}.bin")
            sizes = index._sizes.astype(np.int64) * index._dtype().itemsize
            ends = np.cumsum(sizes)
            whole = (sizes >= 0).all() and (index._pointers + sizes == ends).all()
            if len(sizes) and (not whole or ends[-1] != there):
                raise ValueError(f"the index wants {ends[-1]:,} bytes of data, not {there:,}")
        return result
    except FileNotFoundError:
        raise
    except Exception as error:  # of every kind, from AssertionError to struct.error
        if not isinstance(path, str) or isinstance(error, NamedError):
            raise
        files = path if isinstance(self, Dictionary) else f"{path}.idx, .bin"
        raise _damaged(files, first_line(error)) from None


def _damaged(files: str, problem: str) -> NamedError:
    return NamedError(f"{files}: damaged ({problem}); allowed: a file as it was prepared")
