"""``clusterformer convert``: dense models become clustered ones that all programs take."""

import json
import math
import shlex
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fairseq.models.transformer_lm import TransformerLanguageModel
from safetensors.torch import load_file
from torch import Tensor, nn

from fairseq_clusterformer.checkpoints import load
from fairseq_clusterformer.checkpoints.load import load_checkpoint
from fairseq_clusterformer.cli.main import main
from fairseq_clusterformer.conversion import fit, measure
from fairseq_clusterformer.conversion.model import target_of
from fairseq_clusterformer.errors import UserError
from tests.cli.in_process import (
    CLASSIFICATION,
    CLUSTERFORMER,
    HERE,
    letters,
    load_model,
    load_state,
    train,
    trained,
)
from tests.documents.commands import error

TAUGHT = "window(8)+taught(window=8,clusters=4,gap=8)"
WIDE = "taught(window=64,clusters=2,gap=64)+window(200)"  # wider than any text here
FAST = "--near-window 8 --far-window 8 --tokens 1000 --updates 3"


def convert(*words: object) -> int:
    return main(["convert", *map(str, words)])


#: of a dense model of ours: rotary positions, short convolutions, shared keys and values, and
#: options of clusters that it does not have
rotary = trained(
    "byte_data",
    f"{CLUSTERFORMER} --attention full --positions rotary --short-convolution 3"
    " --decoder-kv-heads 2 --routes-by heads --drop-keys 0.5",
)


def outputs(path: Path, data: Path, tokens: Tensor) -> Tensor:
    model, _ = load_model(path, data)
    with torch.no_grad():
        return model(tokens)[0]


