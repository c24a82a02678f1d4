"""Two processes, and gradient accumulation, are one process with twice the batch."""

from pathlib import Path

import pytest

from tests.cli.in_process import (
    CLUSTERFORMER,
    RESET,
    assert_equal_states,
    in_two_processes,
    load_state,
    train,
)
from tests.cli.topics import LINE as ETC
from tests.conftest import RunCli

# Batches in order, so that two of 2 are one of 4; no dropout, for its mask depends on the batch.
# A large epsilon: Adam would turn rounding of tiny gradients into steps of full size.
LINE = (
    CLUSTERFORMER.replace("--cpu --distributed-world-size 1", "--cpu")
    + " --dropout 0 --curriculum 100 --adam-eps 1e-3 --attention window+neural"
    + " --clustering-loss-weight 10 --centroid-sorting-loss-weight 10"
)
CLOSE = {"rtol": 1e-5, "atol": 2e-6}


@pytest.fixture(scope="session")
def double_batch(
    byte_data: Path, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """One process, from a checkpoint whose normaliser is no longer at its start."""
    folder = tmp_path_factory.mktemp("double")
    line = f"{LINE} {RESET} --distributed-world-size 1 --batch-size 4"
    train(byte_data, line, folder, "--restore-file", checkpoint)
    return folder / "checkpoint_last.pt"


def assert_close_to(double_batch: Path, saved: Path, started: Path) -> None:
    state, expected = load_state(saved)["model"], load_state(double_batch)["model"]
    assert_equal_states(state, expected, **CLOSE)
    # the comparison means something: all of it has moved further than that
    for name, before in load_state(started)["model"].items():
        if name.endswith((".centroids", ".w_c.weight", ".log_normalizer", ".fc1.weight")):
            assert (state[name] - before).abs().max() > 100 * CLOSE["atol"], name


def test_update_frequency(
    byte_data: Path, checkpoint: Path, double_batch: Path, tmp_path: Path
) -> None:
    line = f"{LINE} {RESET} --distributed-world-size 1 --batch-size 2 --update-freq 2"
    train(byte_data, line, tmp_path, "--restore-file", checkpoint)
    assert_close_to(double_batch, tmp_path / "checkpoint_last.pt", checkpoint)


def in_two(run_cli: RunCli, data: Path, line: str, folder: Path, **how: bool) -> Path:
    """The checkpoint that two processes end with."""
    words = [data, *line.split(), "--save-dir", folder]
    assert "done training" in in_two_processes(run_cli, "fairseq-train", *words, **how)
    return folder / "checkpoint_last.pt"


@pytest.mark.parametrize("torchrun", [True, False])
def test_two_processes(
    torchrun: bool,
    byte_data: Path,
    checkpoint: Path,
    double_batch: Path,
    tmp_path: Path,
    run_cli: RunCli,
) -> None:
    """The checkpoint is read by the first and sent to the second."""
    line = f"{LINE} {RESET} --batch-size 2 --restore-file {checkpoint}"
    saved = in_two(run_cli, byte_data, line, tmp_path, torchrun=torchrun)
    assert_close_to(double_batch, saved, checkpoint)


def test_two_processes_that_fairseq_starts(
    byte_data: Path, checkpoint: Path, double_batch: Path, tmp_path: Path, run_cli: RunCli
) -> None:
    words = f"{LINE} {RESET} --batch-size 2 --distributed-world-size 2".split()
    words += ["--save-dir", tmp_path, "--restore-file", checkpoint]
    run = run_cli("fairseq-train", byte_data, *words)
    assert run.stdout.count("done training") == 1
    assert_close_to(double_batch, tmp_path / "checkpoint_last.pt", checkpoint)


def test_two_processes_that_stop_go_on_with_the_banks_of_both(
    byte_data: Path, tmp_path: Path, run_cli: RunCli
) -> None:
    line = (
        f"{LINE} --attention kmeans --kmeans-interval 2 --kmeans-bank-size 200 --batch-size 2"
        " --max-update 5 --save-interval-updates 3 --disable-validation"
    )
    whole = in_two(run_cli, byte_data, line, tmp_path / "whole")
    line += f" --restore-file {tmp_path / 'whole' / 'checkpoint_1_3.pt'}"
    resumed = in_two(run_cli, byte_data, line, tmp_path / "resumed")
    states = [load_state(path)["model"] for path in (whole, resumed)]
    banks = [t for name, t in states[0].items() if name.endswith("_extra_state")]
    assert [[len(bank) for bank in of_layer["banks"]] for of_layer in banks] == [[100, 100]] * 2
    assert_equal_states(*states)


def test_two_processes_move_the_centroids_of_routing_heads(
    byte_data: Path, tmp_path: Path, run_cli: RunCli
) -> None:
    """From scratch: the seed is the same, and so are the first centroids."""
    line = f"{LINE} --attention routing --max-update 3"
    train(byte_data, f"{line} --distributed-world-size 1 --batch-size 4", tmp_path / "one")
    two = in_two(run_cli, byte_data, f"{line} --batch-size 2", tmp_path / "two")
    one = load_state(tmp_path / "one" / "checkpoint_last.pt")["model"]
    centroids = {name: tensor for name, tensor in one.items() if ".means." in name}
    assert len(centroids) == 4
    both = load_state(two)["model"]
    assert_equal_states({name: both[name] for name in centroids}, centroids, **CLOSE)


@pytest.mark.parametrize("hidden", ["0.1", "0"])
def test_two_processes_pre_train_etc(
    hidden: str, sentences: Path, tmp_path: Path, run_cli: RunCli
) -> None:
    """Also where only one of them has a hidden part to tell."""
    line = ETC.replace("--cpu --distributed-world-size 1", "--cpu").replace("size 4", "size 2")
    line += f" --hide-parts {hidden} --max-update 6 --disable-validation"
    saved = in_two(run_cli, sentences, line, tmp_path)
    found = load_state(saved)["model"]
    assert any(name.startswith("contrast.") for name in found) == (hidden != "0")
