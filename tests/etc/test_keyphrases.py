"""The best phrases of a page."""

import torch

from fairseq_clusterformer.etc.keyphrases import best_keyphrases

NONE = -torch.inf


def test_each_phrase_once_with_its_largest_logit() -> None:
    logits = torch.tensor([[1.0, 4.0, 3.0, 2.0], [6.0, -1.0, 5.0, NONE]])
    words = ["Star", "Trek", "star", "trek", "behind the end"]
    expected = [("star trek", 6.0), ("trek", 4.0), ("star", 3.0), ("trek star", -1.0)]
    assert best_keyphrases(logits, words) == expected
    assert best_keyphrases(logits, words, 2) == expected[:2]
    assert best_keyphrases(torch.full((2, 4), NONE), words) == []
