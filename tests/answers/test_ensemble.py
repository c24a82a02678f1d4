"""The mean of readers, against their probabilities."""

import pytest
import torch

from fairseq_clusterformer.answers import AnswerLogits
from fairseq_clusterformer.use.evaluate import mean_logits


def logits(*sizes: int) -> list[torch.Tensor]:
    return [torch.randn(2, size) for size in sizes]


@pytest.mark.parametrize("candidates", [None, 3])
def test_probabilities_are_means(candidates):
    """-inf stays; a document without a paragraph has none. Sentences each have their own."""
    more = [] if candidates is None else [candidates]
    readers = [AnswerLogits(*logits(6, 6, 6, 5, 4, *more)) for _ in range(3)]
    for one in readers:
        one.start[:, 2] = one.end[0] = one.paragraph[1] = -torch.inf
        one.sentences[0, 3] = -torch.inf
    found = mean_logits(readers)
    for name in ("start", "end", "paragraph", "type", *(["candidates"] if candidates else [])):
        each = torch.stack([getattr(one, name).softmax(-1).nan_to_num(0.0) for one in readers])
        torch.testing.assert_close(getattr(found, name).exp(), each.mean(0))
    each = torch.stack([one.sentences.sigmoid() for one in readers])
    torch.testing.assert_close(found.sentences.sigmoid(), each.mean(0))
    assert found.sentences[0, 3] == -torch.inf
    assert (found.candidates is None) == (candidates is None)
    assert mean_logits(readers[:1]) is readers[0]


def test_what_shares_a_softmax_has_one_mean():
    slots = torch.randn(2, 2, 2, 4)
    readers = [AnswerLogits.shared(*logits(6, 6, 6), of_reader) for of_reader in slots]
    found = mean_logits(readers)
    assert found.slots.shape == slots[0].shape
    for i, name in enumerate(("start", "end")):
        each = [torch.cat([one.slots[:, i], getattr(one, name)], 1).softmax(-1) for one in readers]
        whole = torch.cat([found.slots[:, i], getattr(found, name)], 1)
        torch.testing.assert_close(whole.exp(), sum(each) / 2)
    torch.testing.assert_close(found.type[:, 1:], found.slots.sum(1))