@pytest.mark.parametrize("which", ["dense_checkpoint", "rotary"])
def test_what_sees_everything_computes_the_same(which, byte_data, tmp_path, request):
    """Whatever place a head has."""
    dense = request.getfixturevalue(which)
    assert convert(dense, tmp_path / "out", "--attention", WIDE, *FAST.split()) == 0
    report = json.loads((tmp_path / "out" / "convert.json").read_text())
    assert any(head["place"] != head["head"] for head in report["heads"])
    tokens = letters(byte_data, 3, 60)
    paths = tmp_path / "out" / "checkpoint.pt", dense
    found, expected = (outputs(path, byte_data, tokens) for path in paths)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def converted(dense_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("converted") / "out"
    assert convert(dense_checkpoint, folder, "--attention", TAUGHT, *FAST.split()) == 0
    return folder


def test_what_it_writes(converted, dense_checkpoint):
    files = sorted(file.name for file in converted.iterdir())
    assert files == [".clusterformer", "checkpoint.pt", "convert.json"]
    report = json.loads((converted / "convert.json").read_text())
    assert report["checkpoint"] == str(dense_checkpoint)
    assert report["arch"] == "clusterformer_lm"
    assert len(report["routing losses"]) == 3
    for head in report["heads"]:
        assert 0 <= head["far"] <= 1
        assert 1 - head["far"] <= head["best"] + 1e-6
        assert head["after"] <= head["best"] + 0.2  # far keys are up to W - 1, near ones W
        if head["kind"] == "window":
            assert math.isclose(head["after"], 1 - head["far"], abs_tol=1e-5)
            assert head["before"] is None
        else:
            assert 1 - head["far"] <= head["chance_before"] + 1e-5
            assert head["after"] >= 1 - head["far"] - 1e-5
    for layer in (0, 1):
        heads = [head for head in report["heads"] if head["layer"] == layer]
        assert [head["head"] for head in heads] == [0, 1, 2, 3]
        assert sorted(head["place"] for head in heads) == [0, 1, 2, 3]


def test_low_rank_training(converted, byte_data, tmp_path):
    """It changes routers and what is low-rank alone; what loads it computes the same."""
    spec = json.loads((converted / "convert.json").read_text())["attention"]["decoder"]
    checkpoint = converted / "checkpoint.pt"
    line = f"{CLUSTERFORMER} --lr 0.01 --finetune-from-model {checkpoint} --lora 2"
    words = ["--attention", spec, "--checkpoint-activations"]
    run = train(byte_data, f"{line} --max-update 3", tmp_path, *words)
    before, changed = load_state(checkpoint)["model"], set()
    for name, tensor in run.model.state_dict().items():
        original = name.replace(".parametrizations.weight.original", ".weight")
        if original not in before:
            assert name.endswith((".0.above", ".0.below"))
            assert tensor.any(), name
        elif not torch.equal(tensor, before[original]):
            changed.add(name)
    assert changed
    assert all(".routers." in name for name in changed), changed
    loaded, tokens = load_checkpoint(tmp_path / "checkpoint_last.pt"), letters(byte_data, 2, 40)
    assert loaded.model.state_dict().keys() == before.keys()
    with torch.no_grad():
        found, expected = loaded.model(tokens)[0], run.model.eval()(tokens)[0]
    torch.testing.assert_close(found, expected)
    assert (found - load_checkpoint(checkpoint).model(tokens)[0]).abs().max() > 0.01
    again = train(byte_data, f"{line} --max-update 5", tmp_path, *words)
    assert len(again.updates) == 2


def test_a_run_that_was_stopped_goes_on(converted, dense_checkpoint, tmp_path, monkeypatch):
    """It reads no batch and fits no layer again, and ends as if nothing had been."""
    words = [dense_checkpoint, tmp_path / "out", "--attention", TAUGHT, *FAST.split()]
    fitted, states, real = [], tmp_path / "out.partial" / "parts", fit.fit

    def stopped(dense: nn.Module, routers: list, *args: object, **how: object) -> list[float]:
        fitted.append(routers[0].place)
        if len(fitted) == 2:
            raise KeyboardInterrupt
        return real(dense, routers, *args, **how)

    monkeypatch.setattr(fit, "fit", stopped)
    assert convert(*words) == 130
    (tensors,) = states.glob("*/0.safetensors")
    assert {t.dtype for t in load_file(tensors).values()} <= {torch.float16, torch.bool}
    monkeypatch.setattr(measure, "_run", None)
    assert convert(*words) == 0
    assert fitted == [("decoder", 0), ("decoder", 1), ("decoder", 1)]
    found, expected = (
        load_state(folder / "checkpoint.pt")["model"] for folder in (tmp_path / "out", converted)
    )
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name
    reports = [(out / "convert.json").read_text() for out in (tmp_path / "out", converted)]
    assert reports[0] == reports[1]
    assert not states.parent.exists()


def test_a_disk_without_room(dense_checkpoint, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=9))
    line = error(capsys, "convert", dense_checkpoint, tmp_path / "out", *FAST.split())
    assert "tokens take 0.0 GB there; allowed: a disk with as much room" in line
    assert not (tmp_path / "out.partial").exists()


def test_the_command_that_it_prints(dense_checkpoint, byte_data, tmp_path, capsys):
    """It goes on with training, also where a text is longer than a batch was."""
    state = torch.load(dense_checkpoint, weights_only=False)
    state["cfg"]["dataset"]["max_tokens"] = 128
    torch.save(state, tmp_path / "dense.pt")
    words = ["--max-positions", 256, *FAST.split()]
    assert convert(tmp_path / "dense.pt", tmp_path / "out", *words) == 0
    run = train(byte_data, "", tmp_path / "on", *words_of(capsys), "--max-update", 1)
    assert run.updates[0]["ntokens"] == 256
    options = run.model.decoder.layers[0].self_attn.kinds[-1].options
    assert options.scouts == 16
    assert (options.clusters, options.probes, options.index) == (32, 8, 8)  # of 256 positions


def words_of(capsys: pytest.CaptureFixture) -> list[str]:
    """What the printed command says, to train in this process."""
    printed = capsys.readouterr().out.partition("To go on with training:\n\n")[2]
    program, _, *words = shlex.split(printed.replace("\\\n", ""))
    assert program == "fairseq-train"
    at = words.index("--user-dir")
    return [*words[:at], *words[at + 2 :], *HERE.split()]


