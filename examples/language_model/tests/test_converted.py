"""What a converted model loses: nothing if it sees all."""

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("fairseq_clusterformer.hf", exc_type=ImportError)

from examples.language_model import converted  # noqa: E402
from fairseq_clusterformer.attention.inspect import tokens_seen  # noqa: E402
from fairseq_clusterformer.checkpoints.load import load_checkpoint  # noqa: E402
from fairseq_clusterformer.errors import UserError  # noqa: E402
from tests.conversion.dense import TEXT, llama  # noqa: E402
from tests.documents.commands import run  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dense model, a text, and the model converted in two ways."""
    folder = tmp_path_factory.mktemp("models")
    torch.manual_seed(3)
    llama(folder / "dense")
    (folder / "text.txt").write_text(TEXT, encoding="utf-8")
    few = "taught(window=4,clusters=4,probes=2,gap=8,sinks=2)"
    for name, spec in (("all", "taught(window=128,clusters=1,gap=0)"), ("few", few)):
        words = ["--attention", spec, "--text", folder / "text.txt", "--near-window", 8]
        words += ["--updates", 0, "--tokens", 400]
        assert run("convert", folder / "dense", folder / name, *words) == 0
    return folder


@torch.no_grad()
def test_windows_show_as_many_keys(folder):
    """With the sinks."""
    model = load_checkpoint(folder / "few" / "checkpoint.pt").model
    assert converted.keys_of(model) == (14, 2)
    layer = model.decoder.layers[0]
    seen = tokens_seen(layer.self_attn, torch.randn(100, 4, 16), None).values()
    assert max(int(of.sum(-1).max()) for of in seen) == 16


def compared(folder: Path, *words: object) -> list[dict]:
    """Results of the model that sees all, and of that of few keys."""
    found = []
    for name in ("all", "few"):
        given = [folder / name / "checkpoint.pt", "--dense", folder / "dense", *words]
        given += ["--text", folder / "text.txt", "--out", folder / f"{name}.json"]
        assert converted.main([*map(str, given)]) == 0
        found.append(json.loads((folder / f"{name}.json").read_text()))
    return found


def test_a_model_that_sees_all_loses_nothing(folder, capsys):
    of_all, of_few = compared(folder, "--length", 120)
    table = capsys.readouterr().out.splitlines()
    heads = [line for line in table if line.startswith("nats by position, from")]
    assert heads[0].split()[-2:] == ["0", "64"]
    for of in of_all.values():
        assert of["all"] == pytest.approx(of_all["dense"]["all"], rel=1e-5)
    assert list(of_few) == ["dense", "converted", "window(14,sinks=2)"]
    assert len({round(of["all"], 3) for of in of_few.values()}) == 3
    for name, of in of_few.items():
        places = of["nats by position"]
        assert list(places) == ["0", "64"]
        assert of["all"] == pytest.approx((64 * places["0"] + 56 * places["64"]) / 120, rel=1e-3)
        assert f"{name:30}{of['all']:18.4f}" in table
    windows = folder / "few" / "checkpoint.pt"
    of, _ = compared(folder, "--length", 120, "--windows", windows)
    assert of["windows"] == of_few["converted"]


def test_no_text(folder):
    given = [folder / "few" / "checkpoint.pt", "--dense", folder / "dense"]
    with pytest.raises(UserError, match="--text is "):
        converted.main([*map(str, [*given, "--text", folder / "none"])])
