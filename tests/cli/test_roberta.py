"""A reader that starts from a RoBERTa which fairseq has trained."""

import logging
import re
import shutil
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fairseq.data import Dictionary

from fairseq_clusterformer.models.checkpoints import CheckpointError
from fairseq_clusterformer.models.clusterformer_reader import ClusterformerReader
from tests.cli.in_process import ROBERTA_SIZES, letters, load_model, load_state


def reader(data: Path, checkpoint: Path | str, **changes) -> ClusterformerReader:
    values = {
        **ROBERTA_SIZES,
        **{"cluster_layers": "1,3", "num_clusters": 8, "kmeans_bank_size": 50},
        **{"window_size": 44, "window_stride": 40, "window_positions": 64},
        "pretrained": str(checkpoint),
    }
    task = SimpleNamespace(source_dictionary=Dictionary.load(str(data / "dict.txt")))
    model = ClusterformerReader.build_model(Namespace(**{**values, **changes}), task)
    model.load_initial_weights()
    return model.eval()


@torch.no_grad()
@pytest.mark.parametrize(
    "attention",
    [
        {"cluster_attention": "window"},
        {"cluster_attention": "full"},
        {"attention_window": 100},  # one chunk holds every token
    ],
)
def test_a_reader_with_one_window_is_roberta(attention, roberta, byte_data):
    theirs, _ = load_model(roberta, byte_data)
    question, document = letters(byte_data, 3, 12), letters(byte_data, 3, 40)
    expected, _ = theirs(torch.cat([question, document], 1), features_only=True)
    reading = reader(byte_data, roberta, **attention).encoder(question, document)
    states = torch.cat([reading.question[:, 0], reading.document], 1)
    torch.testing.assert_close(states, expected, rtol=0, atol=1e-5)
    assert expected.std() > 0.1


def test_every_tensor_is_accounted_for(roberta, byte_data, caplog):
    with caplog.at_level(logging.INFO):
        model = reader(byte_data, roberta)
    told = {}
    for line in caplog.messages:
        if match := re.fullmatch(rf"{re.escape(str(roberta))}: \d+ tensors (.+?): (.*)", line):
            told[match[1]] = match[2].split(", ")
    assert told.keys() == {"loaded", "starting anew"}
    given, mine = load_state(roberta)["model"], model.state_dict()
    left = [name for name in given if not re.match(r"encoder\.lm_head\.", name)]
    assert len(told["loaded"]) == len(left)
    assert set(told["loaded"]) | set(told["starting anew"]) == set(mine)
    assert all(re.search(r"^vocabulary|^heads\.|\.routers\.", n) for n in told["starting anew"])
    for name in told["loaded"]:
        theirs = given[name.replace("encoder.", "encoder.sentence_encoder.", 1)]
        assert torch.equal(mine[name], theirs[: len(mine[name])] if theirs.dim() else theirs), name


@torch.no_grad()
def test_an_older_roberta(roberta, byte_data, tmp_path):
    """As released in 2019: other names, and one matrix for queries, keys and values."""
    state = load_state(roberta)
    old = {}
    for name, tensor in state["model"].items():
        if match := re.fullmatch(r"(.*self_attn\.)q_proj\.(weight|bias)", name):
            parts = [state["model"][f"{match[1]}{x}_proj.{match[2]}"] for x in "qkv"]
            old[f"{match[1]}in_proj_{match[2]}"] = torch.cat(parts)
        elif not re.search(r"self_attn\.[kv]_proj|version$", name):
            old[name] = tensor
    state["model"] = {
        re.sub("^encoder", "decoder", n).replace("layernorm_embedding", "emb_layer_norm"): t
        for n, t in old.items()
    }
    torch.save(state, tmp_path / "old.pt")
    inputs = letters(byte_data, 1, 5), letters(byte_data, 1, 90)
    new, old = (
        reader(byte_data, path, cluster_attention="full").encoder(*inputs)
        for path in (roberta, tmp_path / "old.pt")
    )
    assert torch.equal(new.document, old.document)


def test_other_files_and_words(roberta, checkpoint, byte_data, tmp_path):
    with pytest.raises(CheckpointError, match="--pretrained is .*: no such file"):
        reader(byte_data, tmp_path / "none.pt")
    with pytest.raises(CheckpointError, match="does not fit the model: .*Missing key"):
        reader(byte_data, checkpoint)
    lines = (byte_data / "dict.txt").read_text().splitlines(keepends=True)
    dictionary = tmp_path / "dict.txt"
    dictionary.write_text("".join(lines[:-1]))  # one word fewer
    with pytest.raises(CheckpointError, match="size mismatch for encoder.embed_tokens.weight"):
        reader(tmp_path, roberta)
    # as many, in another order: the dictionary beside the checkpoint tells
    shutil.copy(roberta, tmp_path / "model.pt")
    shutil.copy(byte_data / "dict.txt", tmp_path)
    reader(byte_data, tmp_path / "model.pt")
    dictionary.write_text("".join([lines[1], lines[0], *lines[2:]]))
    with pytest.raises(CheckpointError, match="another dictionary .word 4 is .*, here "):
        reader(byte_data, tmp_path / "model.pt")
