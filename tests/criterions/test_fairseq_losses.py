"""The loss of pairs of texts against plain loops, in float64."""

import math
from types import SimpleNamespace

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.logging import metrics
from torch import Tensor

from fairseq_clusterformer.criterions.fairseq_losses import (
    ClusterformerMaskedLMLoss,
    ClusterformerMaskedLMLossConfig,
)

PAIRS, LENGTH, WORDS = 3, 7, 12


class Model:
    """Says what it was given to say; no layer clusters."""

    training = True

    def __init__(self, words: Tensor, pairs: Tensor):
        self.words, self.pairs = words, pairs

    def __call__(self, masked_tokens: Tensor):
        return self.words[masked_tokens], {"reports": {}, "next_sentence": self.pairs}

    def get_targets(self, sample: dict, _: object) -> Tensor:
        return sample["target"]


def nats(logits: Tensor, right: int) -> float:
    values = logits.tolist()
    return math.log(sum(map(math.exp, values))) - values[right]


def test_words_and_pairs_count_by_their_means():
    dictionary = Dictionary()
    task = SimpleNamespace(target_dictionary=dictionary)
    criterion = ClusterformerMaskedLMLoss.build_criterion(
        ClusterformerMaskedLMLossConfig(tpu=False), task
    )
    pad, logs, each = dictionary.pad(), [], []
    for guessed in (2, 4):  # batches of as many pairs, and of other numbers of guessed words
        words = torch.randn(PAIRS, LENGTH, WORDS, dtype=torch.float64)
        pairs = torch.randn(PAIRS, 2, dtype=torch.float64)
        target, follows = torch.full((PAIRS, LENGTH), pad), torch.tensor([1, 0, 1])
        target[:, :guessed] = torch.randint(4, WORDS, (PAIRS, guessed))
        sample = {"net_input": {}, "target": target, "follows": follows}
        sample |= {"ntokens": PAIRS * LENGTH, "nsentences": PAIRS}
        loss, size, log = criterion(Model(words, pairs), sample)
        of_words = [
            nats(words[row, place], int(target[row, place]))
            for row in range(PAIRS)
            for place in range(guessed)
        ]
        both = [*zip(pairs, follows.tolist(), strict=True)]
        of_pairs = [nats(*pair) for pair in both]
        right = [(logits[1] > logits[0]).item() == label for logits, label in both]
        assert size == PAIRS * guessed
        expected = sum(of_words) / len(of_words) + sum(of_pairs) / PAIRS
        assert float(loss / size) == pytest.approx(expected)
        assert float(log["loss"]) == pytest.approx(sum(of_words))
        logs.append(log)
        each += zip(of_pairs, right, strict=True)
    with metrics.aggregate() as found:
        ClusterformerMaskedLMLoss.reduce_metrics(logs)
    bits, accuracy = (sum(column) / len(each) for column in zip(*each, strict=True))
    logged = found.get_smoothed_values()
    assert logged["next_sentence_loss"] == pytest.approx(bits / math.log(2), abs=5e-4)
    assert float(logged["next_sentence_accuracy"]) == pytest.approx(accuracy, abs=5e-4)
