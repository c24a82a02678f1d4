"""The documentation tells the truth: commands parse, links lead somewhere, pages are current."""

import argparse
import contextlib
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from unittest import mock

import pytest
import torch
import yaml
from fairseq.models import (
    ARCH_MODEL_NAME_REGISTRY,
    ARCH_MODEL_REGISTRY,
    MODEL_DATACLASS_REGISTRY,
)

import fairseq_clusterformer.plugin  # noqa: F401
from docs import generate as docs
from fairseq_clusterformer.attention import (
    Batch,
    MultiheadAttention,
    attention_kinds,
    parse_layer,
)
from fairseq_clusterformer.attention import options as kinds
from fairseq_clusterformer.attention.heads import Convolved
from fairseq_clusterformer.attention.inspect import tokens_seen
from fairseq_clusterformer.cli.main import COMMANDS
from tests.kinds import by_steps, pads
from tests.pages import (
    PAGES,
    PARSERS,
    ROOT,
    blocks,
    commands,
    parse_fairseq,
    recipe,
)

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


def test_paths_in_commands_exist():
    """Scripts, grids and configurations; what a command makes lies elsewhere."""
    seen = 0
    for words in (words for page in PAGES for words in commands(page)):
        for word in words:
            if word.startswith("scripts/") or re.fullmatch(r"examples/.*\.(yaml|py)", word):
                assert (ROOT / word).is_file(), words
                seen += 1
        if "--config-name" in words:
            folder = ROOT / words[words.index("--config-dir") + 1]
            assert (folder / f"{words[words.index('--config-name') + 1]}.yaml").is_file(), words
            seen += 1
    assert seen > 8


def test_fairseq_commands_parse():
    seen = 0
    for page in PAGES:
        for words in commands(page):
            if words[0] in PARSERS:
                args = parse_fairseq(words)  # exits on an unknown option
                if getattr(args, "arch", None):
                    model = ARCH_MODEL_REGISTRY[args.arch].__module__
                    assert model.startswith(("fairseq_clusterformer.", "xlqa.", "openkp.")), words
                seen += 1
    assert seen > 8


def parser_of(name: str, words: tuple[str, ...] = ()) -> argparse.ArgumentParser:
    """The parser of `python -m NAME WORDS`, caught when it is about to print its help."""
    for module in (name, f"{name}.__main__"):
        main = getattr(importlib.import_module(module), "main", None)
        if main is not None:
            break
    caught: list[argparse.ArgumentParser] = []
    with (
        mock.patch.object(
            argparse.ArgumentParser, "print_help", lambda p, file=None: caught.append(p)
        ),
        mock.patch("sys.argv", [name, "--help"]),
        contextlib.suppress(SystemExit),
    ):
        try:
            main([*words, "--help"])
        except TypeError:  # takes sys.argv
            main()
    return caught[0]


def test_our_commands_parse():
    parsers: dict[str, argparse.ArgumentParser] = {}
    for page in PAGES:
        for words in commands(page):
            if words[0] == "clusterformer":
                name = next(
                    (n for n in COMMANDS if words[1:][: len(n.split())] == n.split()), None
                )
                assert name or "--help" in words, words
                if name is None:
                    continue
                rest = words[1 + len(name.split()) :]
                module, own = "fairseq_clusterformer.cli.main", tuple(name.split())
            elif words[:2] == ["python", "-m"]:
                name, rest = words[2], words[3:]
                module, own = name, ()
            else:
                continue
            if name not in parsers:
                parsers[name] = parser_of(module, own)
            try:
                parsers[name].parse_args(rest)
            except SystemExit:
                pytest.fail(f"{page.relative_to(ROOT)}: {' '.join(words)}")
    assert set(COMMANDS) <= set(parsers), set(COMMANDS) - set(parsers)


