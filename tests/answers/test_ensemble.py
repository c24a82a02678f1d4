"""The mean of readers, against their probabilities."""

import pytest
import torch

from fairseq_clusterformer.answers import (
    AnswerLogits,
    mean_logits,
)


def test_probabilities_are_means():
    """-inf stays; a document without a paragraph has none."""
    readers = [AnswerLogits(*(torch.randn(2, n) for n in (6, 6, 6, 5))) for _ in range(3)]
    for one in readers:
        one.start[:, 2] = one.end[0] = one.paragraph[1] = -torch.inf
    found = mean_logits(readers)
    for name in ("start", "end", "paragraph", "type"):
        each = torch.stack([getattr(one, name).softmax(-1).nan_to_num(0.0) for one in readers])
        torch.testing.assert_close(getattr(found, name).exp(), each.mean(0))
    assert mean_logits(readers[:1]) is readers[0]


def test_what_shares_a_softmax_has_one_mean():
    readers = [
        AnswerLogits.shared(torch.randn(2, 6), torch.randn(2, 6), torch.randn(2, 6), slots)
        for slots in torch.randn(2, 2, 2, 4)
    ]
    found = mean_logits(readers)
    for i, name in enumerate(("start", "end")):
        each = [torch.cat([one.slots[:, i], getattr(one, name)], 1).softmax(-1) for one in readers]
        whole = torch.cat([found.slots[:, i], getattr(found, name)], 1)
        torch.testing.assert_close(whole.exp(), sum(each) / 2)
    torch.testing.assert_close(found.type[:, 1:], found.slots.sum(1))


@pytest.mark.parametrize("candidates", [None, 3])
def test_sentences_each_have_their_own(candidates):
    readers = [
        AnswerLogits(
            *(torch.randn(2, n) for n in (6, 6, 6, 5, 4)),
            None if candidates is None else torch.randn(2, candidates),
        )
        for _ in range(2)
    ]
    readers[0].sentences[0, 3] = readers[1].sentences[0, 3] = -torch.inf
    found = mean_logits(readers)
    each = torch.stack([one.sentences.sigmoid() for one in readers])
    torch.testing.assert_close(found.sentences.sigmoid(), each.mean(0))
    assert found.sentences[0, 3] == -torch.inf
    assert (found.candidates is None) == (candidates is None)
