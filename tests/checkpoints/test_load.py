"""The loader: what is wrong with a checkpoint or its data is one line; our own defects are not."""

import contextlib
import json
import math
import pickle
import shutil
import sys
from pathlib import Path

import pytest
import torch
from fairseq.data.indexed_dataset import MMapIndexedDataset

import fairseq_clusterformer
from fairseq_clusterformer.checkpoints.bundle import write_bundle
from fairseq_clusterformer.checkpoints.load import load_checkpoint
from fairseq_clusterformer.errors import UserError
from fairseq_clusterformer.models.clusterformer_lm import ClusterformerLanguageModel
from tests.conftest import sampled


def refused(path: Path, **options: object) -> str:
    """The one line of an error."""
    with pytest.raises(UserError) as caught:
        load_checkpoint(path, **options)
    (line,) = str(caught.value).splitlines()
    assert "; allowed: " in line
    return line


def edited(checkpoint: Path, path: Path, edit) -> Path:
    """A copy of a checkpoint whose state ``edit`` has changed."""
    state = torch.load(checkpoint, weights_only=True)
    edit(state)
    torch.save(state, path)
    return path


def test_loaded(checkpoint, byte_data):
    loaded = load_checkpoint(checkpoint, tokens_per_sample=32)
    assert not loaded.model.training
    assert loaded.folder == byte_data
    assert loaded.updates == 40
    assert loaded.task.args.tokens_per_sample == 32
    assert loaded.cfg.model.attention == "window+neural"


#: what pickle or torch says of it is a number, a letter or of no use
JUNK = (b"text", b"{}", b"\x00" * 9, b"\x80\x02h\x07.", b"q", b"PK\3\4 no zip", b"")
JUNK += (pickle.dumps({"model": 1}),)


def test_what_is_no_checkpoint(checkpoint, tmp_path):
    assert "--model is x.pt: no such file" in refused(Path("x.pt"), option="--model")
    assert "a folder without bundle.json; allowed: a checkpoint that" in refused(tmp_path)
    (tmp_path / "config.json").touch()
    allowed = f"the bundle that `clusterformer export {tmp_path} OUT --to fairseq` makes of it"
    assert f"a folder without bundle.json; allowed: {allowed}" in refused(tmp_path)
    path = tmp_path / "file.pt"
    whole = checkpoint.read_bytes()
    for content in (*JUNK, whole[:3000]):
        path.write_bytes(content)
        said = f"{path}: cannot be read (it is no checkpoint, or is empty, cut off or damaged); al"
        assert said in refused(path), content
    torch.save({"weights": torch.zeros(1)}, path)
    assert "holds no model" in refused(path)
    torch.save({"model": {}}, path)
    assert "no options of a training" in refused(path)
    torch.save({"model": {}, "code": Path("x")}, path)
    assert "needs pathlib" in refused(path)
    for edit, says in (
        (lambda s: s.update(cfg="text"), "its cfg holds no options of a training"),
        (lambda s: s["cfg"].pop("model"), "its options name no model"),
        (lambda s: s["cfg"].update(task="text"), "its options name no task"),
        (lambda s: s["cfg"]["task"].pop("_name"), "its options name no task"),
        (lambda s: s["optimizer_history"].clear(), "its optimizer_history is [], not a list of"),
        (
            lambda s: s["optimizer_history"][-1].update(num_updates=None),
            "None}], not a list of updates",
        ),
        (lambda s: s["model"].update({"decoder.version": "x"}), "decoder.version is no tensor"),
        (lambda s: s["cfg"]["task"].update(data="${oc.env:HOME}/x"), "hold ${oc.env:HOME}, which"),
    ):
        assert says in refused(edited(checkpoint, path, edit))


