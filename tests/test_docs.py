"""The documentation tells the truth: commands parse, links lead somewhere, pages are current."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from unittest import mock

import torch
from fairseq.models import ARCH_MODEL_REGISTRY

import fairseq_clusterformer.plugin  # noqa: F401
import xlqa  # noqa: F401  the plug-in of a page's commands
from docs import generate as docs
from fairseq_clusterformer.attention import MultiheadAttention
from fairseq_clusterformer.attention import options as kinds
from fairseq_clusterformer.cli.main import COMMANDS
from tests.kinds import by_steps
from tests.pages import PAGES, PARSERS, ROOT, blocks, commands, parse

EXTENDING = ROOT / "docs" / "extending.md"


def anchors(page: Path) -> set[str]:
    """The names of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_links_and_placeholders():
    left = r"\$HERE|\b(LM|MR|SQUAD|PICTURE|OPTIONS)_[A-Z]+|^[A-Z_]{4,}$"
    for page in PAGES:
        text = page.read_text()
        assert not re.search(left, text, flags=re.MULTILINE), page
        for link in re.findall(r"\]\(([^)\s]+)\)", text):
            if not link.startswith("https://"):
                path, _, anchor = link.partition("#")
                target = page.parent / path if path else page
                assert target.exists(), (page, link)
                assert not anchor or anchor in anchors(target), (page, link)


def test_generated_pages_are_current():
    for page in docs.OPTIONS:
        assert docs.options(page.read_text()) == page.read_text(), "python docs/generate.py"


def test_commands_parse():
    """Each names files that are there and options that its program has; each command is named."""
    seen = set()
    for words in (words for page in PAGES for words in commands(page)):
        for word in words:
            if re.fullmatch(r"scripts/.*|examples/.*\.(yaml|py)", word):
                assert (ROOT / word).is_file(), words
        if "--config-name" in words:
            folder = ROOT / words[words.index("--config-dir") + 1]
            assert (folder / f"{words[words.index('--config-name') + 1]}.yaml").is_file(), words
        elif words[0] in PARSERS and getattr(args := parse(words), "arch", None):
            model = ARCH_MODEL_REGISTRY[args.arch].__module__
            assert model.startswith(("fairseq_clusterformer.", "xlqa.", "openkp.")), words
        elif (
            words[:2] == ["python", "-m"] or words[0] == "clusterformer" and "--help" not in words
        ):
            parse(words)
        seen.add(" ".join(words))
    for name in COMMANDS:
        assert any(line.startswith(f"clusterformer {name} ") for line in seen), name


@contextlib.contextmanager
def plugin(text: str) -> Iterator[ModuleType]:
    """The block of docs/extending.md with this text, whose kind is registered meanwhile."""
    block = next(b for b in blocks(EXTENDING, "python") if text in b)
    module = ModuleType("my_plugin")  # where a dataclass looks for what its fields' types mean
    with (
        mock.patch.dict(kinds._KINDS),
        mock.patch.dict("sys.modules", my_plugin=module),
    ):
        exec(compile(block, "extending.md", "exec"), vars(module))
        yield module


@torch.no_grad()
def test_a_kind_with_a_store_of_its_own():
    """It keeps three keys of each head; steps, portions and reordered rows are the whole."""
    with plugin("class Heavy(Kind)"):
        layer = MultiheadAttention(8, 2, kinds="heavy(3)", causal=True).double().eval()
    x, rows = torch.randn(3, 20, 8, dtype=torch.float64), torch.tensor([2, 0, 0])
    steps, past = by_steps(layer, x, order_at=(12, rows), portions=(4, 1, 7))
    torch.testing.assert_close(steps, layer(x[rows])[0], rtol=0, atol=1e-10)
    assert past.kinds[0].others[0].keys.shape == (3, 2, 3, 4)


def test_attention_without_fairseq():
    block = next(b for b in blocks(EXTENDING, "python") if "layer(x)" in b)
    names = {"x": torch.randn(1, 50, 512)}
    exec(compile(block, "extending.md", "exec"), names)
    assert names["y"].shape == names["x"].shape
