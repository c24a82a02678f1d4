"""Bundles: the same outputs as the checkpoint, without its data, without pickle."""

import json
import os
import shutil
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from fairseq_clusterformer.checkpoints.bundle import write_bundle
from fairseq_clusterformer.checkpoints.load import load_checkpoint
from fairseq_clusterformer.errors import UserError
from tests.cli.in_process import (
    CLASSIFICATION,
    CLUSTERFORMER,
    QUESTIONS,
    trained,
)
from tests.conftest import sampled
from tests.documents.commands import error, run

SAMPLE = ("word_checkpoint", "clustered_translator", "siamese_classifier", "reader")
MORE = ("checkpoint", "dense_checkpoint", "kmeans_checkpoint", "translation_model")
MODELS = sampled((*SAMPLE, *MORE, "masked_checkpoint", "classifier"), SAMPLE)


#: with a memory bank, which serves training alone
BANK = "--attention window+kmeans --kmeans-interval 2 --kmeans-bank-size 300"
kmeans_checkpoint = trained("byte_data", f"{CLUSTERFORMER} {BANK}")
classifier = trained("pair_data", CLASSIFICATION)
siamese_classifier = trained("pair_data", CLASSIFICATION, "--pair-form", "siamese")
reader = trained("qa_data", QUESTIONS)


@torch.no_grad()
def outputs(loaded) -> torch.Tensor:
    """What a model makes of the same few tokens."""
    torch.manual_seed(1)
    tokens = torch.randint(5, 12, (2, 14))
    model, name = loaded.model, loaded.cfg.task._name
    if name == "translation":
        return model(tokens, torch.tensor([14, 14]), tokens)[0]
    if name == "clusterformer_qa":
        tokens[:, 0] = loaded.task.source_dictionary.bos()
        return torch.cat([x.flatten() for x in model(tokens[:, :5], tokens)[0] if x is not None])
    if name == "clusterformer_sentence" and loaded.task.is_siamese:
        return model(tokens, pair_tokens=tokens)[0]
    return model(tokens)[0]


@pytest.mark.parametrize("name", MODELS)
def test_a_bundle_is_its_checkpoint(name, request, tmp_path, monkeypatch):
    """Bit by bit, though the data is gone and nothing is unpickled."""
    path = request.getfixturevalue(name)
    shared = load_checkpoint(path).folder  # which other tests read meanwhile
    loaded = load_checkpoint(path, data=shutil.copytree(shared, tmp_path / "data"))
    wanted = outputs(loaded)
    write_bundle(loaded, tmp_path / "bundle")
    moved = tmp_path / "moved"
    shutil.move(tmp_path / "bundle", moved)  # it has no path of its own inside
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("unpickled"))
    shutil.rmtree(loaded.folder)
    again = load_checkpoint(moved)
    assert again.folder == moved
    assert again.updates == loaded.updates
    assert torch.equal(outputs(again), wanted)
    text = (moved / "bundle.json").read_text()
    assert str(shared) not in text
    assert str(loaded.folder) not in text
    assert str(loaded.path.parent) not in text
    write_bundle(again, tmp_path / "copy")  # of a bundle
    for file in ("bundle.json", "model.safetensors"):
        same = (tmp_path / "copy" / file).read_bytes(), (moved / file).read_bytes()
        assert file == "bundle.json" or same[0] == same[1]


