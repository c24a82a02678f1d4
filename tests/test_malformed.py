"""A sample of the malformed inputs of `tests.malformed`, and of the kills of `tests.kills`."""

from pathlib import Path

import pytest

from tests import kills
from tests.conftest import sampled
from tests.malformed import COMMANDS, make_inputs, one

WHOLE = pytest.mark.whole


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    make_inputs(folder)
    return folder


@pytest.mark.parametrize("number", [0, *(pytest.param(n, marks=WHOLE) for n in range(1, 4))])
def test_malformed_inputs_are_one_line(number, inputs):
    """Each command once: no traceback, no hang, no file of the user's changed."""
    count = len(COMMANDS)
    results = [one(count * number + each, inputs) for each in range(count)]
    assert all(result.is_right for result in results), results


@WHOLE
@pytest.mark.parametrize("command", COMMANDS)
def test_good_inputs_are_taken(command, inputs):
    """Else each run would test the same refusal."""
    result = one(-1, inputs, command)
    assert result.verdict == "done", result


QUICK = [line for line in kills.COMMANDS if line.startswith(("prepare lm", "average"))]


@pytest.mark.parametrize("line", sampled(kills.COMMANDS, QUICK))
def test_a_killed_command_given_again_ends_right(line, inputs, tmp_path):
    assert kills.kill(line, 2, inputs, tmp_path / "run") == []
