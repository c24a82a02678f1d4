"""What a converted model loses: nothing if it sees all; and prompts with a key."""

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("fairseq_clusterformer.hf", exc_type=ImportError)

from transformers import BertForMaskedLM  # noqa: E402

from examples.language_model import converted  # noqa: E402
from examples.question_answering import converted_encoder  # noqa: E402
from fairseq_clusterformer.attention.inspect import tokens_seen  # noqa: E402
from fairseq_clusterformer.checkpoints.load import load_checkpoint  # noqa: E402
from fairseq_clusterformer.errors import UserError  # noqa: E402
from fairseq_clusterformer.use.language_model import LanguageModel  # noqa: E402
from tests.conversion.dense import TEXT, llama  # noqa: E402
from tests.documents.commands import run  # noqa: E402
from tests.models.bert import folder_of  # noqa: E402

SEES_ALL = "taught(window=128,clusters=1,gap=0)"


def write_encoder(folder: Path) -> None:
    """Of 40 positions; attention says much in it."""
    model = BertForMaskedLM.from_pretrained(folder_of("bert", folder, "MaskedLM"))
    for name, parameter in model.named_parameters():
        if "LayerNorm" in name or name.endswith("bias"):
            torch.nn.init.constant_(parameter, float(name.endswith("LayerNorm.weight")))
    model.save_pretrained(folder)


FISH, LONG = "a fish and a lake, cafe\nA caf\u00e9 and fish.\n" * 40, ["--max-positions", 100]
#: what writes the dense model, its text, what the converted model of few keys sees
MODELS = {
    "decoder": (llama, TEXT, "taught(window=4,clusters=4,probes=2,gap=8,sinks=2)"),
    "encoder": (write_encoder, FISH, "taught(window=3,clusters=4,probes=2,gap=5)"),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A dense model, a text, and the model converted in two ways."""
    found = {}
    for kind, (write, text, few) in MODELS.items():
        folder = found[kind] = tmp_path_factory.mktemp(kind)
        torch.manual_seed(3)
        write(folder / "dense")
        (folder / "text.txt").write_text(text, encoding="utf-8")
        for name, spec in (("all", SEES_ALL), ("few", few)):
            words = ["--attention", spec, "--text", folder / "text.txt", "--near-window", 8]
            words += ["--updates", 0, "--tokens", 400, *(LONG if kind == "encoder" else [])]
            assert run("convert", folder / "dense", folder / name, *words) == 0
    return found


@torch.no_grad()
@pytest.mark.parametrize(("kind", "keys"), [("decoder", (14, 2)), ("encoder", (11, 0))])
def test_windows_show_as_many_keys(folders, kind, keys):
    """With the sinks; an encoder's query is among those of either side."""
    model = load_checkpoint(folders[kind] / "few" / "checkpoint.pt").model
    assert converted.keys_of(model) == keys
    layer = getattr(model, kind).layers[0]
    seen = tokens_seen(layer.self_attn, torch.randn(100, 4, 16), None).values()
    found = max(int(of.sum(-1).max()) for of in seen)
    assert found == sum(keys) if kind == "decoder" else found <= 2 * keys[0] - 1


def results(program, folder: Path, *words: object) -> list[dict]:
    """Of the model that sees all, and of that of few keys."""
    found = []
    for name in ("all", "few"):
        given = [folder / name / "checkpoint.pt", "--dense", folder / "dense", *words]
        given += ["--text", folder / "text.txt", "--out", folder / f"{name}.json"]
        assert program.main([*map(str, given)]) == 0
        found.append(json.loads((folder / f"{name}.json").read_text()))
    return found


def test_a_decoder_that_sees_all_loses_nothing(folders, capsys):
    of_all, of_few = results(converted, folders["decoder"], "--length", 120)
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
    windows = folders["decoder"] / "few" / "checkpoint.pt"
    of, _ = results(converted, folders["decoder"], "--length", 120, "--windows", windows)
    assert of["windows"] == of_few["converted"]


def test_an_encoder_that_sees_all_loses_nothing(folders, capsys):
    more = ("--texts", 3, "--lengths", 30, 100)
    of_all, of_few = results(converted_encoder, folders["encoder"], *more)
    table = capsys.readouterr().out.splitlines()
    assert table[-4].split()[:3] == ["100", "dense", "1.0000"]
    for length in ("30", "100"):
        assert list(of_few[length]) == ["dense", "converted", "window(10)", "pieces of 40"]
        for column in ("states", "vector"):
            few = {name: of[column] for name, of in of_few[length].items()}
            assert of_all[length]["converted"][column] == pytest.approx(1, abs=1e-4)
            assert few["dense"] == pytest.approx(1, abs=1e-4)
            assert max(few["converted"], few["window(10)"]) < 0.9998
    assert of_few["30"]["pieces of 40"]["states"] == pytest.approx(1, abs=1e-4)
    assert of_few["100"]["pieces of 40"]["states"] < 0.9998


def test_prompts_with_a_key(folders, monkeypatch):
    places = []
    for depth in (0.0, 0.5, 1.0):
        text = converted.prompt(12345, 400, depth, lambda part: len(part.split()))
        assert 370 < len(text.split()) <= 400
        assert text.endswith("What is the pass key? The pass key is")
        places.append(text.index("12345") / len(text))
    assert places[0] < 0.1 < places[1] < 0.85 < places[2]
    loaded, asked = load_checkpoint(folders["decoder"] / "all" / "checkpoint.pt"), []
    language = LanguageModel(loaded, device="cpu")

    def reads_half(self: LanguageModel, text: str, tokens: int, temperature: float) -> str:
        asked.append(text)
        assert 500 < len(self.coding.encode(text)) <= 600
        known = text[len(text) // 2 :]
        return f"{text} {known.partition('The pass key is ')[2][:5]}."

    monkeypatch.setattr(LanguageModel, "generate", reads_half)
    assert 0.4 <= converted.passkeys(language, 600, 10) <= 0.5
    assert len({*asked}) == 10


def test_mistakes_are_one_line(folders, tmp_path):
    (latin := tmp_path / "latin.txt").write_bytes("caf\u00e9".encode("latin-1"))
    text = folders["encoder"] / "text.txt"
    for program, kind, words, told in (
        (converted, "decoder", [], "--text is not given; allowed: --text or --passkey"),
        (converted, "decoder", ["--passkey", 9], "--passkey is 9; allowed: "),
        (converted_encoder, "encoder", ["--text", text, "--lengths", 101], "allowed: 3 to 100"),
        (converted_encoder, "encoder", ["--text", tmp_path / "none"], "--text is "),
        (converted_encoder, "encoder", ["--text", latin, "--lengths", 30], "a file of UTF-8"),
    ):
        given = [folders[kind] / "few" / "checkpoint.pt", "--dense", folders[kind] / "dense"]
        with pytest.raises(UserError, match=told):
            program.main([*map(str, [*given, *words])])