def test_recipe_and_configuration_are_equal():
    """What a configuration says, the command of the page says too."""
    args = vars(parse_fairseq(recipe("checkpoints/my-texts")))
    config = yaml.safe_load((ROOT / "examples/language_model/config/bytes.yaml").read_text())
    names = {"model": "arch", "lr_scheduler": "lr_scheduler", "optimizer": "optimizer"}
    # an option of the model that is left open has its dataclass's value
    defaults = vars(MODEL_DATACLASS_REGISTRY[config["model"]["_name"]]())
    differ = {}
    for section, values in config.items():
        if section in ("hydra", "common"):
            continue
        for option, value in values.items():
            if option == "_name":
                given = args[names.get(section, section)]
                given = ARCH_MODEL_NAME_REGISTRY.get(given, given)
            elif option in ("data", "save_dir", "update_freq"):
                continue  # each user's own; by the number of GPUs
            else:
                given = args.get(option, defaults.get(option))
            if plain(given) != plain(value):
                differ[f"{section}.{option}"] = (given, value)
    assert not differ


def plain(value: object) -> object:
    """A value, however it was written."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    try:
        return float(value)
    except (TypeError, ValueError):
        return str(getattr(value, "value", value)).replace(" ", "")


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
def test_a_kind_in_one_file():
    """What it sees; tests/cli/test_train.py holds it to what every kind promises."""
    with plugin("def signs") as module:
        assert "signs" in attention_kinds()
        heads = parse_layer("signs(2,clusters=100)", signs=3)
        layer = MultiheadAttention(8, 2, kinds=heads, causal=True).eval()
    x = torch.randn(1, 40, 8)
    codes = module.signs(layer.k_proj(x).unflatten(-1, (2, 4)).transpose(1, 2), 3)[0]
    assert codes.unique().tolist() == list(range(8))
    (seen,) = tokens_seen(layer, x).values()
    for head, query in torch.cartesian_prod(torch.arange(2), torch.arange(40)).tolist():
        same = (codes[head, : query + 1] == codes[head, query]).nonzero().flatten()
        assert torch.equal(seen[0, head, query].nonzero().flatten(), same[-2:])


@torch.no_grad()
def test_a_kind_with_a_store_of_its_own():
    """Step by step, in portions, reordered and padded; and against a list of keys a row."""
    with plugin("class Heavy(Kind)"):
        layer = MultiheadAttention(8, 2, kinds="heavy(3)", causal=True).double().eval()
    x, rows = torch.randn(3, 20, 8, dtype=torch.float64), torch.tensor([2, 0, 0])
    steps, past = by_steps(layer, x, order_at=(12, rows), portions=(4, 1, 7))
    torch.testing.assert_close(steps, layer(x[rows])[0], rtol=0, atol=1e-10)
    assert past.kinds[0].others[0].keys.shape == (3, 2, 3, 4)
    mask = pads([20, 13, 1], 20, "left")
    found = layer(x, mask)[0]
    torch.testing.assert_close(by_steps(layer, x, mask)[0][~mask], found[~mask])
    torch.testing.assert_close(found[1, 7:], layer(x[1:2, 7:])[0][0])
    heads = layer.project(x, Convolved(Batch()))
    out = torch.zeros_like(heads.q)
    for b, h in torch.cartesian_prod(torch.arange(3), torch.arange(2)).tolist():
        held: list = []  # (key, value, attention so far)
        for i in range(20):
            q, k, v = (t[b, h, i] for t in heads[1:4])
            seen = [*held, (k, v, 0.0)]
            weights = torch.stack([key @ q / 2 for key, *_ in seen]).softmax(0)
            out[b, h, i] = sum(w * value for w, (_, value, _) in zip(weights, seen, strict=True))
            seen = [(*kv, s + w) for w, (*kv, s) in zip(weights, seen, strict=True)]
            held = sorted(seen, key=lambda entry: -entry[2])[:3]
    torch.testing.assert_close(layer(x)[0], layer.merge([out]), rtol=0, atol=1e-10)


def test_attention_without_fairseq():
    block = next(b for b in blocks(EXTENDING, "python") if "layer(x)" in b)
    names = {"x": torch.randn(1, 50, 512)}
    exec(compile(block, "extending.md", "exec"), names)
    assert names["y"].shape == names["x"].shape


def test_every_command_and_kind_is_named():
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert [name for name in COMMANDS if name.split()[0] not in changelog] == []
    page = (ROOT / "docs" / "attention-kinds.md").read_text()
    for kind in attention_kinds():
        if kinds.registered(kind).kind.__module__.startswith("fairseq_clusterformer."):
            assert f"| `{kind}` |" in page, kind