def test_tied_tensors_are_written_once(word_checkpoint, tmp_path):
    """Those of adaptive embeddings and softmax."""
    loaded = load_checkpoint(word_checkpoint)
    write_bundle(loaded, tmp_path / "bundle")
    record = json.loads((tmp_path / "bundle" / "bundle.json").read_text())
    assert len(record["shared"]) == 5
    tied = load_checkpoint(tmp_path / "bundle").model.decoder
    softmax = tied.adaptive_softmax.head.word_proj.weight
    assert softmax is tied.embed_tokens.embeddings[0][0].weight


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8"])
def test_smaller_numbers(dtype, checkpoint, tmp_path):
    """By their rounding, or by half a step of their row at most; buffers keep theirs."""
    loaded = load_checkpoint(checkpoint)
    with torch.no_grad():
        next(p for p in loaded.model.parameters() if p.dim() == 2)[0] = 0
    for name, of in (("whole", "float32"), ("bundle", dtype), ("again", dtype)):
        write_bundle(loaded, tmp_path / name, dtype=of)
        if name == "bundle":
            again = loaded = load_checkpoint(tmp_path / name)
    files = {n: tmp_path / n / "model.safetensors" for n in ("whole", "bundle", "again")}
    share = 0.4 if dtype == "int8" else 0.6
    assert files["bundle"].stat().st_size < share * files["whole"].stat().st_size
    assert files["bundle"].read_bytes() == files["again"].read_bytes()
    whole = load_checkpoint(tmp_path / "whole").model
    for (name, given), mine in zip(
        whole.named_parameters(), again.model.parameters(), strict=True
    ):
        assert mine.dtype == torch.float32
        if dtype != "int8":
            off = given.abs() * torch.finfo(getattr(torch, dtype)).eps + 1e-6
        else:
            off = given.abs().amax(-1, keepdim=True) / 127 * 0.501 * (given.dim() == 2)
        assert ((mine - given).abs() <= off).all(), name
    for given, mine in zip(whole.buffers(), again.model.buffers(), strict=True):
        assert torch.equal(mine, given)
    assert torch.isfinite(outputs(again)).all()


def test_command(checkpoint, tmp_path, capsys):
    out = tmp_path / "new" / "bundle"
    assert run("bundle", checkpoint, out) == 0
    assert f"{out}: 0.1 MB in float32" in capsys.readouterr().out
    assert [path.name for path in out.parent.iterdir()] == ["bundle"]
    assert run("bundle", checkpoint, out, "--force", "--dtype", "float16") == 0
    assert json.loads((out / "bundle.json").read_text())["dtype"] == "float16"

    assert "CHECKPOINT is x: no such file" in error(capsys, "bundle", "x", tmp_path / "y")
    assert not (tmp_path / "y").exists()
    file = out / "bundle.json"
    line = error(capsys, "bundle", checkpoint, file / "bundle")
    assert f"OUT is {file / 'bundle'}: Not a directory; allowed: a place to write to" in line


def test_a_bundle_of_a_bundle_keeps_its_card(lm_bundle, tmp_path, capsys):
    """It never takes the place of the other."""
    out = shutil.copytree(lm_bundle, tmp_path / "out")
    (out / "MODEL_CARD.md").write_text("# Mine\n")
    line = error(capsys, "bundle", out, out, "--dtype", "float16", "--force")
    assert "it is one of the inputs" in line
    assert run("bundle", out, tmp_path / "again") == 0
    assert (tmp_path / "again" / "MODEL_CARD.md").read_text() == "# Mine\n"


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("bundle.json", "{", "damaged"),
        ("bundle.json", "[" * 5000, "damaged .*lists in lists"),
        ("bundle.json", '{"format": 9}', "a bundle of format 9, and this version reads 1"),
        ("model.safetensors", "text", "damaged"),
        ("dict.txt", None, "dict.txt"),
    ],
)
def test_damaged(file, content, says, lm_bundle, tmp_path):
    bundle = shutil.copytree(lm_bundle, tmp_path / "bundle")
    (bundle / file).unlink()
    if content is not None:
        (bundle / file).write_text(content)
    assert_refused(bundle, says)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda tensors, name: {name: tensors[name][:-1].clone()}, "damaged"),
        (lambda tensors, name: {name.removesuffix(":scale"): None}, "damaged"),
        (lambda tensors, name: {name: None}, "of whole numbers"),
        (lambda tensors, name: {name: tensors[name] * torch.nan}, "not finite"),
    ],
)
def test_damaged_int8(change, says, checkpoint, tmp_path):
    write_bundle(load_checkpoint(checkpoint), tmp_path / "bundle", dtype="int8")
    tensors = load_file(file := tmp_path / "bundle" / "model.safetensors")
    name = next(name for name in tensors if name.endswith(":scale"))
    tensors |= change(tensors, name)
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, file)
    assert_refused(tmp_path / "bundle", says)


def assert_refused(bundle: Path, says: str) -> None:
    with pytest.raises(UserError, match=says) as caught:
        load_checkpoint(bundle)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("command", [["bundle"], ["export", "--to", "transformers"]])
