"""What is logged of ranked pairs."""

from types import SimpleNamespace

import pytest
import torch
from fairseq.logging import metrics

from fairseq_clusterformer.criterions.clusterformer_sentence_prediction import (
    ClusterformerSentencePrediction,
    ClusterformerSentencePredictionConfig,
)


class Model:
    """Says what it was given to say; no layer clusters."""

    training = False

    def __init__(self, logits: torch.Tensor):
        self.logits = logits

    def __call__(self):
        return self.logits, {"reports": {}}

    def get_normalized_probs(self, net_output: tuple, log_probs: bool) -> torch.Tensor:
        return net_output[0].log_softmax(-1)

    def get_targets(self, sample: dict, _: object) -> torch.Tensor:
        return sample["target"]


def test_sure_candidates_are_told_apart():
    """Probabilities of 1 - e^-30 and 1 - e^-40 are one number in float32, and so are their logs;
    of candidates that tie, the later one would come first."""
    task = SimpleNamespace(target_dictionary=None, is_ranking=True, classes=["x", "1", "y"])
    criterion = ClusterformerSentencePrediction.build_criterion(
        ClusterformerSentencePredictionConfig(), task
    )
    logits = torch.zeros(3, 3)
    logits[:, 1] = torch.tensor([40.0, 30.0, 2.0])
    sample = {"net_input": {}, "target": torch.tensor([1, 0, 2]), "ntokens": 9}
    sample |= {"question": torch.tensor([5, 5, 5]), "id": torch.arange(3)}
    _, _, log = criterion(Model(logits), sample)
    with metrics.aggregate() as found:
        ClusterformerSentencePrediction.reduce_metrics([log])
    logged = found.get_smoothed_values()
    assert logged["map"] == logged["mrr"] == 1
    assert float(logged["accuracy"]) == pytest.approx(100 / 3, abs=0.01)