@pytest.mark.parametrize(
    ("where", "value"),
    [
        *[("model.decoder_layers", value) for value in ("x", None, [], {}, -1, 10**30, math.nan)],
        *[("model.dropout", value) for value in ("x", -1, math.inf, [1])],
        *[("model.attention", value) for value in (None, 3, {"a": 1})],
        *[("model._name", value) for value in (3, [], None)],
        *[("task._name", value) for value in (3, {"a": 1}, "x")],
        *[("shared", value) for value in ([], {"a": []}, {"a": "b"})],
        *[("namespaces", value) for value in ([[]], [None], 3)],
        ("model.decoder_embed_dim", 2**20),
        ("task.source_lang", "../../etc"),
        *[("cfg", value) for value in ({}, [], None)],
        *[("updates", value) for value in ("x", None)],
    ],
)
def test_a_bundle_edited(where, value, bundle):
    says = {"cfg": {"[]": "cfg in bundle.json is []", "{}": "its options name no task"}}
    says["updates"] = {"None": "updates in bundle.json is null"}
    file = bundle / "bundle.json"
    text = file.read_text()
    record = json.loads(text)
    *path, key = where.split(".")
    place = record["cfg"][path[0]] if path else record
    place[key] = value
    file.write_text(json.dumps(record))
    try:
        assert says.get(where, {}).get(str(value), "") in refused(bundle)
    finally:
        file.write_text(text)


@pytest.mark.parametrize(
    "task", sampled(["language_model", "translation_model"], ["language_model"])
)
def test_no_file_that_an_option_names_is_opened(task, request, tmp_path):
    """Whatever its name: all options that are text, or nothing, name a file. fairseq evaluates
    some of them; they may be a program."""
    state = request.getfixturevalue("checkpoint" if task == "language_model" else task)
    path = write_bundle(load_checkpoint(state), tmp_path / "bundle")
    file, secret, opened = path / "bundle.json", tmp_path / "secret.txt", []
    secret.write_text("a 1\n")

    def watch(event: str, details: tuple) -> None:
        if event == "open" and str(secret.resolve()) in str(details[0]):
            opened.append(details)

    sys.addaudithook(watch)
    for section in ("model", "task"):
        record = json.loads(text := file.read_text())
        for key, value in record["cfg"][section].items():
            if key == "_name" or not (value is None or isinstance(value, str)):
                continue
            for planted in (str(secret), f"[*open({str(secret)!r})]"):
                record["cfg"][section][key] = planted
                file.write_text(json.dumps(record))
                with contextlib.suppress(UserError):
                    load_checkpoint(path)
                assert not opened, key
            record["cfg"][section][key] = value
        file.write_text(text)