@pytest.mark.parametrize("task", ["multilingual_translation", "denoising"])
def test_a_model_of_another_task(command, task, checkpoint, tmp_path, capsys):
    state = torch.load(checkpoint, weights_only=True)
    state["cfg"]["task"] = Namespace(_name=task, data=str(tmp_path))
    torch.save(state, tmp_path / "other.pt")
    line = error(capsys, *command, tmp_path / "other.pt", tmp_path / "out")
    assert f"other.pt: of the task {task}; allowed: a model of the task language" in line


@pytest.mark.parametrize("name", ["MODEL_CARD.md", "dict.txt", "label"])
def test_links_out_of_a_bundle_are_not_followed(name, lm_bundle, tmp_path, capsys):
    bundle, secret = tmp_path / "bundle", tmp_path / "secret"
    shutil.copytree(lm_bundle, bundle)
    (bundle / "inside").symlink_to("bundle.json")
    (bundle / "loop").symlink_to("loop")
    load_checkpoint(bundle)
    (bundle / name).unlink(missing_ok=True)
    secret.write_text("secret")
    (bundle / name).symlink_to(secret)
    line = error(capsys, "bundle", bundle, tmp_path / "copy")
    assert f"{name} is a link that leads out of it; allowed: " in line
    (bundle / name).unlink()
    os.mkfifo(bundle / name)
    line = error(capsys, "bundle", bundle, tmp_path / "copy")
    assert f"{name} is a pipe or a device, and no file; allowed: a folder of files" in line
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize("name", ["calibration.json", "prepared.json", "dict.txt", "label"])
def test_links_out_of_a_data_folder_are_not_followed(name, checkpoint, byte_data, tmp_path):
    """What they name is neither read nor copied into a bundle or an export."""
    shutil.copytree(byte_data, data := tmp_path / "data")
    (secret := tmp_path / "secret").mkdir()
    (secret / "dict.txt").write_text("secret")
    place = data / name
    place.unlink(missing_ok=True)
    place.symlink_to(secret if name == "label" else secret / "dict.txt")
    with pytest.raises(UserError, match="is a link that leads out of it; allowed: a folder"):
        write_bundle(load_checkpoint(checkpoint, data=data), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_subwords_of_an_older_version_are_in_the_bundle(checkpoint, byte_data, tmp_path):
    shutil.copytree(byte_data, data := tmp_path / "data")
    (data / "bpe.codes").write_text("#version: 0.2\n")
    write_bundle(load_checkpoint(checkpoint, data=data), tmp_path / "out")
    assert (tmp_path / "out" / "bpe.codes").read_text() == "#version: 0.2\n"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"decoder_layers": 10**6}, "decoder_layers is 1000000; allowed: at most"),
        ({"short_convolution": 10**6}, "000000], which is not in the file"),
        ({"max_target_positions": 2**31 - 1}, "max_target_positions is 2147483647"),
        ({"decoder_ffn_embed_dim": 10**9}, r"a tensor of \[1000000000, \d+\], more than"),
        ({"attention": "neural(clusters=1000000000)"}, r"a tensor of \[1000000000.*more than"),
        ({"adaptive_softmax_cutoff": "1,2"}, "does not fit"),
        ({"data": ["a", {"b": "x${oc.env:HOME}"}]}, r"its options hold \$\{oc.env:HOME\}, "),
    ],
)
def test_options_of_a_bundle_ask_for_no_more_than_it_has(changes, says, lm_bundle, tmp_path):
    edited(lm_bundle, tmp_path / "bundle", changes)
    assert_refused(tmp_path / "bundle", says)


def test_a_bundle_opens_no_path_and_its_task_is_a_dictionary(lm_bundle, tmp_path):
    edited(lm_bundle, tmp_path / "a", {"decoder_embed_path": str(tmp_path / "nowhere")})
    load_checkpoint(tmp_path / "a")
    edited(lm_bundle, tmp_path / "b", {}, namespaces=["model", "task"])
    with pytest.raises(UserError, match="its task is a namespace; allowed: a dictionary"):
        load_checkpoint(tmp_path / "b")


def edited(bundle: Path, copy: Path, changes: dict, **record) -> None:
    """Copy a bundle with other options of its model."""
    shutil.copytree(bundle, copy)
    found = json.loads((copy / "bundle.json").read_text()) | record
    found["cfg"]["model"] |= changes
    (copy / "bundle.json").write_text(json.dumps(found))
