"""Batches and data of fairseq's, and what is silenced."""

import warnings

import numpy as np
import pytest
import torch
from fairseq.data import data_utils
from fairseq.data.iterators import EpochBatchIterator
from fairseq.ngram_repeat_block import NGramRepeatBlock
from torch.utils.data import TensorDataset

from fairseq_clusterformer import compat


@pytest.mark.parametrize("count", [1, 8, 11])
@pytest.mark.parametrize("limits", [{"max_tokens": 40}, {"max_sentences": 8}])
@pytest.mark.parametrize("vector", [False, True])
def test_every_sentence_is_in_a_batch(count, limits, vector):
    indices, sizes = np.random.permutation(count), np.full(count, 5)
    how = {"num_tokens_vec": sizes if vector else None, "required_batch_size_multiple": 8}
    batches = data_utils.batch_by_size(indices, lambda i: int(sizes[i]), **how, **limits)
    assert np.concatenate(batches).tolist() == indices.tolist()
    assert all(len(batch) <= 8 for batch in batches)


def test_ngrams_are_blocked():
    """A hypothesis a b a must not go on with b, however long the buffer behind it is."""
    pad, a, b = 1, 4, 5
    tokens = torch.full((2, 20), pad)
    tokens[:, :4] = torch.tensor([[2, a, b, a], [2, b, b, a]])
    out = NGramRepeatBlock(2)(tokens, torch.zeros(2, 8), bsz=1, beam_size=2, step=3)
    assert torch.isinf(out).nonzero().tolist() == [[0, b]]


@pytest.mark.parametrize("reused", [False, True])
def test_a_curriculum_ends(reused):
    batches, data = [[i] for i in range(20)], TensorDataset(torch.arange(20))
    how = {"batch_sampler": batches, "reuse_dataloader": reused}
    iterator = EpochBatchIterator(data, lambda samples: [int(n) for (n,) in samples], **how)
    first = list(iterator.next_epoch_itr(shuffle=False))
    second, third = (list(iterator.next_epoch_itr(shuffle=True)) for _ in range(2))
    assert first == batches
    assert first != second != third
    assert sorted(second) == sorted(third) == batches


def test_only_known_warnings_are_silenced():
    known = "'pin_memory' argument is set as true but no accelerator is found, then ..."
    with warnings.catch_warnings(record=True) as seen:
        warnings.resetwarnings()
        compat.silence_known_warnings()
        warnings.warn(known, UserWarning, stacklevel=1)
        warnings.warn("pin_memory was never asked for", UserWarning, stacklevel=1)
    assert [str(one.message) for one in seen] == ["pin_memory was never asked for"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compat.silence_known_warnings()
        with pytest.raises(UserWarning, match="pin_memory"):
            warnings.warn(known, UserWarning, stacklevel=1)
