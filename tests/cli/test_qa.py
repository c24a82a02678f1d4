"""Question answering by fairseq's commands: trained, resumed, validated."""

import math
import shutil
from pathlib import Path

import pytest
import torch

from fairseq_clusterformer.answers import TYPES
from fairseq_clusterformer.data.qa import QAData
from fairseq_clusterformer.metrics.answers import exact_match, f1
from tests.cli.expected import assert_logged, last_line
from tests.cli.in_process import (
    HERE,
    QUESTIONS,
    Run,
    assert_equal_states,
    in_two_processes,
    load_model,
    load_state,
    train,
    validate,
)
from tests.conftest import RunCli

BY_HEART = "--max-update 100 --lr 0.006 --dropout 0 --attention-dropout 0 --validate-interval 20"
BEST = "--best-checkpoint-metric f1 --maximize-best-checkpoint-metric"
TASK = "--task clusterformer_qa --valid-subset valid"
SCORES = ("em", "f1", "long_f1", "answerable_accuracy")


def last(folder: Path) -> Path:
    return folder / "checkpoint_last.pt"


@pytest.fixture(scope="session")
def learned(qa_data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Run]:
    folder = tmp_path_factory.mktemp("learned")
    run = train(qa_data, f"{QUESTIONS} {BY_HEART} {BEST} --no-epoch-checkpoints", folder)
    return folder / "checkpoint_best.pt", run


