"""The grids of the examples, and commands that are read to their end and not run."""

import argparse
import importlib
from unittest import mock

import pytest
from fairseq import options

import openkp  # noqa: F401  plug-ins of grids
import xlqa  # noqa: F401
from fairseq_clusterformer.cli import main as clusterformer
from tests.conftest import REPO_ROOT

GRIDS = sorted(p for p in REPO_ROOT.glob("examples/**/*.yaml") if p.parent.name != "config")
FAIRSEQ = {
    "fairseq-train": options.get_training_parser,
    "fairseq-eval-lm": options.get_eval_lm_parser,
    "fairseq-validate": options.get_validation_parser,
}


class ParsedError(Exception):
    """A command line was read to its end."""


def parse(words: list[str]) -> argparse.Namespace | None:
    """Read a command line as its program does; the test fails if it cannot."""
    if words[0] in FAIRSEQ:
        return options.parse_args_and_arch(FAIRSEQ[words[0]](), words[1:])
    read = argparse.ArgumentParser.parse_args

    def read_alone(self, *given):
        read(self, *given)
        raise ParsedError

    reading = mock.patch.object(argparse.ArgumentParser, "parse_args", read_alone)
    with reading, pytest.raises(ParsedError):
        start(words)
    return None


def start(words: list[str]) -> int | None:
    """Call the main function of a command that is not fairseq's; returns its status."""
    if words[0] == "clusterformer":
        return clusterformer.main(words[1:])
    assert words[:2] == ["python", "-m"], words
    module = importlib.import_module(words[2])
    if hasattr(module, "__path__"):
        module = importlib.import_module(f"{words[2]}.__main__")
    return module.main(words[3:])
