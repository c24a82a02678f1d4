"""Readers of words by fairseq's commands and ours: trained, resumed, validated, asked."""

import json
import math
import random
from pathlib import Path

import pytest
import torch

from fairseq_clusterformer import load
from fairseq_clusterformer.answers import ranked_answers
from fairseq_clusterformer.cli.main import main
from fairseq_clusterformer.readers.words import spelling_code
from tests.cli.expected import assert_logged, last_line
from tests.cli.in_process import Run, assert_equal_states, load_model, load_state, train, validate
from tests.cli.qa_data import WORDS
from tests.cli.towns import BIDAF, COMMON, NAMES, vectors

TASK = "--task clusterformer_qa --valid-subset valid"
SCORES = ("em", "f1", "long_f1", "answerable_accuracy")
QANET = (
    f"{COMMON} --arch qanet_reader --encoder-embed-dim 32 --encoder-ffn-embed-dim 32"
    " --encoder-attention-heads 4 --encoder-layers 2 --convolutions 2 --attention-window 4"
    " --num-clusters 4 --kmeans-interval 2"
)
LINES = {"bidaf": BIDAF, "qanet": QANET}
BY_HEART = "--lr 0.01 --dropout 0 --batch-size 10 --validate-interval 100"


@pytest.fixture(scope="module")
def by_heart(
    qa_data: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Path, Run]]:
    """Readers that know all answers, and one that knew some after 31 updates."""
    found = {}
    for name, options in (
        ("bidaf", "--max-update 120 --save-interval-updates 31"),
        ("qanet", "--max-update 90 --stochastic-depth 0 --attention-dropout 0"),
    ):
        folder = tmp_path_factory.mktemp(name)
        found[name] = folder, train(qa_data, f"{LINES[name]} {BY_HEART} {options}", folder)
    return found