def test_a_classifier(text_data, tmp_path, capsys):
    train(text_data, f"{CLASSIFICATION} --encoder-attention full --max-update 1", tmp_path)
    words = f"{FAST} --near-window 2 --far-window 2 --clusters 2 --max-positions 600 --updates 1"
    assert convert(tmp_path / "checkpoint_last.pt", tmp_path / "out", *words.split()) == 0
    loaded = load_checkpoint(tmp_path / "out" / "checkpoint.pt")
    assert loaded.model.max_positions() == 600
    run = train(text_data, "", tmp_path / "on", *words_of(capsys), "--max-update", 1)
    assert len(run.updates) == 1


def test_other_kinds_start_anew(dense_checkpoint, tmp_path, capsys):
    kinds = "gated(8,clusters=4)+kmeans(8,clusters=4)+xl(8)+window(8)"
    words = ["--attention", f"{kinds},{TAUGHT}", *FAST.split()]
    assert convert(dense_checkpoint, tmp_path / "out", *words) == 0
    assert "not fitted, their clusters start anew: gated, kmeans\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--attention taught(routes_by=heads)", "--routes-by is heads: such a router cannot be"),
        ("--attention taught(drop_keys=0.5)", "--drop-keys is 0.5: such a router cannot be fitt"),
        ("--encoder-attention full", "--encoder-attention is full: there is no encoder; "),
        ("--max-positions 8", "--max-positions is 8; allowed: 64 or more"),
        ("--tokens-per-sample 99", "--tokens-per-sample is 99; allowed: 3 to 64"),
        ("--near-window 64", "--near-window is 64: no text that the decoder reads goes"),
        ("--probes 5 --clusters 4", "--probes is 5; allowed: up to --clusters, 4"),
        ("--rings --probes 64", "--probes is 64; allowed: less than --far-window, 64"),
        ("--attention full --probes 3", "--probes is 3: there is no spec of heads to make"),
        ("--text no/such", "--text is no/such: no such file; allowed: a file of text"),
        ("--gen-subset tests", "--gen-subset is tests: Dataset not found"),
    ],
)
def test_mistakes_are_one_line(words, message, dense_checkpoint, tmp_path, capsys):
    line = error(capsys, "convert", dense_checkpoint, tmp_path / "out", *words.split())
    assert message in line
    assert not (tmp_path / "out").exists()


def test_another_model(checkpoint, dense_checkpoint, tmp_path, capsys):
    line = error(capsys, "convert", checkpoint, tmp_path / "out")
    assert "layer 0 of the decoder is window+neural; allowed: a dense model" in line
    loaded = load_checkpoint(dense_checkpoint)
    loaded.cfg.model._name = "lightconv_lm"
    with pytest.raises(UserError, match="its architecture is lightconv_lm; allowed: "):
        target_of(loaded)


def test_the_same_command_does_nothing_again(converted, dense_checkpoint, capsys, monkeypatch):
    monkeypatch.setattr(load, "load_checkpoint", lambda *_, **__: pytest.fail("run"))
    assert convert(dense_checkpoint, converted, "--attention", TAUGHT, *FAST.split()) == 0
    assert capsys.readouterr().out == f"{converted} is already done\n"
    line = error(capsys, "convert", dense_checkpoint, converted)
    assert "it exists; allowed: a new folder, or --force to replace it" in line


def test_features_that_no_clustered_model_has(dense_checkpoint, tmp_path, monkeypatch, capsys):
    """What computes something else than the same weights do here is found out by its outputs."""
    forward = TransformerLanguageModel.forward

    def other(self: nn.Module, *args, **kwargs):
        x, extra = forward(self, *args, **kwargs)
        own = type(self).__module__.startswith("fairseq_clusterformer")
        return (x if own else 2 * x), extra

    monkeypatch.setattr(TransformerLanguageModel, "forward", other)
    line = error(capsys, "convert", dense_checkpoint, tmp_path / "out", *FAST.split())
    assert "as a clustered model with full attention it differs by" in line
