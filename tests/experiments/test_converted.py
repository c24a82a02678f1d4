"""What a converted model loses: as many keys for windows, prompts with a key, and the tables."""

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("fairseq_clusterformer.hf", exc_type=ImportError)

from examples.language_model import converted  # noqa: E402
from examples.language_model.rivals import RIVALS  # noqa: E402
from fairseq_clusterformer.attention.inspect import tokens_seen  # noqa: E402
from fairseq_clusterformer.checkpoints.load import load_checkpoint  # noqa: E402
from fairseq_clusterformer.use.language_model import LanguageModel  # noqa: E402
from tests.conversion.dense import TEXT, llama  # noqa: E402
from tests.documents.commands import run  # noqa: E402

SEES_ALL = "taught(window=128,clusters=1,gap=0)"
FEW = "taught(window=4,clusters=4,probes=2,gap=8,sinks=2)"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dense model, a text, and the model converted in two ways."""
    folder = tmp_path_factory.mktemp("converted")
    torch.manual_seed(3)
    llama(folder / "dense")
    (folder / "text.txt").write_text(TEXT, encoding="utf-8")
    for name, spec in (("all", SEES_ALL), ("few", FEW)):
        words = ["--attention", spec, "--text", folder / "text.txt", "--near-window", 8]
        words += ["--updates", 0, "--tokens", 500]
        assert run("convert", folder / "dense", folder / name, *words) == 0
    return folder


@torch.no_grad()
def test_windows_show_as_many_keys(folder):
    model = load_checkpoint(folder / "few" / "checkpoint.pt").model
    assert converted.sight_of(model) == (8, 2, 4, 2, 3)
    attention = model.decoder.layers[0].self_attn
    x = torch.randn(100, 4, 16)
    seen = torch.cat([*tokens_seen(attention, x, None).values()], dim=1).sum(-1)
    assert seen.max() == 16


def test_the_tables(folder, capsys):
    """A model that sees all loses nothing, others do."""
    results = {}
    for name in ("all", "few"):
        words = [folder / name / "checkpoint.pt", "--dense", folder / "dense", "--length", 120]
        words += ["--text", folder / "text.txt", "--out", folder / f"{name}.json", "--rivals"]
        assert converted.main([*map(str, words)]) == 0
        results[name] = json.loads((folder / f"{name}.json").read_text())
    table = capsys.readouterr().out.splitlines()
    assert table[-12].split() == ["nats", "by", "position,", "from", "0", "64"]
    assert table[-3].startswith("window(14,sinks=2)")
    for of in results["all"].values():
        assert of["all"] == pytest.approx(results["all"]["dense"]["all"], rel=1e-5)
    of_few = results["few"]
    assert list(of_few) == ["dense", "converted", "window(14,sinks=2)", *RIVALS]
    assert len({round(of["all"], 3) for of in of_few.values()}) == 5
    for of in of_few.values():
        places = of["nats by position"]
        assert list(places) == ["0", "64"]
        assert of["all"] == pytest.approx((64 * places["0"] + 56 * places["64"]) / 120, rel=1e-3)


def test_prompts_with_a_key(folder, monkeypatch):
    places = []
    for depth in (0.0, 0.5, 1.0):
        text = converted.prompt(12345, 400, depth, lambda part: len(part.split()))
        assert 370 < len(text.split()) <= 400
        assert text.endswith("What is the pass key? The pass key is")
        places.append(text.index("12345") / len(text))
    assert places == sorted(places)
    assert places[0] < 0.1
    assert places[2] > 0.85
    loaded, asked = load_checkpoint(folder / "all" / "checkpoint.pt"), []

    def reads_half(self: LanguageModel, text: str, tokens: int, temperature: float) -> str:
        asked.append(text)
        assert 500 < len(self.coding.encode(text)) <= 600
        known = text[len(text) // 2 :]
        return f"{text} {known.partition('The pass key is ')[2][:5]}."

    monkeypatch.setattr(LanguageModel, "generate", reads_half)
    assert 0.4 <= converted.passkeys(loaded, 600, 10) <= 0.5
    assert len({*asked}) == 10


def test_a_mistake_is_one_line(folder, capsys):
    few, dense = folder / "few" / "checkpoint.pt", folder / "dense"
    for words, told in (
        ([few, "--dense", dense], "--text is not given; allowed: --text or --passkey"),
        ([folder / "dense-bundle", "--dense", dense, "--passkey", 9], "CHECKPOINT is "),
        ([few, "--dense", dense, "--passkey", 9], "--passkey is 9; allowed: "),
    ):
        assert converted.main([*map(str, words)]) == 1
        assert told in capsys.readouterr().err