@pytest.fixture(scope="session")
def reader(qa_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """After too few updates to be sure of anything."""
    folder = tmp_path_factory.mktemp("reader")
    train(qa_data, f"{QUESTIONS} {BY_HEART} {BEST} --max-update 50 --batch-size-valid 3", folder)
    return last(folder)


class TestTrain:
    def test_every_type_is_learned_by_heart(self, learned: tuple[Path, Run], qa_data: Path):
        checkpoint, run = learned
        printed = validate(qa_data, checkpoint, TASK, "--batch-size", 7)
        assert {name: printed[name] for name in SCORES} == dict.fromkeys(SCORES, 100)
        assert_logged(run)
        for update in run.updates + run.valid:
            assert update["clustered_size"] == update["sample_size"]
            parts = sum(update[f"{part}_loss"] for part in ("span", "long", "type"))
            assert update["loss"] == pytest.approx(parts)
        assert run.mean_loss(-1) < 0.1 < 3 < run.mean_loss(0)

    @pytest.mark.parametrize(
        "options",
        [
            "--update-freq 2 --checkpoint-activations --dropout 0.2",
            "--max-tokens 200 --batch-size 100 --no-shuffle --num-workers 2 --max-positions 0"
            " --max-positions-inference 2000000000 --max-answer-length 5",
            "--fp16 --fp16-no-flatten-grads --fp16-init-scale 4",
            "--amp --span-marginal apart",
        ],
    )
    def test_option(self, options: str, qa_data: Path, tmp_path: Path) -> None:
        run = train(qa_data, f"{QUESTIONS} {options}", tmp_path)
        assert len(run.updates) == 6
        for update in run.updates + run.valid:
            assert all(math.isfinite(value) for value in update.values())

    def test_gradient_accumulation_is_a_larger_batch(self, qa_data: Path, tmp_path: Path) -> None:
        """All of the questions in one update, or in five batches."""
        line = f"{QUESTIONS} --dropout 0 --attention-dropout 0 --adam-eps 1e-3 --max-update 2"
        for name, more in (("one", "--batch-size 20"), ("five", "--update-freq 5")):
            train(qa_data, f"{line} --kmeans-interval 9 {more}", tmp_path / name)
        one, five = (load_state(last(tmp_path / name))["model"] for name in ("one", "five"))
        names = [name for name in one if not name.endswith("_extra_state")]  # other order
        state, expected = ({n: of[n] for n in names} for of in (five, one))
        assert_equal_states(state, expected, rtol=1e-4, atol=2e-6)

    def test_centroids_are_found_every_so_many_updates(
        self, qa_data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """And move by nothing else: with a step of 0, the states are always the same."""
        line = f"{QUESTIONS} --lr 0 --dropout 0 --attention-dropout 0 --save-interval-updates 1"
        with caplog.at_level("INFO", "fairseq_clusterformer"):
            train(qa_data, f"{line} --kmeans-interval 4 --batch-size 2", tmp_path)
        states = [load_state(tmp_path / f"checkpoint_1_{n}.pt") for n in range(1, 7)]
        (name,) = (n for n in states[0]["model"] if n.endswith("clustering.centroids"))
        centroids = [state["model"][name] for state in states]
        moved = [not torch.equal(a, b) for a, b in zip(centroids, centroids[1:], strict=False)]
        assert moved == [False, False, False, True, False]
        assert sum("K-Means of" in record.getMessage() for record in caplog.records) == 1

    def test_resuming_in_mid_epoch_equals_never_stopping(
        self, qa_data: Path, tmp_path: Path
    ) -> None:
        line = f"{QUESTIONS} {BEST} --kmeans-interval 2 --max-update 12"
        whole = train(qa_data, line, tmp_path / "whole", "--save-interval-updates", 3)
        line += f" --restore-file {tmp_path / 'whole' / 'checkpoint_1_3.pt'}"
        resumed = train(qa_data, line, tmp_path / "resumed")
        assert resumed.updates == whole.updates[3:]
        states = [load_state(last(tmp_path / run)) for run in ("whole", "resumed")]
        extra = [
            {name: state["model"].pop(name) for name in list(state["model"]) if "_extra" in name}
            for state in states
        ]
        assert_equal_states(states[0]["model"], states[1]["model"])
        (banks,), (others,) = (of.values() for of in extra)
        assert torch.equal(banks["banks"][0], others["banks"][0])
        assert (banks["age"], banks["epoch"]) == (others["age"], others["epoch"])
        assert states[0]["extra_state"]["best"] == states[1]["extra_state"]["best"]

    def test_what_is_cut_is_told(
        self, qa_data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        data = QAData(qa_data, "train")
        longer = [i for i, size in enumerate(data.sizes) if size > 30]
        lost = sum(
            bool(
                (len(data[i].answers) and data[i].answers.min(0).values[1] > 30)
                or (
                    len(data[i].long_answers)
                    and data[i].paragraph_starts[data[i].long_answers].min() >= 30
                )
            )
            for i in longer
        )
        assert lost > 1
        line = f"{QUESTIONS} --max-positions 30 --max-positions-inference 45"
        with caplog.at_level("INFO", "fairseq_clusterformer"):
            run = train(qa_data, f"{line} --max-question-positions 5", tmp_path)
        told = [record.getMessage() for record in caplog.records]
        assert (
            f"train: {len(longer)} of 20 documents are cut to 30 tokens (--max-positions), where "
            f"{lost} questions lose their answers"
        ) in told
        longer = sum(size > 45 for size in data.sizes)
        assert any(
            line.startswith(f"valid: {longer} of 20 documents are cut to 45 tokens (--max-pos")
            for line in told
        )
        assert "train: 20 of 20 questions are cut to 5 tokens (--max-question-positions)" in told
        assert max(update["ntokens"] for update in run.updates) <= 4 * 30
        # all questions are scored, those whose answers are lost as well
        assert sum(log["scored"] for log in run.valid[-5:]) == 20


class TestValidate:
    def scores(self, checkpoint: Path, folder: Path, **options: int) -> dict[str, float]:
        """One question at a time, every span in a loop."""
        model, task = load_model(checkpoint, folder, **options)
        dataset = task.load_dataset("valid")
        data = dataset.data
        sums = dict.fromkeys(("em", "f1", "answerable_accuracy"), 0.0)
        right = found = gold = 0
        for index, example in enumerate(data):
            inputs = dataset.collater([dataset[index]])["net_input"]
            with torch.no_grad():
                logits, _ = model(**inputs)
            start, end, paragraph, types = (x[0].tolist() for x in logits)
            likeliest = TYPES[types.index(max(types))]
            spans = [
                (start[i] + end[j], i, j + 1)
                for i in range(len(start))
                for j in range(i, min(i + 30, len(end)))
                if start[i] + end[j] > -math.inf
                and not any(i < head <= j for head in example.paragraph_starts)
            ]
            document = data.document(index)
            text = document.answer(*max(spans)[1:]).text if likeliest == "short" else likeliest
            text = "" if likeliest in ("long", "none") else text
            texts = data.texts(index)["texts"] or [""]
            sums["em"] += max(exact_match(text, of) for of in texts)
            sums["f1"] += max(f1(text, of) if of else float(not text) for of in texts)
            sums["answerable_accuracy"] += (likeliest != "none") == example.answerable
            long = example.paragraph_starts.tolist().index(paragraph.index(max(paragraph)))
            gold += len(example.long_answers) > 0
            found += likeliest != "none"
            right += likeliest != "none" and long in example.long_answers.tolist()
        precision, recall = right / found, right / gold
        means = {name: 100 * value / len(data) for name, value in sums.items()}
        return means | {"long_f1": 100 * 2 * precision * recall / (precision + recall)}

    @pytest.mark.parametrize("batch_size", [1, 7])
    def test_scores(self, batch_size: int, qa_data: Path, reader: Path) -> None:
        printed = validate(qa_data, reader, TASK, "--batch-size", batch_size)
        expected = self.scores(reader, qa_data)
        assert all(5 < value < 95 for value in expected.values())
        found = {name: printed[name] for name in SCORES}
        assert found == pytest.approx(expected, abs=0.0051)

    def test_best_checkpoint(self, qa_data: Path, reader: Path) -> None:
        """What training compares checkpoints by is what fairseq-validate prints."""
        best = load_state(reader.with_name("checkpoint_best.pt"))["extra_state"]["best"]
        path = reader.with_name("checkpoint_best.pt")
        assert validate(qa_data, path, TASK, "--batch-size", 3)["f1"] == best

    def test_answers_that_are_kept_secret(self, qa_data: Path, reader: Path) -> None:
        printed = validate(qa_data, reader, f"{TASK} --valid-subset test", "--batch-size", 6)
        assert not printed.keys() & {*SCORES, "span_loss", "type_loss"}

    def test_documents_that_are_cut(self, qa_data: Path, learned: tuple[Path, Run]) -> None:
        """By a reader that holds some questions for unanswerable."""
        expected = self.scores(learned[0], qa_data, max_positions_inference=20)
        assert all(5 < expected[name] < 95 for name in ("em", "f1", "long_f1"))
        line = f"{TASK} --max-positions-inference 20"
        printed = validate(qa_data, learned[0], line, "--batch-size", 6)
        found = {name: printed[name] for name in SCORES}
        assert found == pytest.approx(expected, abs=0.0051)

    def test_half_precision(self, qa_data: Path, learned: tuple[Path, Run]) -> None:
        printed = validate(qa_data, learned[0], f"{TASK} --fp16", "--batch-size", 6)
        assert printed["f1"] > 90


def test_two_processes_score_as_one(
    qa_data: Path, reader: Path, tmp_path: Path, run_cli: RunCli
) -> None:
    """Five batches for two: at last one has none."""
    line = QUESTIONS.replace("--distributed-world-size 1", "")
    line += (
        f" --lr 0 --kmeans-interval 99 --max-update 1 {BEST}"
        f" --finetune-from-model {reader} --save-dir {tmp_path}"
    )
    said = in_two_processes(run_cli, "fairseq-train", qa_data, *line.split())
    best = load_state(last(tmp_path))["extra_state"]["best"]
    printed = validate(qa_data, reader, TASK, "--batch-size", 20)
    assert best == printed["f1"]
    (line,) = [line for line in said.splitlines() if "valid on 'valid'" in line]
    assert f"| long_f1 {printed['long_f1']:g} |" in line


@pytest.mark.usefixtures("no_update")
class TestBadInput:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ("--max-positions 1", "--max-positions is 1; allowed: 2 or more, or 0 for documents"),
            ("--max-positions-inference -1", "--max-positions-inference is -1; allowed: 0 or"),
            ("--max-question-positions 2", "--max-question-positions is 2; allowed: 3 or more"),
            (
                "--max-question-positions 17",
                "--max-question-positions is 17; allowed: up to 16, which is --window-positions",
            ),
            ("--max-answer-length 0", "--max-answer-length is 0; allowed: 1 or more"),
            ("--span-marginal both", "--span-marginal is both; allowed: joint, apart"),
            (
                "--cluster-attention dense",
                "--cluster-attention is dense: unknown kind 'dense'; allowed: full",
            ),
            ("--clustering-loss-weight -1", "--clustering-loss-weight is -1.0; allowed: 0 or"),
            (
                "--criterion cross_entropy",
                "--task is clusterformer_qa, and --criterion cross_entropy; allowed: "
                "clusterformer_qa",
            ),
        ],
    )
    def test_option(self, options: str, message: str, qa_data: Path, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="allowed") as caught:
            train(qa_data, f"{QUESTIONS} {options}", tmp_path)
        assert message in last_line(caught.value)

    @pytest.mark.parametrize("name", ["dict.txt", "valid.document.bin", "train.jsonl"])
    def test_missing_file(self, name: str, qa_data: Path, tmp_path: Path) -> None:
        data = shutil.copytree(qa_data, tmp_path / "data")
        (data / name).unlink()
        with pytest.raises(FileNotFoundError) as caught:
            train(data, QUESTIONS, tmp_path)
        message = last_line(caught.value)
        assert "allowed: a folder that `clusterformer prepare qa` made" in message

    def test_another_dictionary(self, qa_data: Path, reader: Path, tmp_path: Path) -> None:
        data = shutil.copytree(qa_data, tmp_path / "data")
        lines = (data / "dict.txt").read_text().splitlines()
        (data / "dict.txt").write_text("\n".join(lines[::-1]) + "\n")
        with pytest.raises(ValueError, match="it was trained with another dictionary"):
            validate(data, reader, TASK, "--batch-size", 4)
        with pytest.raises(ValueError, match="another dictionary") as caught:
            train(data, f"{QUESTIONS} --finetune-from-model {reader}", tmp_path)
        assert f"--finetune-from-model is {reader}: " in last_line(caught.value)

    def test_another_architecture(self, qa_data: Path, tmp_path: Path) -> None:
        line = "--task clusterformer_qa --arch clusterformer_masked_lm --max-update 1"
        with pytest.raises(ValueError, match="allowed") as caught:
            train(qa_data, f"{line} --criterion clusterformer_qa --batch-size 4 {HERE}", tmp_path)
        known = (
            "bidaf_reader, clusterformer_reader, etc_reader, qanet_reader and their named sizes"
        )
        message = "--arch is clusterformer_masked_lm: --task clusterformer_qa does not train it; "
        assert f"{message}allowed: {known}" in last_line(caught.value)

    def test_another_task(self, byte_data: Path, tmp_path: Path) -> None:
        line = QUESTIONS.replace("--task clusterformer_qa", "--task masked_lm")
        line = line.replace("--max-question-positions 16", "--tokens-per-sample 16")
        with pytest.raises(ValueError, match="allowed") as caught:
            train(byte_data, line, tmp_path)
        message = "--criterion is clusterformer_qa, and --task masked_lm; allowed: clusterform"
        assert message in last_line(caught.value)
