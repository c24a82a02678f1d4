"""Runs the command as users do, in this process; reads what it prepared."""

import json
from pathlib import Path

from fairseq_clusterformer.cli.main import main


def run(*words: object) -> int:
    """Run ``clusterformer WORDS``; a word may be several, between blanks, if it is a string.

    Returns:
        the exit status.
    """
    try:
        return main(
            [w for word in words for w in (word.split() if type(word) is str else [str(word)])]
        )
    except SystemExit as error:
        return error.code


def record_of(dest: Path) -> dict:
    return json.loads((dest / "prepared.json").read_text())
