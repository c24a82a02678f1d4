"""The commands of clusterformer in this process."""

import pytest

from fairseq_clusterformer.cli.main import main


def run(*words: object) -> int:
    """``clusterformer WORDS``: the exit status."""
    return main([str(word) for word in words])


def error(capsys: pytest.CaptureFixture, *words: object) -> str:
    """The one line that a refused command prints."""
    capsys.readouterr()
    assert run(*words) == 1
    out, err = capsys.readouterr()
    assert not out
    (line,) = err.splitlines()
    assert line.startswith("clusterformer ")
    assert "; allowed: " in line
    return line


def usage_error(capsys: pytest.CaptureFixture, *words: object) -> str:
    """The one line of a command line that cannot be read."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        run(*words)
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "allowed" in line
    return line
