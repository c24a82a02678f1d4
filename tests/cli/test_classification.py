"""Classification and ranking by fairseq's commands: trained, resumed, validated, fine-tuned."""

import math
import shutil
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from fairseq.models import ARCH_CONFIG_REGISTRY
from sklearn.metrics import accuracy_score, average_precision_score

from tests.cli.expected import STATISTICS, assert_logged, last_line
from tests.cli.in_process import (
    CLASSIFICATION,
    HERE,
    Run,
    assert_equal_states,
    in_two_processes,
    load_model,
    load_state,
    train,
    validate,
)
from tests.cli.sentence_data import binarize
from tests.conftest import REPO_ROOT, RunCli

SPECS = ("window", "window+neural", "kmeans,full")
LEARNED = "--max-update 45 --validate-interval 3 --lr 0.005 --no-epoch-checkpoints"
BEST = "--best-checkpoint-metric map --maximize-best-checkpoint-metric"
TASK = "--task clusterformer_sentence --valid-subset test"
MASKED = (
    "--task masked_lm --tokens-per-sample 32 --arch clusterformer_masked_lm --encoder-layers 2"
    " --encoder-embed-dim 32 --encoder-ffn-embed-dim 64 --encoder-attention-heads 4"
    " --attention-window 4 --criterion clusterformer_masked_lm --batch-size 4 --max-update 6"
    f" --optimizer adam --lr 0.003 --clip-norm 1 --seed 1 {HERE}"
)


def last(folder: Path) -> Path:
    return folder / "checkpoint_last.pt"


def valid_accuracy(run: Run, batches: int) -> float:
    logs = run.valid[-batches:]
    return sum(log["ncorrect"] for log in logs) / sum(log["sample_size"] for log in logs)


