"""The README tells the truth: its code runs, its commands parse, its tables are complete."""

import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from fairseq import options
from fairseq.models import ARCH_MODEL_NAME_REGISTRY
from fairseq.models.transformer_lm import TransformerLanguageModelConfig

import fairseq_clusterformer
from fairseq_clusterformer.attention import AttentionConfig, MultiheadAttention, attention_kinds
from fairseq_clusterformer.attention import base as attention_base
from fairseq_clusterformer.criterions.clusterformer_qa import (
    ClusterformerQAConfig as QACriterionConfig,
)
from fairseq_clusterformer.criterions.clusterformer_sentence_prediction import (
    ClusterformerSentencePredictionConfig,
)
from fairseq_clusterformer.criterions.clustering_losses import ClusteringLossConfig
from fairseq_clusterformer.kernels import ranged_attention
from fairseq_clusterformer.models.clusterformer import ClusterformerOptions
from fairseq_clusterformer.models.clusterformer_classifier import ClusterformerClassifierConfig
from fairseq_clusterformer.models.clusterformer_lm import ClusterformerLanguageModelConfig
from fairseq_clusterformer.models.clusterformer_reader import ClusterformerReaderConfig
from fairseq_clusterformer.models.encoder_only import EncoderOnlyOptions, EncoderOptions
from fairseq_clusterformer.models.options import ClusteringOptions
from fairseq_clusterformer.tasks.clusterformer_qa import ClusterformerQAConfig
from fairseq_clusterformer.tasks.clusterformer_sentence import ClusterformerSentenceConfig

from .kinds import pads

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "examples").glob("*/README.md"))]
PROGRAMS = (
    *("fairseq-train", "fairseq-eval-lm", "fairseq-generate", "fairseq-interactive"),
    "fairseq-validate",
)


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def commands() -> list[list[str]]:
    """Every command line of the pages, as lists of words; of a pipe, each part."""
    found = []
    for page in PAGES:
        for block in blocks(page.read_text(), "bash"):
            block = block.replace("$HERE/", "").replace("$PWD/", "")
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                if ">" in words:
                    words = words[: words.index(">")]
                while "|" in words:
                    cut = words.index("|")
                    found.append(words[:cut])
                    words = words[cut + 1 :]
                if words:
                    found.append(words)
    return found


@pytest.fixture
def signs():
    """The router of "Adding a kind of attention", registered for one test."""
    block = next(b for b in blocks(README, "python") if "register_attention" in b)
    names: dict = {}
    exec(compile(block, "README.md", "exec"), names)
    yield names["signs"]
    del attention_base._KINDS["signs"]


@torch.no_grad()
def test_adding_a_kind(signs):
    assert "signs" in attention_kinds()
    config = AttentionConfig(window=2)
    layer = MultiheadAttention(8, 2, kinds=("signs",), config=config, causal=True)
    layer = layer.double().eval()
    x = torch.randn(2, 40, 8, dtype=torch.float64)
    for mask in (None, pads([40, 21], 40, "left"), pads([40, 21], 40, "right")):
        out, _ = layer(x, mask)
        real = torch.ones(2, 40, dtype=torch.bool) if mask is None else ~mask
        state, steps = {}, []
        for t in range(40):
            step_mask = None if mask is None else mask[:, t : t + 1]
            step, state = layer.step(x[:, t : t + 1], state, step_mask)
            steps.append(step)
        torch.testing.assert_close(torch.cat(steps, 1)[real], out[real])
    # Without its value, a token is missed by itself and by the next of its cluster, in each head.
    q, k, v = (p(x).unflatten(-1, (2, 4)).transpose(1, 2) for p in projections(layer))
    codes = signs(k)[0]
    layout = layer.routers[0](x, q, k).layouts[0]
    edited = v.clone()
    edited[0, :, 3] = 0
    before, after = (ranged_attention(q, k, values, layout)[0] for values in (v, edited))
    changed = (before - after).abs().amax(-1)[0] > 1e-12
    for head in range(2):
        same = (codes[head] == codes[head, 3]).nonzero().flatten()
        assert torch.equal(changed[head].nonzero().flatten(), same[same >= 3][:2])


def projections(layer: MultiheadAttention) -> tuple[torch.nn.Module, ...]:
    return layer.q_proj, layer.k_proj, layer.v_proj


def test_plain_torch_example():
    block = next(b for b in blocks(README, "python") if "layer(x)" in b)
    names = {"x": torch.randn(1, 50, 512)}
    exec(compile(block, "README.md", "exec"), names)
    assert names["y"].shape == names["x"].shape


