"""Classification and ranking by fairseq's commands: trained, resumed, validated, fine-tuned."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, average_precision_score

from tests.cli.expected import assert_logged
from tests.cli.in_process import (
    CLASSIFICATION,
    Run,
    load_model,
    load_state,
    train,
    validate,
)
from tests.cli.tasks import last

LEARNED = "--max-update 45 --validate-interval 3 --lr 0.005 --no-epoch-checkpoints"
BOTH = "window+neural"
TASK = "--task clusterformer_sentence --valid-subset test"


def valid_accuracy(run: Run, batches: int) -> float:
    logs = run.valid[-batches:]
    return sum(log["ncorrect"] for log in logs) / sum(log["sample_size"] for log in logs)


@pytest.fixture(scope="module")
def learned(text_data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Run]:
    """Three classes, about as often."""
    folder = tmp_path_factory.mktemp("learned")
    run = train(text_data, f"{CLASSIFICATION} {LEARNED}", folder, "--encoder-attention", BOTH)
    return last(folder), run


class TestTrain:
    def test_texts(self, learned):
        _, run = learned
        assert valid_accuracy(run, 3) > 0.6
        assert_logged(run)
        for update in run.updates + run.valid:
            assert update["clustered_size"] == update["sample_size"]


class TestValidate:
    def score(self, checkpoint: Path, data: Path) -> tuple[np.ndarray, np.ndarray]:
        """Log-probabilities of the test set, one at a time, and classes."""
        model, task = load_model(checkpoint, data)
        dataset = task.load_dataset("test")
        log_probs = []
        with torch.no_grad():
            for index in range(len(dataset)):
                batch = dataset.collater([dataset[index]])
                log_probs.append(model(**batch["net_input"])[0].log_softmax(-1)[0])
        return torch.stack(log_probs).numpy(), dataset.labels.numpy()

    def test_accuracy(self, text_data, learned):
        classifier, _ = learned
        printed = validate(text_data, classifier, TASK, "--batch-size", 5)
        log_probs, target = self.score(classifier, text_data)
        expected = 100 * accuracy_score(target, log_probs.argmax(1))
        assert printed["accuracy"] == pytest.approx(expected, abs=0.0051)
        loss = -log_probs[np.arange(len(target)), target].mean() / math.log(2)
        assert printed["loss"] == pytest.approx(loss, abs=0.00051)
        assert "map" not in printed

    def test_ranking(self, pair_data, ranker):
        """By scikit-learn a question; batches cut through questions."""
        printed = validate(pair_data, ranker, TASK, "--batch-size", 3)
        log_probs, target = self.score(ranker, pair_data)
        right = load_model(ranker, pair_data)[1].classes.index("1")
        groups = np.array((pair_data / "group" / "test.txt").read_text().split())
        precisions, reciprocals = [], []
        for group in sorted(set(groups)):
            mine = groups == group
            relevant, scores = target[mine] == right, log_probs[mine, right]
            if relevant.any():
                precisions.append(average_precision_score(relevant, scores))
                order = relevant[np.argsort(-scores)]
                reciprocals.append(1 / (1 + int(order.argmax())))
        assert 0.2 < np.mean(precisions) < 0.99
        assert printed["map"] == pytest.approx(np.mean(precisions), abs=0.000051)
        assert printed["mrr"] == pytest.approx(np.mean(reciprocals), abs=0.000051)

    def test_meters_do_not_pile_up(self, pair_data, tmp_path):
        train(pair_data, f"{CLASSIFICATION} --validate-interval-updates 2", tmp_path)
        meters = dict((entry[1], entry[3]) for entry in _meters(last(tmp_path))["valid"])
        assert len(meters["_candidates"]["tensor"]) == 42


def _meters(checkpoint: Path) -> dict:
    return load_state(checkpoint)["extra_state"]["metrics"]


class TestWordVectors:
    LINE = f"{CLASSIFICATION} --max-update 2"

    def write(self, path: Path, words: str = "abcdefgh", width: int = 32) -> Path:
        lines = [f"{word} " + " ".join(f"{x:.3f}" for x in torch.randn(width)) for word in words]
        path.write_text("\n".join(lines) + "\n")
        return path

    def test_frozen(self, text_data, tmp_path):
        vectors = self.write(tmp_path / "vectors.txt")
        run = train(
            *(text_data, self.LINE, tmp_path, "--word-vectors", vectors, "--freeze-word-vectors")
        )
        symbols = run.model.encoder.dictionary
        given = torch.tensor(
            [[float(x) for x in line.split()[1:]] for line in vectors.read_text().splitlines()]
        )
        places = [symbols.index(word) for word in "abcdefgh"]
        trained = run.model.encoder.embed_tokens.weight[places]
        torch.testing.assert_close(trained, given * 32**-0.5 / given.std())
        # the checkpoint needs the file no more
        vectors.unlink()
        model, _ = load_model(last(tmp_path), text_data)
        torch.testing.assert_close(model.encoder.embed_tokens.weight[places], trained)