class TestTrain:
    @pytest.mark.parametrize("name", LINES)
    def test_every_type_is_learned_by_heart(self, name: str, by_heart, qa_data: Path) -> None:
        folder, run = by_heart[name]
        printed = validate(qa_data, folder / "checkpoint_last.pt", TASK, "--batch-size", 7)
        assert {name: printed[name] for name in SCORES} == dict.fromkeys(SCORES, 100)
        assert printed["nll"] < 0.1
        assert "type_loss" not in printed  # it is a part of the span's
        for update in run.updates + run.valid:
            assert update["nll"] == update["span_loss"]
            assert update["loss"] == pytest.approx(update["span_loss"] + update["long_loss"])
        assert run.mean_loss(-1) < 0.1 < 3 < run.mean_loss(0)

    def test_a_moving_average_is_kept_and_taken_out(self, qa_data: Path, tmp_path: Path) -> None:
        train(qa_data, f"{BIDAF} --max-update 3 --store-ema --ema-decay 0.5", tmp_path)
        path, out = tmp_path / "checkpoint_last.pt", tmp_path / "average.pt"
        assert main(["average", "--inputs", str(path), "--output", str(out), "--ema"]) == 0
        last, average = (load_state(p)["model"] for p in (path, out))
        moved = [n for n, t in last.items() if not torch.equal(t, average[n])]
        assert any(name.endswith("weight") for name in moved)
        assert all(last[name].is_floating_point() for name in moved)
        assert validate(qa_data, out, TASK, "--batch-size", 7)["loss"] > 0

    def test_clusters_reach_the_criterion(self, qa_data: Path, tmp_path: Path) -> None:
        line = f"{QANET} --attention window+taught,kmeans+neural --dropout 0"
        run = train(qa_data, f"{line} --max-update 15 --lr 0.01", tmp_path)
        assert_logged(run)
        for update in run.updates:
            assert update["clustered_size"] == update["sample_size"]
            assert update["routing_loss"] != 0 != update["clustering_loss"]
        first, last = (sum(log["loss"] for log in run.updates[i : i + 5]) for i in (0, 10))
        assert last < 0.9 * first

    @pytest.mark.parametrize(
        ("name", "options"),
        [
            ("bidaf", "--update-freq 2 --span-marginal apart --word-dim 0 --letter-filters 0"),
            ("bidaf", "--optimizer adadelta --lr 0.5"),
            ("qanet", "--fp16 --fp16-no-flatten-grads --fp16-init-scale 4"),
            ("qanet", "--amp --max-positions 30 --positions rotary --short-convolution 3"),
        ],
    )
    def test_option(self, name: str, options: str, qa_data: Path, tmp_path: Path) -> None:
        line = (
            LINES[name].replace("--optimizer adam", "") if "adadelta" in options else LINES[name]
        )
        run = train(qa_data, f"{line} {options}", tmp_path)
        assert len(run.updates) == 6
        for update in run.updates + run.valid:
            assert all(math.isfinite(value) for value in update.values())

    @pytest.mark.parametrize(
        ("name", "options"),
        [("bidaf", ""), ("qanet", "--attention window+taught,kmeans --stochastic-depth 0.3")],
    )
    def test_resuming_in_mid_epoch_equals_never_stopping(
        self, name: str, options: str, qa_data: Path, tmp_path: Path
    ) -> None:
        """With word vectors, which the checkpoint has: their file is gone."""
        path = vectors(tmp_path, WORDS)
        line = f"{LINES[name]} {options} --max-update 8 --save-interval-updates 3"
        whole = train(qa_data, line, tmp_path / "whole", "--word-vectors", path)
        path.unlink()
        line += f" --restore-file {tmp_path / 'whole' / 'checkpoint_1_3.pt'}"
        resumed = train(qa_data, line, tmp_path / "resumed")
        assert resumed.updates == whole.updates[3:]
        states = [
            load_state(tmp_path / run / "checkpoint_last.pt")["model"]
            for run in ("whole", "resumed")
        ]
        for state in states:
            for extra in [key for key in state if "_extra" in key]:
                state.pop(extra)
        assert_equal_states(*states)
        assert len(states[0]["encoder.embedding.vectors.codes"]) == len(WORDS)

    def test_vectors_do_not_learn(self, qa_data: Path, tmp_path: Path) -> None:
        """The first ones are taken; each word has its own."""
        path = vectors(tmp_path, WORDS)
        train(qa_data, f"{BIDAF} --max-words 7 --word-vectors {path}", tmp_path)
        path_of = tmp_path / "checkpoint_last.pt"
        path.unlink()
        model, _ = load_model(path_of, qa_data)
        table = model.encoder.embedding.vectors
        codes = torch.tensor([[[spelling_code(word)] * 2 for word in WORDS]])
        found = table(codes)[0]
        draw = random.Random(5)
        for place, row in enumerate(found):
            expected = [round(draw.gauss(0, 1), 4) for _ in range(8)]
            if place >= 7:
                expected = table.unknown.tolist()
            assert row.tolist() == pytest.approx(expected, abs=1e-6)


def test_scores_are_those_of_one_question_at_a_time(by_heart, qa_data: Path) -> None:
    (checkpoint,) = by_heart["bidaf"][0].glob("checkpoint_*_31.pt")
    printed = validate(qa_data, checkpoint, TASK, "--batch-size", 7)
    model, task = load_model(checkpoint, qa_data)
    dataset = task.load_dataset("valid")
    right, nll = 0, 0.0
    for index, example in enumerate(dataset.data):
        batch = dataset.collater([dataset[index]])
        with torch.no_grad():
            logits, _ = model(**batch["net_input"])
        (answers,) = ranked_answers(logits, [dataset.data.document(index)])
        right += (answers.type != "none") == example.answerable
        starts = torch.cat([logits.slots[0, 0], logits.start[0]]).log_softmax(0)
        ends = torch.cat([logits.slots[0, 1], logits.end[0]]).log_softmax(0)
        types = batch["target"]["types"][0].tolist()
        gold = [(place, place) for place in range(4) if types[1 + place]]
        spans = [] if gold else batch["target"]["spans"][0].tolist()
        gold += [(4 + first, 4 + last) for first, last in spans]
        both = torch.stack([starts[first] + ends[last] for first, last in gold])
        nll -= both.logsumexp(0).item()
    assert 0 < right < len(dataset)
    assert printed["answerable_accuracy"] == pytest.approx(100 * right / len(dataset))
    assert printed["nll"] == pytest.approx(nll / len(dataset), abs=6e-4)


