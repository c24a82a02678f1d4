"""A few kills; ``python -m tests.kills`` makes as many as wanted."""

from tests.kills import COMMANDS, kill

#: of which a run takes little
QUICK = ["prepare lm", "average"]


def test_a_killed_command_given_again_ends_right(tmp_path):
    assert set(QUICK) < set(COMMANDS)
    assert kill(QUICK, 6, 1, tmp_path) == []
