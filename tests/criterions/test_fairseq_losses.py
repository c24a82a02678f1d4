"""Losses of pairs of texts and of ranked pairs against plain loops."""

import math
from argparse import Namespace
from types import SimpleNamespace

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.logging import metrics
from torch import Tensor

from fairseq_clusterformer.criterions.clusterformer_sentence_prediction import (
    ClusterformerSentencePrediction,
    ClusterformerSentencePredictionConfig,
    _Rows,
)
from fairseq_clusterformer.criterions.fairseq_losses import (
    ClusterformerMaskedLMLoss,
    ClusterformerMaskedLMLossConfig,
)

PAIRS, LENGTH, WORDS = 3, 7, 12


class Model:
    """Says what it was given to say; no layer clusters."""

    def __init__(self, logits: Tensor, training: bool, **said: Tensor):
        self.logits, self.training, self.said = logits, training, {"reports": {}, **said}

    def __call__(self, masked_tokens: Tensor | None = None):
        logits = self.logits if masked_tokens is None else self.logits[masked_tokens]
        return logits, self.said

    def get_normalized_probs(self, net_output: tuple, log_probs: bool) -> Tensor:
        return net_output[0].log_softmax(-1)

    def get_targets(self, sample: dict, _: object) -> Tensor:
        return sample["target"]


def logged_of(criterion: type, logs: list[dict]) -> dict[str, float]:
    with metrics.aggregate() as found:
        criterion.reduce_metrics(logs)
    return found.get_smoothed_values()


def nats(logits: Tensor, right: int) -> float:
    values = logits.tolist()
    return math.log(sum(map(math.exp, values))) - values[right]


def test_words_and_pairs_count_by_their_means():
    dictionary = Dictionary()
    task = SimpleNamespace(target_dictionary=dictionary)
    config = ClusterformerMaskedLMLossConfig(tpu=False)
    criterion = ClusterformerMaskedLMLoss.build_criterion(config, task)
    pad, logs, each = dictionary.pad(), [], []
    for guessed in (2, 4):  # batches of as many pairs, and of other numbers of guessed words
        words = torch.randn(PAIRS, LENGTH, WORDS, dtype=torch.float64)
        pairs = torch.randn(PAIRS, 2, dtype=torch.float64)
        target, follows = torch.full((PAIRS, LENGTH), pad), torch.tensor([1, 0, 1])
        target[:, :guessed] = torch.randint(4, WORDS, (PAIRS, guessed))
        sample = {"net_input": {}, "target": target, "follows": follows}
        sample |= {"ntokens": PAIRS * LENGTH, "nsentences": PAIRS}
        loss, size, log = criterion(Model(words, True, next_sentence=pairs), sample)
        of_words = [
            nats(words[row, place], int(target[row, place]))
            for row in range(PAIRS)
            for place in range(guessed)
        ]
        both = [*zip(pairs, follows.tolist(), strict=True)]
        of_pairs = [nats(*pair) for pair in both]
        assert size == PAIRS * guessed
        expected = sum(of_words) / len(of_words) + sum(of_pairs) / PAIRS
        assert float(loss / size) == pytest.approx(expected)
        assert float(log["loss"]) == pytest.approx(sum(of_words))
        logs.append(log)
        right = [(logits[1] > logits[0]).item() == label for logits, label in both]
        each += zip(of_pairs, right, strict=True)
    bits, accuracy = (sum(column) / len(each) for column in zip(*each, strict=True))
    logged = logged_of(ClusterformerMaskedLMLoss, logs)
    assert logged["next_sentence_loss"] == pytest.approx(bits / math.log(2), abs=5e-4)
    assert float(logged["next_sentence_accuracy"]) == pytest.approx(accuracy, abs=5e-4)


def test_sure_candidates_are_told_apart():
    """Probabilities of 1 - e^-30 and 1 - e^-40 are one number in float32, and so are their logs;
    of candidates that tie, the later one would come first."""
    task = SimpleNamespace(target_dictionary=None, is_ranking=True, classes=["x", "1", "y"])
    config = ClusterformerSentencePredictionConfig()
    criterion = ClusterformerSentencePrediction.build_criterion(config, task)
    logits = torch.zeros(3, 3)
    logits[:, 1] = torch.tensor([40.0, 30.0, 2.0])
    sample = {"net_input": {}, "target": torch.tensor([1, 0, 2]), "ntokens": 9}
    sample |= {"question": torch.tensor([5, 5, 5]), "id": torch.arange(3)}
    _, _, log = criterion(Model(logits, False), sample)
    logged = logged_of(ClusterformerSentencePrediction, [log])
    assert logged["map"] == logged["mrr"] == 1
    assert float(logged["accuracy"]) == pytest.approx(100 / 3, abs=0.01)


@pytest.mark.parametrize(
    ("kind", "found", "right", "expected"),
    [
        ("classified", [1, 1, 1, 0, 0, 0], [1, 1, 0, 1, 0, 0], {"f1": 66.67, "mcc": 33.33}),
        ("classified", [0] * 3, [0, 0, 1], {"f1": 0, "mcc": 0}),  # nowhere
        ("regressed", [1, 2, 4], [1, 3, 2], {"pearson": 32.7327, "spearman": 50}),
        ("regressed", [1, 1, 1], [1, 3, 2], {"pearson": 0, "spearman": 0}),
        ("regressed", [1, math.nan, 1], [1, 3, 2], {"pearson": math.nan, "spearman": math.nan}),
    ],
)
def test_scores_of_glue(kind, found, right, expected):
    """By hand, over the rows of two batches; what is constant has none."""
    rows = _Rows(torch.tensor(found).double(), torch.tensor(right))
    log = {"loss": 0.0, "sample_size": 1}
    logs = [log | {kind: Namespace(rows=part)} for part in rows.rows.split(2)]
    logged = logged_of(ClusterformerSentencePrediction, logs)
    assert {name: logged[name] for name in expected} == pytest.approx(expected, nan_ok=True)