@pytest.fixture(scope="module")
def bundle(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bundle(load_checkpoint(checkpoint), tmp_path_factory.mktemp("b") / "bundle")


def test_damaged_files_of_data(byte_data, checkpoint, tmp_path):
    """Of a model, and of fairseq's data sets: one line names the file."""
    (tmp_path / "dict.txt").write_text((byte_data / "dict.txt").read_text() + "<00> 1\n")
    assert f"{tmp_path}/dict.txt: damaged (Duplicate word" in refused(checkpoint, data=tmp_path)
    (tmp_path / "dict.txt").write_text("only\n")
    assert f"{tmp_path}/dict.txt: damaged" in refused(checkpoint, data=tmp_path)
    for end, size in (("bin", 100), ("idx", 40), ("idx", 12), ("idx", 0)):
        for name in ("train.bin", "train.idx"):
            shutil.copy(byte_data / name, tmp_path / name)
        with open(tmp_path / f"train.{end}", "r+b") as file:
            file.truncate(size)
        with pytest.raises(ValueError, match=rf"{tmp_path}/train\.idx, \.bin: damaged"):
            MMapIndexedDataset(str(tmp_path / "train"))


def test_data(checkpoint, byte_data, word_data, tmp_path):
    assert "--data is x: no such folder" in refused(checkpoint, data="x")
    assert "dict.txt" in refused(checkpoint, data=tmp_path)
    line = refused(checkpoint, data=word_data)
    assert "does not fit" in line
    assert "decoder.embed_tokens.weight" in line
    (tmp_path / "dict.txt").write_bytes(b"\xff\n")
    assert "--data is" in refused(checkpoint, data=tmp_path)
    gone = edited(
        checkpoint, tmp_path / "gone.pt", lambda state: state["cfg"]["task"].update(data="gone")
    )
    assert "--data is gone, as the checkpoint says: no such folder" in refused(gone)
    assert load_checkpoint(gone, data=byte_data).folder == byte_data


def test_other_versions(checkpoint, tmp_path):
    """Options that are new or gone are passed over; what cannot be built is one line."""

    def option(**values: object):
        return lambda state: state["cfg"]["model"].update(values)

    path = tmp_path / "other.pt"
    load_checkpoint(edited(checkpoint, path, option(of_the_future=7)))
    load_checkpoint(edited(checkpoint, path, lambda s: s["cfg"]["model"].pop("stride")))
    line = refused(edited(checkpoint, path, option(attention="of_the_future")))
    assert "of_the_future" in line
    assert "and the plug-in (--user-dir) of its training" in line
    line = refused(edited(checkpoint, path, option(_name="of_the_future")))
    assert "its model of_the_future is unknown" in line
    assert "and the plug-in (--user-dir) of its training" in line
    line = refused(edited(checkpoint, path, lambda s: s["cfg"]["task"].update(_name="future")))
    assert "its task future is unknown" in line
    line = refused(edited(checkpoint, path, lambda s: s["model"].update(new=torch.zeros(1))))
    assert 'Unexpected key(s) in state_dict: "new"' in line


@pytest.mark.parametrize("defect", [AttributeError, TypeError, KeyError, AssertionError])
def test_what_stops_a_model_is_one_line_and_its_cause(defect, checkpoint, monkeypatch):
    """Whatever fairseq raises for damaged options; where it is a defect, its trace is kept."""

    def broken(*_):
        raise defect("a bug")

    monkeypatch.setattr(ClusterformerLanguageModel, "build_model", broken)
    with pytest.raises(UserError, match="does not fit the data in .*a bug") as caught:
        load_checkpoint(checkpoint)
    assert type(caught.value.__cause__) is defect


def test_load_gives_what_a_model_can_do(checkpoint, translation_model, masked_checkpoint):
    language = fairseq_clusterformer.load(checkpoint, device="cpu")
    assert "generate, perplexity, encode" in repr(language)
    assert "clusterformer_lm" in repr(language)
    with pytest.raises(UserError, match="is a language model: it cannot translate; allowed: gen"):
        language.translate(["a"])
    assert not hasattr(language, "translate")
    with pytest.raises(AttributeError, match="has no attribute tranlate"):
        language.tranlate  # noqa: B018
    assert language.perplexity("The cat sat.\n") > 1
    with pytest.raises(UserError, match="the text: it is empty"):
        language.perplexity("")
    (states,) = language.encode("The")
    assert states.shape == (3, 32)
    longer = language.encode(["The cat"])[0]  # causal: what follows changes nothing
    torch.testing.assert_close(longer[:3], states)
    half = fairseq_clusterformer.load(checkpoint, device="cpu", dtype=torch.bfloat16)
    assert half.encode(["The", "cat sat"], pooled=True).dtype == torch.bfloat16

    translator = fairseq_clusterformer.load(translation_model, device="cpu")
    with pytest.raises(UserError, match="it cannot generate; allowed: translate, encode"):
        translator.generate("a")
    (states,) = translator.encode("Der Hund singt laut.")
    assert states.shape[1] == 32
    masked = fairseq_clusterformer.load(masked_checkpoint, device="cpu")
    assert masked.encode(["the cat", "a"], pooled=True).shape == (2, 32)
    with pytest.raises(UserError, match="device is tpu9"):
        fairseq_clusterformer.load(checkpoint, device="tpu9")
