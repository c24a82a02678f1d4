"""The benchmark of decoding: both models read the same, and the record says how fast."""

import json
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

pytest.importorskip("fairseq_clusterformer.hf", exc_type=ImportError)

from scripts.benchmarks import common, decoding  # noqa: E402
from tests.conversion.dense import TEXT, llama  # noqa: E402
from tests.documents.commands import run  # noqa: E402


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A checkpoint that sees all, its dense model, and a text."""
    folder = tmp_path_factory.mktemp("decoding")
    torch.manual_seed(3)
    llama(folder / "dense")
    (folder / "text.txt").write_text(TEXT, encoding="utf-8")
    words = ["--attention", "taught(window=128,clusters=1,gap=0)", "--near-window", 8]
    words += ["--text", folder / "text.txt", "--updates", 0, "--tokens", 500]
    assert run("convert", folder / "dense", folder / "ours", *words) == 0
    return folder / "ours" / "checkpoint.pt", folder / "dense", folder / "text.txt"


@torch.no_grad()
def test_both_read_the_same(paths):
    args = Namespace(checkpoint=paths[0], dense=paths[1])
    theirs, ours = (of(args, TEXT) for of in decoding.MODELS.values())
    symbols = Tokenizer.from_file(str(paths[1] / "tokenizer.json")).get_vocab_size()
    for part in (slice(40), slice(40, 41), slice(41, 42)):
        # Symbols are numbered in two ways. Besides, ours has some that are never likely.
        wanted = theirs.read(theirs.tokens[None, part])[:symbols].sort().values
        found = ours.read(ours.tokens[None, part]).sort().values[-symbols:]
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)


def test_the_record(paths, tmp_path, monkeypatch):
    monkeypatch.setattr(common, "in_own_process", lambda measure, **request: measure(**request))
    out = tmp_path / "record.json"
    words = [paths[0], "--dense", paths[1], "--text", paths[2], "--lengths", 140, 280]
    words += ["--steps", 2, "--repeats", 1, "--threads", 1, "--json", out]
    assert decoding.main([*map(str, words)]) == 0
    rows = json.loads(out.read_text())["rows"]
    found = [(row["tokens"], row["model"]) for row in rows]
    assert found == [(n, model) for n in (140, 280) for model in decoding.MODELS]
    for theirs, ours in zip(rows[::2], rows[1::2], strict=True):
        assert theirs["prompt times as fast"] == theirs["tokens times as fast"] == 1
        ratio = theirs["ms per token"] / ours["ms per token"]
        assert ours["tokens times as fast"] == pytest.approx(ratio)
    assert rows[3]["cache MiB"] < 1.2 * rows[1]["cache MiB"]  # rings
    assert rows[2]["cache MiB"] > 1.9 * rows[0]["cache MiB"]
