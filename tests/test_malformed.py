"""A sample of the malformed inputs of `tests.malformed`."""

from pathlib import Path

import pytest

from tests.malformed import COMMANDS, make_inputs, runs

OF_FAIRSEQ = next(n for n, command in enumerate(COMMANDS) if command.startswith("fairseq-train"))


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    make_inputs(folder)
    return folder


@pytest.mark.parametrize("number", range(4))
def test_malformed_inputs_are_one_line(number: int, inputs: Path) -> None:
    """Each command once: no traceback, no hang, no file of the user's changed. What fairseq-train
    prints above its last line is fairseq's."""
    count = len(COMMANDS)
    wrong = [
        result
        for result in runs(count * number, count, inputs)
        if not result.is_right
        and not (result.number % count == OF_FAIRSEQ and "; allowed: " in result.said)
    ]
    assert not wrong, wrong
