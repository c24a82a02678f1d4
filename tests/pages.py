"""The pages of the documentation, and the commands in them."""

import argparse
import re
import shlex
from pathlib import Path

from fairseq import options

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
    for block in blocks(page, "bash") if page.suffix == ".md" else _in_comments(page):
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


def _in_comments(page: Path) -> list[str]:
    """The lines of a configuration's comments that are set further in."""
    lines = re.findall(r"^#   +(.*)$", page.read_text(), flags=re.MULTILINE)
    return ["\n".join(lines)]


def overrides(page: Path) -> list[str]:
    """SECTION.KEY=VALUE, wherever a page or a configuration's comments name it."""
    text = page.read_text()
    if page.suffix != ".md":
        text = "\n".join(re.findall(r"^#(.*)$", text, flags=re.MULTILINE))
    sections = "common|task|model|criterion|optimization|optimizer|dataset|checkpoint"
    sections += "|lr_scheduler|distributed_training"
    return re.findall(rf"\+?\b(?:{sections})\.\w+=[^\s`,;]+", text)


def recipe(save_dir: str) -> list[str]:
    """The fairseq-train command of all pages that saves there."""
    found = [
        words
        for page in PAGES
        for words in commands(page)
        if words[0] == "fairseq-train" and save_dir in words
    ]
    assert found, save_dir
    assert all(words == found[0] for words in found), f"{save_dir}: two recipes differ"
    return found[0]


def in_the_checkout(words: list[str]) -> list[str]:
    """A command that runs elsewhere, with the checkout's folders of plug-ins and scripts."""
    ours = re.compile(r"fairseq_clusterformer$|examples/[\w/]+(\.py)?$")
    return [str(ROOT / word) if ours.match(word) else word for word in words]


def parse_fairseq(words: list[str]) -> argparse.Namespace:
    words = in_the_checkout(words)
    return options.parse_args_and_arch(PARSERS[words[0]](), words[1:])
