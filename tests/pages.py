"""The pages of the documentation, and the commands in them."""

import argparse
import importlib
import re
import shlex
from pathlib import Path
from unittest import mock

import pytest
from fairseq import options

from fairseq_clusterformer.cli.main import main

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])

CONFIGURATIONS = sorted(ROOT.glob("examples/*/config/*.yaml"))
PARSERS = {
    "fairseq-train": options.get_training_parser,
    "fairseq-eval-lm": options.get_eval_lm_parser,
    "fairseq-generate": options.get_generation_parser,
    "fairseq-interactive": options.get_interactive_generation_parser,
    "fairseq-validate": options.get_validation_parser,
}


def blocks(page: Path, language: str) -> list[str]:
    """The code blocks of a page in one language."""
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), flags=re.DOTALL)


def commands(page: Path) -> list[list[str]]:
    """Every command line of a page, or of a configuration's comments, as words; of pipes and of
    && each part."""
    found = []
    # of comments, the lines that are set further in
    indented = re.findall(r"^#   +(.*)$", page.read_text(), flags=re.MULTILINE)
    for block in blocks(page, "bash") if page.suffix == ".md" else ["\n".join(indented)]:
        for line in block.replace("$PWD/", "").replace("\\\n", " ").splitlines():
            words: list[str] = []
            for word in [*shlex.split(line, comments=True), "&&"]:
                if word not in ("|", "&&"):
                    words.append(word)
                    continue
                if ">" in words:
                    words = words[: words.index(">")]
                while words and re.match(r"[A-Z_]+=", words[0]):
                    del words[0]  # OMP_NUM_THREADS=1
                if words:
                    found.append(words)
                words = []
    return found


def in_the_checkout(words: list[str]) -> list[str]:
    """A command that runs elsewhere, with the checkout's folders of plug-ins and scripts."""
    ours = re.compile(r"fairseq_clusterformer$|examples/[\w/]+(\.py)?$")
    return [str(ROOT / word) if ours.match(word) else word for word in words]


class ParsedError(Exception):
    """A command line was read to its end."""


def parse(words: list[str]) -> argparse.Namespace | None:
    """Read a command line as its program does, and no more; the test fails if it cannot."""
    words = in_the_checkout(words)
    if words[0] in PARSERS:
        return options.parse_args_and_arch(PARSERS[words[0]](), words[1:])
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
        return main(words[1:])
    assert words[:2] == ["python", "-m"], words
    is_package = (ROOT / words[2].replace(".", "/")).is_dir()
    module = importlib.import_module(f"{words[2]}.__main__" if is_package else words[2])
    return module.main(words[3:])
