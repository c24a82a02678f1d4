"""What all benchmarks promise: bad values are one line, and what cannot run has its reason."""

import os

import pytest

from examples.efficiency import cf22
from fairseq_clusterformer.kernels.cpu import library
from scripts.benchmarks import attention, common, reader, training
from scripts.benchmarks.common import CheckFailed, Unavailable

BIDAF = "--user-dir examples/xlqa --arch bidaf_reader"
TRAINING = "--layers 1 --embed-dim 16 --heads 2 --ffn 16 --device cpu"


@pytest.mark.parametrize(
    ("program", "words", "message"),
    [
        (attention, "--kinds densee", "--kinds is densee; allowed: dense"),
        (attention, "--lengths 0", "--lengths is 0; allowed"),
        (cf22, "fig9", "EXPERIMENT is fig9; allowed: figures, table4, table7"),
        (training, f"{TRAINING} --heads 5", "--heads is 5; allowed: a divisor of --embed-dim, 16"),
        (training, f"{TRAINING} --attention windows", "unknown kind 'windows'; allowed: full"),
        (training, f"{TRAINING} --dtype float16", "--dtype is float16; allowed on a CPU: float32"),
        (reader, f"{BIDAF} --attention full", "--attention is full; allowed: none, for bidaf_"),
        (reader, f"{BIDAF} --clusters 9", "--clusters is 9; allowed: none, for bidaf_"),
    ],
)
def test_bad_values_are_reported_in_one_line(capsys, program, words, message):
    with pytest.raises(SystemExit) as stop:
        program.main(words.split())
    assert stop.value.code != 0
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_what_is_not_measured_has_its_reason_in_the_table():
    columns = {"model": "", "N": "", "seconds": ".1f"}
    for error, said in (
        (Unavailable("too large"), "| a | 9 | not run: too large |"),
        (CheckFailed("its output"), "| a | 9 | WRONG, not timed: its output |"),
    ):
        row = {"model": "a", "N": 9}
        with common.reason_in(row):
            raise error
        assert common.table_row(row, columns) == said
    with pytest.raises(Unavailable, match=r"would need 1.07e\+09 GiB, of which .* are free"):
        common.require_memory(2.0**60, "cpu")


def kernels_may_have_threads() -> bool:
    return os.getpid() == library.PROCESS


def test_kernels_have_their_threads_in_a_process_of_its_own():
    """It is a fork, where they would run on one thread, beside a rival with all."""
    assert common.in_own_process(kernels_may_have_threads)