@pytest.fixture(scope="session")
def classifier(text_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classifier")
    train(text_data, f"{CLASSIFICATION} {LEARNED}", folder)
    return last(folder)


@pytest.fixture(scope="session")
def ranker(pair_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """After too few updates to be sure of anything."""
    folder = tmp_path_factory.mktemp("ranker")
    train(pair_data, CLASSIFICATION, folder, "--pair-form", "siamese", *BEST.split())
    return last(folder)


@pytest.fixture(scope="session")
def masked_lm(text_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("masked_lm")
    run = train(text_data / "input0", MASKED, folder)
    assert run.mean_loss(-1) < run.mean_loss(0) - 0.1
    assert all(update.keys() >= STATISTICS for update in run.updates)
    assert all(update["clustered_size"] == update["sample_size"] for update in run.updates)
    return last(folder)


class TestTrain:
    @pytest.mark.parametrize("spec", SPECS)
    def test_texts(self, spec: str, text_data: Path, tmp_path: Path) -> None:
        """Three classes, about as often."""
        line = f"{CLASSIFICATION} {LEARNED} --encoder-attention {spec}"
        run = train(text_data, line, tmp_path)
        assert valid_accuracy(run, 3) > 0.6
        assert_logged(run)
        for update in run.updates + run.valid:
            if spec in ("full", "window"):
                assert update["clustered_size"] == 0
            elif "neural" in spec:
                assert update["clustered_size"] == update["sample_size"]

    @pytest.mark.parametrize(("form", "pooling"), [("joined", "first"), ("siamese", "mean")])
    def test_pairs(self, form: str, pooling: str, pair_data: Path, tmp_path: Path) -> None:
        line = f"{CLASSIFICATION} {LEARNED} --pair-form {form} --pooling {pooling}"
        run = train(pair_data, line, tmp_path)
        assert valid_accuracy(run, 3) > 0.85

    @pytest.mark.parametrize(
        "options",
        [
            "--own-centroids --encoder-cluster-rule recent --encoder-normalize-before"
            " --encoder-learned-pos --layernorm-embedding --encoder-layerdrop 0.3 --update-freq 2",
            "--encoder-layers 4 --encoder-layers-to-keep 0,2 --checkpoint-activations"
            " --attention-dropout 0.1 --classifier-dropout 0.3 --classifier-hidden-dim 8"
            " --no-token-positional-embeddings --no-shuffle",
            "--num-classes 3 --max-positions 14 --activation-fn gelu --max-tokens 100",
            "--fp16 --fp16-no-flatten-grads --fp16-init-scale 4",
        ],
    )
    def test_option(self, options: str, text_data: Path, tmp_path: Path) -> None:
        run = train(text_data, f"{CLASSIFICATION} --dropout 0.1 {options}", tmp_path)
        assert len(run.updates) == 6
        for update in run.updates + run.valid:
            assert all(math.isfinite(value) for value in update.values())

    def test_truncated(self, text_data: Path, tmp_path: Path) -> None:
        run = train(text_data, f"{CLASSIFICATION} --max-positions 6 --truncate-sequence", tmp_path)
        assert len(run.updates) == 6
        assert max(update["ntokens"] for update in run.updates) <= 16 * 6


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

    def test_accuracy(self, text_data: Path, classifier: Path) -> None:
        printed = validate(text_data, classifier, TASK, "--batch-size", 5)
        log_probs, target = self.score(classifier, text_data)
        expected = 100 * accuracy_score(target, log_probs.argmax(1))
        assert printed["accuracy"] == pytest.approx(expected, abs=0.0051)
        loss = -log_probs[np.arange(len(target)), target].mean() / math.log(2)
        assert printed["loss"] == pytest.approx(loss, abs=0.00051)
        assert "map" not in printed

    @pytest.mark.parametrize("batch_size", [3, 42])
    def test_ranking(self, batch_size: int, pair_data: Path, ranker: Path) -> None:
        """By scikit-learn a question; batches cut through questions."""
        printed = validate(pair_data, ranker, TASK, "--batch-size", batch_size)
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

    def test_best_checkpoint(self, pair_data: Path, ranker: Path) -> None:
        """What training compares checkpoints by is what fairseq-validate prints."""
        best = load_state(ranker)["extra_state"]["best"]
        line = TASK.replace("test", "valid")
        assert validate(pair_data, ranker, line, "--batch-size", 5)["map"] == best

    def test_meters_do_not_pile_up(self, pair_data: Path, tmp_path: Path) -> None:
        train(pair_data, f"{CLASSIFICATION} --validate-interval-updates 2", tmp_path)
        meters = dict((entry[1], entry[3]) for entry in _meters(last(tmp_path))["valid"])
        assert len(meters["_candidates"]["tensor"]) == 42


def _meters(checkpoint: Path) -> dict:
    return load_state(checkpoint)["extra_state"]["metrics"]


def test_two_processes_rank_as_one(
    pair_data: Path, ranker: Path, tmp_path: Path, run_cli: RunCli
) -> None:
    """A question's candidates lie on both."""
    line = CLASSIFICATION.replace("--distributed-world-size 1", "")
    line += (
        f" --pair-form siamese --batch-size 5 --lr 0 --max-update 1 {BEST}"
        f" --finetune-from-model {ranker} --save-dir {tmp_path}"
    )
    in_two_processes(run_cli, "fairseq-train", pair_data, *line.split())
    best = load_state(last(tmp_path))["extra_state"]["best"]
    line = TASK.replace("test", "valid")
    assert best == validate(pair_data, ranker, line, "--batch-size", 42)["map"]


class TestWordVectors:
    LINE = f"{CLASSIFICATION} --max-update 2"

    def write(self, path: Path, words: str = "abcdefgh", width: int = 32) -> Path:
        lines = [f"{word} " + " ".join(f"{x:.3f}" for x in torch.randn(width)) for word in words]
        path.write_text("\n".join(lines) + "\n")
        return path

    def test_frozen(self, text_data: Path, tmp_path: Path) -> None:
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

    def test_trained(self, text_data: Path, tmp_path: Path) -> None:
        vectors = self.write(tmp_path / "vectors.txt")
        runs = [
            train(text_data, self.LINE, tmp_path / str(lr), "--word-vectors", vectors, "--lr", lr)
            for lr in (0, 0.01)
        ]
        still, moved = (run.model.encoder.embed_tokens.weight for run in runs)
        assert (still - moved).abs().max() > 0.005

    def test_resuming_needs_them_no_more(self, text_data: Path, tmp_path: Path) -> None:
        vectors = self.write(tmp_path / "vectors.txt")
        line = f"{CLASSIFICATION} --save-interval-updates 3"
        whole = train(text_data, line, tmp_path / "whole", "--word-vectors", vectors)
        vectors.unlink()
        line += f" --restore-file {tmp_path / 'whole' / 'checkpoint_1_3.pt'}"
        with pytest.raises(ValueError, match="no such file; .* to resume, leave the option out"):
            train(text_data, line, tmp_path / "resumed", "--word-vectors", vectors)
        resumed = train(text_data, line, tmp_path / "resumed")
        assert resumed.updates == whole.updates[3:]

    @pytest.mark.usefixtures("no_update")
    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("a 1 2 3\n", "line 1 has 3 numbers; allowed: a word and 32 numbers"),
            ("9 32\na 1 2\n", "line 2 has 2 numbers; allowed"),
            (f"a{' 1' * 33}\n", "line 1 has 33 numbers; allowed"),
            (f"a{' 1' * 32}\nb{' 1' * 31}\n", "line 2 has 31 numbers; allowed"),
            (f"a{' 1' * 32}\nb{' 1' * 31} one\n", "line 2: could not convert string"),
            (f"a{' nan' * 32}\n", "line 1 has a number that is not finite"),
            (f"a{' 0' * 32}\n", "its numbers are all 0; allowed: vectors that differ"),
            (f"nowhere{' 1' * 32}\n", "none of the dictionary's words is in it; allowed"),
            (None, "no such file; allowed: a text file"),
        ],
    )
    def test_bad_file(
        self, content: str | None, message: str, text_data: Path, tmp_path: Path
    ) -> None:
        path = tmp_path / "vectors.txt"
        if content is not None:
            path.write_text(content)
        with pytest.raises(ValueError, match="allowed") as caught:
            train(text_data, self.LINE, tmp_path, "--word-vectors", path)
        assert f"--word-vectors is {path}: {message}" in last_line(caught.value)


class TestPretrained:
    LINE = f"{CLASSIFICATION} --max-update 1 --lr 0 --optimizer sgd"

    def test_every_tensor_is_accounted_for(
        self, text_data: Path, masked_lm: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level("INFO", "fairseq_clusterformer"):
            run = train(text_data, self.LINE, tmp_path, "--pretrained-checkpoint", masked_lm)
        given, now = load_state(masked_lm)["model"], load_state(last(tmp_path))["model"]
        encoder = {name for name in given if not name.startswith("lm_head.")}
        assert_equal_states({n: given[n] for n in encoder}, {n: now[n] for n in encoder})
        assert {name.split(".")[0] for name in now.keys() - encoder} == {"classifier"}
        told = [record.getMessage() for record in caplog.records]
        told = [line.split(": ")[1] for line in told if line.startswith(str(masked_lm))]
        assert told == [
            *(f"{len(encoder)} tensors loaded", f"{len(given) - len(encoder)} tensors left there"),
            "4 tensors starting anew",
        ]
        assert len(run.updates) == 1

    def test_clusters_start_anew_from_a_dense_checkpoint(
        self, text_data: Path, tmp_path: Path
    ) -> None:
        line = f"{MASKED} --encoder-attention full --max-update 1"
        train(text_data / "input0", line, tmp_path / "dense")
        path = last(tmp_path / "dense")
        train(text_data, self.LINE, tmp_path, "--pretrained-checkpoint", path)
        given, now = load_state(path)["model"], load_state(last(tmp_path))["model"]
        assert {n.split(".")[-3] for n in now if "routers" in n and n not in given} == {
            "clustering"
        }
        name = "encoder.layers.1.fc1.weight"
        assert torch.equal(given[name], now[name])

    def test_of_another_classifier(
        self, text_data: Path, classifier: Path, tmp_path: Path
    ) -> None:
        train(text_data, self.LINE, tmp_path, "--pretrained-checkpoint", classifier)
        given, now = load_state(classifier)["model"], load_state(last(tmp_path))["model"]
        same = {name.split(".")[0] for name in now if torch.equal(given[name], now[name])}
        assert same == {"encoder", "vocabulary"}

    @pytest.mark.usefixtures("no_update")
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ("--encoder-layers 3", r"tensors missing: \d+, such as encoder\.layers\.2\."),
            ("--encoder-layers 1", r"tensors of another model: \d+, such as encoder\.layers\.1\."),
            ("--encoder-ffn-embed-dim 48", r"fc1\.weight \[64, 32\], here \[48, 32\]"),
            ("--num-clusters 4", r"encoder\.centroids \[3, 32\], here \[4, 32\]"),
        ],
    )
    def test_another_size(
        self, options: str, message: str, text_data: Path, masked_lm: Path, tmp_path: Path
    ) -> None:
        line = f"{self.LINE} {options} --pretrained-checkpoint {masked_lm}"
        with pytest.raises(ValueError, match=message) as caught:
            train(text_data, line, tmp_path)
        line = last_line(caught.value)
        assert f"--pretrained-checkpoint is {masked_lm}: it does not fit the model: " in line

    @pytest.mark.usefixtures("no_update")
    def test_another_dictionary(
        self, text_data: Path, pair_data: Path, masked_lm: Path, tmp_path: Path
    ) -> None:
        line = f"{self.LINE} --pretrained-checkpoint {masked_lm}"
        with pytest.raises(ValueError, match="another dictionary"):
            train(pair_data, line, tmp_path)

    @pytest.mark.usefixtures("no_update")
    def test_no_checkpoint(self, text_data: Path, tmp_path: Path) -> None:
        path = tmp_path / "notes.pt"
        line = f"{self.LINE} --pretrained-checkpoint {path}"
        with pytest.raises(ValueError, match="no such file; allowed"):
            train(text_data, line, tmp_path)
        torch.save({"weights": torch.zeros(3)}, path)
        whole = path.read_bytes()
        for damaged in (b"no checkpoint", b"", whole[: len(whole) // 2], whole):
            path.write_bytes(damaged)
            with pytest.raises(ValueError, match="cannot be read"):
                train(text_data, line, tmp_path)
        with pytest.raises(ValueError, match="allowed: one of them"):
            train(text_data, f"{line} --word-vectors {path}", tmp_path)


@pytest.mark.usefixtures("no_update")
class TestBadInput:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ("--num-classes 2", "--num-classes is 2; allowed: 3, the labels of "),
            ("--pair-form both", "--pair-form is both; allowed: joined, siamese"),
            ("--pooling max", "--pooling is max; allowed: mean, first"),
            ("--max-positions 4", "--max-positions is 4; allowed: 5 or more"),
            ("--max-positions 9", "of valid are longer; allowed: 14 or more, or --truncate-"),
            ("--classifier-hidden-dim -1", "--classifier-hidden-dim is -1; allowed: 0 or more"),
            ("--encoder-attention nueral", "--encoder-attention is nueral: unknown kind"),
            ("--encoder-attention-heads 5", "--encoder-attention-heads is 5; allowed: a number"),
            ("--encoder-cluster-rule leaking-chunk", "--encoder-cluster-rule is leaking-chunk"),
            ("--task-loss-weight -1", "--task-loss-weight is -1.0; allowed: 0 or more"),
        ],
    )
    def test_option(self, options: str, message: str, text_data: Path, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="allowed") as caught:
            train(text_data, f"{CLASSIFICATION} {options}", tmp_path)
        assert message in last_line(caught.value)

    def test_relevant_label(self, pair_data: Path, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="--relevant-label is yes; allowed: 0, 1"):
            train(pair_data, f"{CLASSIFICATION} --relevant-label yes", tmp_path)

    @pytest.mark.parametrize(
        ("remove", "message"),
        [
            ("input0/dict.txt", "input0: it has no dict.txt; allowed: a folder that"),
            ("label/dict.txt", "label: it has no dict.txt; allowed: a folder that"),
            ("input1/train.bin", "input1/train.bin, "),
            ("label/valid.idx", "label/valid.bin, "),
            ("group/valid.txt", "group/valid.txt: no such file; allowed: a question's id a line"),
        ],
    )
    def test_missing_file(
        self, remove: str, message: str, pair_data: Path, tmp_path: Path
    ) -> None:
        data = shutil.copytree(pair_data, tmp_path / "data")
        (data / remove).unlink()
        with pytest.raises(FileNotFoundError) as caught:
            train(data, CLASSIFICATION, tmp_path)
        assert message in last_line(caught.value)

    def test_ragged(self, pair_data: Path, tmp_path: Path) -> None:
        data = shutil.copytree(pair_data, tmp_path / "data")
        with (data / "group" / "train.txt").open("a") as lines:
            lines.write("Q99\n")
        with pytest.raises(ValueError, match="input0 240, input1 240, label 240, group 241; all"):
            train(data, CLASSIFICATION, tmp_path)

    def test_labels(self, text_data: Path, tmp_path: Path) -> None:
        data = shutil.copytree(text_data, tmp_path / "data")
        shutil.rmtree(data / "label")
        lines = (text_data / "label.txt" / "train").read_text().split()
        lines[16], lines[30] = "unheard-of", "x y"
        splits = {"train": lines, "valid": lines[:42], "test": lines[:42]}
        shutil.rmtree(data / "label.txt")
        dictionary = text_data / "label" / "dict.txt"
        binarize(data / "label", splits, dictionary=dictionary)
        with pytest.raises(ValueError, match="line 17 is '<unk>'; allowed: one label of .*: "):
            train(data, CLASSIFICATION, tmp_path)

    def test_two_dictionaries(self, pair_data: Path, tmp_path: Path) -> None:
        data = shutil.copytree(pair_data, tmp_path / "data")
        with (data / "input1" / "dict.txt").open("a") as lines:
            lines.write("new 1\n")
        with pytest.raises(ValueError, match="input1/dict.txt differs from .*; allowed: one dict"):
            train(data, CLASSIFICATION, tmp_path)

    def test_another_architecture(self, text_data: Path, tmp_path: Path) -> None:
        line = f"{CLASSIFICATION} --arch clusterformer_masked_lm"
        with pytest.raises(
            ValueError, match="does not train it; allowed: clusterformer_classifier and"
        ):
            train(text_data, line, tmp_path)


