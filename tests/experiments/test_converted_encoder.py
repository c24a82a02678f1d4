"""What a converted encoder loses: nothing if it sees all, more if less, and as many keys for
windows."""

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("fairseq_clusterformer.hf", exc_type=ImportError)

from transformers import BertForMaskedLM  # noqa: E402

from examples.language_model.rivals import sight_of  # noqa: E402
from examples.question_answering import converted_encoder  # noqa: E402
from fairseq_clusterformer.attention.inspect import tokens_seen  # noqa: E402
from fairseq_clusterformer.checkpoints.load import load_checkpoint  # noqa: E402
from tests.documents.commands import run  # noqa: E402
from tests.models.bert import folder_of  # noqa: E402

SEES_ALL = "taught(window=128,clusters=1,gap=0)"
FEW = "taught(window=3,clusters=4,probes=2,gap=5)"
MODELS = ["dense", "converted", "window(10)", "pieces of 40"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dense encoder of 40 positions, a text, and the model converted in two ways."""
    folder = tmp_path_factory.mktemp("converted")
    model = BertForMaskedLM.from_pretrained(folder_of("bert", folder / "dense", "MaskedLM"))
    for name, parameter in model.named_parameters():  # so that attention says much
        if "LayerNorm" in name or name.endswith("bias"):
            torch.nn.init.constant_(parameter, float(name.endswith("LayerNorm.weight")))
    model.save_pretrained(folder / "dense")
    (folder / "text.txt").write_text("a fish and a lake, cafe\nA caf\u00e9 and fish.\n" * 40)
    for name, spec in (("all", SEES_ALL), ("few", FEW)):
        words = ["--attention", spec, "--text", folder / "text.txt", "--near-window", 8]
        words += ["--updates", 0, "--tokens", 300, "--max-positions", 100]
        assert run("convert", folder / "dense", folder / name, *words) == 0
    return folder


def compare(folder: Path, name: str) -> dict:
    words = [folder / name / "checkpoint.pt", "--dense", folder / "dense", "--texts", 3]
    words += ["--text", folder / "text.txt", "--lengths", 30, 100, "--out", folder / "out.json"]
    assert converted_encoder.main([*map(str, words)]) == 0
    return json.loads((folder / "out.json").read_text())


@torch.no_grad()
def test_windows_show_as_many_keys(folder):
    model = load_checkpoint(folder / "few" / "checkpoint.pt").model
    sight = sight_of(model)
    most = 2 * (sight.near + sight.far - 1) + 1
    seen = tokens_seen(model.encoder.layers[0].self_attn, torch.randn(100, 4, 16), None)
    assert max(int(kind.sum(-1).max()) for kind in seen.values()) <= most == 21


def test_the_numbers(folder, capsys):
    of_all, of_few = compare(folder, "all"), compare(folder, "few")
    table = capsys.readouterr().out.splitlines()
    assert table[-4].split()[:3] == ["100", "dense", "1.0000"]
    for length in ("30", "100"):
        assert list(of_few[length]) == MODELS
        for column in ("states", "vector"):
            assert of_all[length]["converted"][column] == pytest.approx(1, abs=1e-4)
            assert of_few[length]["dense"][column] == pytest.approx(1, abs=1e-4)
            assert of_few[length]["converted"][column] < 0.9998
            assert of_few[length]["window(10)"][column] < 0.9998
    assert of_few["30"]["pieces of 40"]["states"] == pytest.approx(1, abs=1e-4)
    assert of_few["100"]["pieces of 40"]["states"] < 0.9998


def test_a_mistake_is_one_line(folder, capsys):
    (folder / "latin.txt").write_bytes("caf\u00e9".encode("latin-1"))
    few, dense, text = folder / "few" / "checkpoint.pt", folder / "dense", folder / "text.txt"
    for words, told in (
        (["--text", text, "--lengths", 101], "--lengths is 101; allowed: 3 to 100"),
        (["--text", folder / "none"], "--text is "),
        (["--text", folder / "latin.txt", "--lengths", 30], "; allowed: a file of UTF-8"),
    ):
        words = [few, "--dense", dense, *words]
        assert converted_encoder.main([*map(str, words)]) == 1
        assert told in capsys.readouterr().err
