"""Two processes, and gradient accumulation, are one process with twice the batch."""

from pathlib import Path

import pytest

from tests.cli.in_process import (
    CLASSIFICATION,
    QUESTIONS,
    RESET,
    assert_equal_states,
    in_two_processes,
    load_state,
    train,
    validate,
)
from tests.cli.tasks import TASKS, last
from tests.conftest import RunCli

# Batches in order, so that two of 2 are one of 4; no dropout, for its mask depends on the batch.
# A large epsilon: Adam would turn rounding of tiny gradients into steps of full size. Neighbours
# of parallel text have the same length.
SAME = " --dropout 0 --curriculum 100 --adam-eps 1e-3"
LOSSES = " --clustering-loss-weight 10 --centroid-sorting-loss-weight 10"


def line_of(task: str) -> str:
    line = TASKS[task][1].replace("--cpu --distributed-world-size 1", "--cpu")
    return line.replace("--max-tokens 400", "").replace("--batch-size 4", "") + SAME


LM = f"{line_of('lm')} --attention window+neural{LOSSES}"
WHOLE = pytest.mark.whole
CLOSE = {"rtol": 1e-5, "atol": 2e-6}


@pytest.fixture(scope="module")
def double_batch(byte_data, checkpoint, tmp_path_factory) -> Path:
    """Where one process goes on with batches of 4, from a checkpoint whose normaliser is no longer
    at its start."""
    folder = tmp_path_factory.mktemp("double")
    line = f"{LM} {RESET} --distributed-world-size 1 --batch-size 4"
    train(byte_data, line, folder, "--restore-file", checkpoint)
    return last(folder)


def assert_close_to(expected: Path, started: Path, saved: Path) -> None:
    state = load_state(saved)["model"]
    assert_equal_states(state, load_state(expected)["model"], **CLOSE)
    # the comparison means something: all of it has moved further than that
    for name, before in load_state(started)["model"].items():
        if name.endswith((".centroids", ".w_c.weight", ".log_normalizer", ".fc1.weight")):
            assert (state[name] - before).abs().max() > 100 * CLOSE["atol"], name


def test_update_frequency(double_batch, byte_data, checkpoint, tmp_path):
    line = f"{LM} {RESET} --distributed-world-size 1 --batch-size 2 --update-freq 2"
    train(byte_data, line, tmp_path, "--restore-file", checkpoint)
    assert_close_to(double_batch, checkpoint, last(tmp_path))


def in_two(run_cli: RunCli, data: Path, line: str, folder: Path, **how: bool) -> Path:
    """The checkpoint that two processes end with."""
    words = [data, *line.split(), "--save-dir", folder]
    assert "done training" in in_two_processes(run_cli, "fairseq-train", *words, **how)
    return last(folder)


@pytest.mark.parametrize("torchrun", [True, pytest.param(False, marks=WHOLE)])
def test_two_processes(torchrun, double_batch, byte_data, checkpoint, tmp_path, run_cli):
    """The checkpoint is read by the first and sent to the second."""
    line = f"{LM} {RESET} --batch-size 2 --restore-file {checkpoint}"
    saved = in_two(run_cli, byte_data, line, tmp_path, torchrun=torchrun)
    assert_close_to(double_batch, checkpoint, saved)


@WHOLE
def test_two_processes_that_fairseq_starts(double_batch, byte_data, checkpoint, tmp_path, run_cli):
    words = f"{LM} {RESET} --batch-size 2 --distributed-world-size 2".split()
    words += ["--save-dir", tmp_path, "--restore-file", checkpoint]
    assert run_cli("fairseq-train", byte_data, *words).stdout.count("done training") == 1
    assert_close_to(double_batch, checkpoint, last(tmp_path))