def test_contexts_never_seen_are_read(towns_data: Path, towns_reader: Path) -> None:
    printed = validate(towns_data, towns_reader, TASK, "--batch-size", 20)
    assert printed["f1"] > 75
    assert printed["answerable_accuracy"] > 75


def test_evaluate(towns_data: Path, towns_reader: Path, tmp_path: Path, capsys) -> None:
    printed = validate(towns_data, towns_reader, TASK, "--batch-size", 20)
    line = ["--checkpoint", towns_reader, "--split", "valid", "--out", tmp_path / "out", "--cpu"]
    assert main(["evaluate", "qa", *map(str, line)]) == 0
    assert "f1" in capsys.readouterr().out
    scores = json.loads((tmp_path / "out" / "scores.json").read_text())
    assert scores["f1"] == pytest.approx(printed["f1"], abs=0.1)
    found = json.loads((tmp_path / "out" / "predictions.json").read_text())
    assert len(found) == 60
    spoken = " ".join(NAMES)
    assert all(text in spoken for text in found.values() if "rules" not in text)


@pytest.mark.parametrize("form", ["checkpoint", "bundle"])
def test_answer(form: str, towns_reader: Path, tmp_path: Path, capsys) -> None:
    """From a file, and that there is no answer in it."""
    path = towns_reader
    if form == "bundle":
        path = tmp_path / "bundle"
        assert main(["bundle", str(towns_reader), str(path), "--dtype", "float16"]) == 0
    text = "Ida Brun rules Ulm. Noor rules Bree. Mary-Ann rules Pisa."
    (tmp_path / "towns.txt").write_text(f"{text}\n")
    asked = ["--document", tmp_path / "towns.txt", "--question", "Who rules Bree?"]
    capsys.readouterr()
    assert main(["answer", "--checkpoint", str(path), *map(str, asked), "--cpu"]) == 0
    assert "Noor" in capsys.readouterr().out
    found = load(path, device="cpu")
    rankings = [found.ask(f"Who rules {town}?", found.index(text), 3) for town in ("Bree", "Orsk")]
    assert rankings[0].answers[0].text == "Noor"
    assert rankings[0].no_answer < 0.5 < rankings[1].no_answer
    assert len(found.encode(text)[0]) > len(text.split())


def test_a_bundle_may_know_other_words(towns_reader: Path, tmp_path: Path, capsys) -> None:
    """The first two of a file's words have its vectors, and no others any."""
    path, out = vectors(tmp_path, ["rules", "Ulm", "Bree"]), tmp_path / "bundle"
    command = ["bundle", towns_reader, out, "--word-vectors", path, "--max-words", 2]
    assert main([*map(str, command)]) == 0
    table = load(out, device="cpu").model.encoder.embedding.vectors
    assert table.codes.tolist() == sorted(map(spelling_code, ("rules", "Ulm")))
    first = [float(number) for number in path.read_text().splitlines()[0].split()[1:]]
    place = table.codes.tolist().index(spelling_code("rules"))
    assert table.vectors[place].tolist() == pytest.approx(first)
    path.write_text("Ulm 1 2\n")
    assert main([*map(str, [*command, "--force"])]) == 1
    assert "has 2 numbers; allowed: a word and 8 numbers" in capsys.readouterr().err


@pytest.mark.usefixtures("no_update")
class TestBadInput:
    @pytest.mark.parametrize(
        ("name", "options", "message"),
        [
            ("bidaf", "--word-dim -3", "--word-dim is -3; allowed: 0 or more"),
            ("bidaf", "--word-vectors none.txt", "--word-vectors is none.txt: no such file"),
        ],
    )
    def test_option(
        self, name: str, options: str, message: str, qa_data: Path, tmp_path: Path
    ) -> None:
        with pytest.raises(ValueError, match="allowed") as caught:
            train(qa_data, f"{LINES[name]} {options}", tmp_path)
        assert message in last_line(caught.value)

    def test_vectors_of_another_width(self, qa_data: Path, tmp_path: Path) -> None:
        path = vectors(tmp_path, WORDS, 9)
        message = f"--word-vectors is {path}: line 1 has 9 numbers; allowed: a word and 8 numbers"
        with pytest.raises(ValueError, match="allowed") as caught:
            train(qa_data, BIDAF, tmp_path / "out", "--word-vectors", path)
        assert message in last_line(caught.value)