def test_nothing_is_left_to_fill_in():
    for page in PAGES:
        for line in page.read_text().splitlines():
            assert not re.fullmatch(r"[A-Z_]{4,}", line.strip()), f"{page}: {line}"
            for image in re.findall(r"!\[.*?\]\((.*?)\)", line):
                assert (page.parent / image).is_file(), f"{page}: {image}"


def test_every_script_exists():
    scripts = {w for words in commands() for w in words if w.startswith("scripts/")}
    assert {"scripts/demo.sh", "scripts/test.sh"} <= scripts
    for script in scripts:
        assert (ROOT / script).is_file(), script


def test_fairseq_commands_parse():
    parsers = {
        "fairseq-train": options.get_training_parser,
        "fairseq-eval-lm": options.get_eval_lm_parser,
        "fairseq-generate": options.get_generation_parser,
        "fairseq-interactive": lambda: options.get_interactive_generation_parser(),
        "fairseq-validate": options.get_validation_parser,
    }
    seen = 0
    for words in commands():
        if words[0] not in PROGRAMS:
            continue
        words = [
            str(Path(fairseq_clusterformer.__file__).parent) if w == "fairseq_clusterformer" else w
            for w in words
        ]
        parser = parsers[words[0]]()
        args = options.parse_args_and_arch(parser, words[1:])  # exits on an unknown option
        seen += 1
        if words[0] == "fairseq-train":
            assert ARCH_MODEL_NAME_REGISTRY[args.arch] in (
                "clusterformer",
                "clusterformer_classifier",
                "clusterformer_lm",
                "clusterformer_masked_lm",
                "clusterformer_reader",
                "transformer_lm",
            )
    assert seen >= 9


def shown(default: object) -> str:
    """A default, as tables have it."""
    if default is False:
        return "off"
    return "none" if default in (None, "") else str(default)


def test_every_option_is_in_the_table_with_its_default():
    inherited = {f.name for f in fields(TransformerLanguageModelConfig)}
    added = [f for f in fields(ClusterformerLanguageModelConfig) if f.name not in inherited]
    shared = {f.name for f in fields(ClusteringOptions)}
    added += [f for f in fields(ClusterformerOptions) if f.name not in shared]
    added += fields(ClusteringLossConfig)
    for option in added:
        if option.name == "_name":
            continue
        name = "--" + option.name.replace("_", "-")
        row = next((r for r in README.splitlines() if r.startswith(f"| `{name}")), None)
        assert row is not None, f"{name} is not in the table of options"
        assert row.split("|")[2].strip().strip("`") == shown(option.default), row


def test_every_option_of_the_reader_is_in_its_table():
    table = README.split("`--arch clusterformer_reader`")[1].split("\n\n")[1]
    rows = [[cell.strip().strip("`") for cell in row.split("|")] for row in table.splitlines()]
    known = {f.name for owner in (EncoderOptions, ClusteringOptions) for f in fields(owner)}
    for option in fields(ClusterformerReaderConfig):
        if option.name in known - {"attention_window"} | {"_name"}:
            continue
        name = "--" + option.name.replace("_", "-")
        assert [row[2] for row in rows if row[1] == name] == [shown(option.default)], name


def test_every_option_of_question_answering_is_in_its_table():
    table = README.split("Task and criterion `clusterformer_qa`:")[1].split("\n\n")[1]
    rows = [[cell.strip().strip("`") for cell in row.split("|")] for row in table.splitlines()]
    others = {f.name for f in fields(ClusteringLossConfig)} | {"_name", "data", "train_subset"}
    options = [*fields(ClusterformerQAConfig), *fields(QACriterionConfig)]
    wanted = {
        "--" + option.name.replace("_", "-"): shown(option.default)
        for option in options
        if option.name not in others
    }
    assert {row[1]: row[2] for row in rows[2:]} == wanted


def test_every_option_of_classification_is_in_its_tables():
    page = (ROOT / "examples" / "classification" / "README.md").read_text()
    inherited = {f.name for f in [*fields(EncoderOnlyOptions), *fields(ClusteringLossConfig)]}
    owners = (
        ClusterformerSentenceConfig,
        ClusterformerClassifierConfig,
        ClusterformerSentencePredictionConfig,
    )
    for option in (f for owner in owners for f in fields(owner)):
        if option.name in inherited | {"_name", "data"}:
            continue
        name = "--" + option.name.replace("_", "-")
        row = next((r for r in page.splitlines() if r.startswith(f"| `{name}")), None)
        assert row is not None, f"{name} is not in the table of options"
        assert row.split("|")[2].strip().strip("`") == shown(option.default), row


def test_every_kind_is_in_the_table():
    for kind in attention_kinds():
        assert f"| `{kind}` |" in README