@WHOLE
def test_two_processes_that_stop_go_on_with_the_banks_of_both(byte_data, tmp_path, run_cli):
    line = (
        f"{LM} --attention kmeans --kmeans-interval 2 --kmeans-bank-size 200 --batch-size 2"
        " --max-update 5 --save-interval-updates 3 --disable-validation"
    )
    whole = in_two(run_cli, byte_data, line, tmp_path / "whole")
    line += f" --restore-file {tmp_path / 'whole' / 'checkpoint_1_3.pt'}"
    resumed = in_two(run_cli, byte_data, line, tmp_path / "resumed")
    states = [load_state(path)["model"] for path in (whole, resumed)]
    banks = [t for name, t in states[0].items() if name.endswith("_extra_state")]
    assert [[len(bank) for bank in of_layer["banks"]] for of_layer in banks] == [[100, 100]] * 2
    assert_equal_states(*states)


@WHOLE
@pytest.mark.parametrize(
    ("task", "options"),
    [
        ("lm", f"--attention routing --max-update 3{LOSSES}"),
        # hidden parts are told from those of one worker, so none is hidden
        ("etc", "--hide-parts 0 --max-update 6 --max-epoch 1"),
    ],
)
def test_two_processes_from_scratch(task, options, request, tmp_path, run_cli):
    """The seed is the same, and so are the first centroids of routing heads, which move alike."""
    data = request.getfixturevalue(TASKS[task][0])
    line = f"{line_of(task)} {options}"
    train(data, f"{line} --distributed-world-size 1 --batch-size 4", tmp_path / "one")
    two = in_two(run_cli, data, f"{line} --batch-size 2", tmp_path / "two")
    one, both = (load_state(path)["model"] for path in (last(tmp_path / "one"), two))
    if task == "lm":
        one, both = ({n: t for n, t in of.items() if ".means." in n} for of in (one, both))
        assert len(one) == 4
    assert_equal_states(both, one, **CLOSE)


@WHOLE
@pytest.mark.parametrize("hidden", ["0.1", "0"])
def test_two_processes_pre_train_etc(hidden, sentences, tmp_path, run_cli):
    """Also where only one of them has a hidden part to tell."""
    line = TASKS["etc"][1].replace("--cpu --distributed-world-size 1", "--cpu")
    line = line.replace("size 4", "size 2")
    line += f" --hide-parts {hidden} --max-update 6 --disable-validation"
    found = load_state(in_two(run_cli, sentences, line, tmp_path))["model"]
    assert any(name.startswith("contrast.") for name in found) == (hidden != "0")


@WHOLE
def test_two_processes_rank_as_one(pair_data, ranker, tmp_path, run_cli):
    """A question's candidates lie on both."""
    line = CLASSIFICATION.replace("--distributed-world-size 1", "")
    line += " --pair-form siamese --batch-size 5 --lr 0 --max-update 1"
    line += " --best-checkpoint-metric map --maximize-best-checkpoint-metric"
    saved = in_two(run_cli, pair_data, f"{line} --finetune-from-model {ranker}", tmp_path)
    printed = validate(
        pair_data, ranker, "--task clusterformer_sentence --valid-subset valid --batch-size 42"
    )
    assert load_state(saved)["extra_state"]["best"] == printed["map"]


@WHOLE
def test_two_processes_score_as_one(qa_data, qa_reader, tmp_path, run_cli):
    """Five batches for two: at last one has none."""
    line = QUESTIONS.replace("--distributed-world-size 1", "")
    line += " --lr 0 --kmeans-interval 99 --max-update 1"
    line += " --best-checkpoint-metric f1 --maximize-best-checkpoint-metric"
    words = [qa_data, *line.split(), "--finetune-from-model", qa_reader, "--save-dir", tmp_path]
    said = in_two_processes(run_cli, "fairseq-train", *words)
    printed = validate(
        qa_data, qa_reader, "--task clusterformer_qa --valid-subset valid --batch-size 20"
    )
    assert load_state(last(tmp_path))["extra_state"]["best"] == printed["f1"]
    (line,) = [line for line in said.splitlines() if "valid on 'valid'" in line]
    assert f"| long_f1 {printed['long_f1']:g} |" in line