CONFIG = REPO_ROOT / "examples" / "classification" / "config"


class TestHydra:
    def test_recipe_is_the_named_architecture(self) -> None:
        groups = yaml.safe_load((CONFIG / "mr.yaml").read_text())
        architecture = Namespace()
        ARCH_CONFIG_REGISTRY["clusterformer_classifier_base"](architecture)
        assert vars(architecture).items() <= groups["model"].items()


class TestETC:
    """ETC's encoder: from nothing, and from a dense model's weights."""

    LINE = (
        MASKED.replace("--task masked_lm", "--task clusterformer_masked_lm")
        .replace("--arch clusterformer_masked_lm", "--arch etc_masked_lm --radius 4 --block 8")
        .replace(" --attention-window 4", "")
    )

    def test_learns(self, text_data: Path, tmp_path: Path) -> None:
        run = train(text_data / "input0", f"{self.LINE} --max-update 40", tmp_path)
        losses = [run.mean_loss(number) for number in range(len(run.updates))]
        assert sum(losses[-5:]) < sum(losses[:5]) - 5 * 0.2

    def test_lifts(self, text_data: Path, tmp_path: Path) -> None:
        dense = f"{MASKED} --encoder-attention full --layernorm-embedding --max-update 1"
        train(text_data / "input0", dense, tmp_path / "dense")
        path, line = last(tmp_path / "dense"), f"{self.LINE} --max-update 1 --lr 0 --optimizer sgd"
        train(text_data / "input0", line, tmp_path / "etc", "--lift", path)
        given, now = (load_state(p)["model"] for p in (path, last(tmp_path / "etc")))
        for name in ("k_g2g", "k_l2g"):
            lifted = now[f"encoder.layers.1.self_attn.linear.{name}.weight"]
            assert torch.equal(lifted, given["encoder.layers.1.self_attn.k_proj.weight"])

    def test_what_has_no_norm_of_its_embeddings(
        self, text_data: Path, masked_lm: Path, tmp_path: Path
    ) -> None:
        with pytest.raises(ValueError, match="allowed") as caught:
            train(text_data / "input0", self.LINE, tmp_path, "--lift", masked_lm)
        message = f"--lift is {masked_lm}: it has no layernorm_embedding.weight; allowed"
        assert message in last_line(caught.value)
