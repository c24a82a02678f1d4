"""The benchmarks of encoders, of parts, of readers, of generation and of decoding run, and print
what they measured."""

import json
import math
from argparse import Namespace

import pytest
import torch

from fairseq_clusterformer.attention import MultiheadAttention
from fairseq_clusterformer.attention.options import ClusterOptions
from scripts.benchmarks import common, encoders, generation, parts, training
from scripts.benchmarks import reader as benchmark_reader
from tests.conversion.dense import TEXT, llama
from tests.documents.commands import run

XLQA = "--user-dir examples/xlqa"
TINY = "--layers 1 --embed-dim 16 --heads 2 --ffn 16 --window 8 --clusters 3 --vocabulary 40"
TINY = f"{TINY} --repeats 1 --device cpu --lengths 24".split()
WHOLE = pytest.mark.whole


@pytest.fixture(autouse=True)
def _fast(monkeypatch):
    """In this process, with few words."""
    monkeypatch.setattr(common, "in_own_process", lambda measure, **request: measure(**request))
    monkeypatch.setattr(encoders, "WORDS", 500)
    monkeypatch.setattr(benchmark_reader, "WORDS", 500)


@WHOLE
def test_all_encoders_have_times_and_memory(tmp_path, capsys):
    models = ["full", "etc", encoders.BLOCKS, "window+taught"]
    line = "--lengths 128 256 --parts 4 --size tiny --repeats 1 --device cpu --impl blocks"
    arguments = [*line.split(), "--models", *models, "--json", str(tmp_path / "r.json")]
    assert encoders.main(arguments) == 0
    rows = json.loads((tmp_path / "r.json").read_text())["rows"]
    names = [(row["model"], row["tokens"]) for row in rows]
    assert names == [(model, length) for model in models for length in (128, 256)]
    assert all(row["seconds"] > 0 and row["peak MiB"] > 100 for row in rows)
    seconds = [row["seconds"] for row in rows]
    assert rows[3]["times half the length"] == pytest.approx(seconds[3] / seconds[2])
    assert rows[2]["times as fast as full"] == pytest.approx(seconds[0] / seconds[2])
    assert len(capsys.readouterr().out.splitlines()) == 2 + 8


@WHOLE
def test_parts_of_both_models(capsys, tmp_path):
    path = tmp_path / "rows.json"
    words = [*TINY, "--attention", "window+gated", "--json", str(path)]
    assert parts.main(words) == 0
    rows = json.loads(path.read_text())["rows"]
    for model in (training.DENSE, "window+gated"):
        *each, whole = [row for row in rows if row["model"] == model]
        absent = {"routing"} if model == training.DENSE else set()
        assert {row["part"] for row in each} == {*parts.ORDER} - absent
        for row in each:
            assert row["forward ms"] > 0
            assert (row["backward ms"] > 0) == (row["part"] != parts.OUTSIDE)
        assert math.isclose(sum(row["share of the update"] for row in each), 1)
        both = sum(row["forward ms"] + row["backward ms"] for row in each)
        assert math.isclose(both, whole["forward ms"])
    assert "| window+gated | 24 | routing |" in capsys.readouterr().out


@WHOLE
def test_readers(capsys):
    """By lengths and kinds, and how long a second question takes."""

    def table(line: str) -> list[dict[str, str]]:
        assert benchmark_reader.main(f"{line} --repeats 1 --device cpu".split()) == 0
        head, _, *rows = (
            [cell.strip() for cell in row.strip("| ").split("|")]
            for row in capsys.readouterr().out.splitlines()
        )
        return [dict(zip(head, row, strict=True)) for row in rows]

    rows = table("--lengths 300 600")
    short, long = (float(row["seconds"]) for row in rows)
    assert rows[0]["times half the length"] == rows[0]["second"] == "-"
    assert abs(float(rows[1]["times half the length"]) - long / short) < 0.5
    rows = table(f"{XLQA} --arch qanet_reader_tiny --attention full window+taught --lengths 400")
    assert [row["attention"] for row in rows] == ["full", "window+taught"]
    assert rows[0]["times as fast as full"] == "1.00"
    (bidaf,) = table(f"{XLQA} --arch bidaf_reader_tiny --lengths 400")
    assert float(bidaf["second"]) < float(bidaf["seconds"])


@pytest.mark.parametrize("attention", [None, "neural"])
def test_the_model_is_as_the_options_say(attention):
    args = Namespace(arch="clusterformer_reader_tiny", clusters=7, impl="reference", device="cpu")
    built = benchmark_reader.make_reader(args, attention)
    own = [module for module in built.modules() if isinstance(module, MultiheadAttention)]
    assert {module.impl for module in own} == {"reference"}
    options = [heads.options for module in own for heads in module.kinds]
    assert {of.clusters for of in options if isinstance(of, ClusterOptions)} == {7}


@WHOLE
def test_generation(capsys):
    line = "--lengths 6 --sentences 1 --beam 2 --repeats 1"
    assert generation.main(line.split()) == 0
    assert capsys.readouterr().out.splitlines()[2].startswith("| 6 | 1 | 2 | ")


@WHOLE
def test_decoding(tmp_path):
    pytest.importorskip("fairseq_clusterformer.hf", exc_type=ImportError)
    from scripts.benchmarks import decoding

    torch.manual_seed(3)
    dense, checkpoint = tmp_path / "dense", tmp_path / "ours" / "checkpoint.pt"
    llama(dense)
    (text := tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    words = ["--attention", "taught(window=128,clusters=1,gap=0)", "--near-window", 8]
    words += ["--text", text, "--updates", 0, "--tokens", 500]
    assert run("convert", dense, checkpoint.parent, *words) == 0
    words = [checkpoint, "--dense", dense, "--text", text, "--lengths", 140, 280, "--steps", 2]
    out = tmp_path / "record.json"
    words += ["--repeats", 1, "--threads", 1, "--json", out]
    assert decoding.main([*map(str, words)]) == 0
    rows = json.loads(out.read_text())["rows"]
    found = [(row["tokens"], row["model"]) for row in rows]
    assert found == [(n, model) for n in (140, 280) for model in decoding.MODELS]
    ratio = rows[0]["ms per token"] / rows[1]["ms per token"]
    assert rows[1]["tokens times as fast"] == pytest.approx(ratio)
    assert rows[3]["cache MiB"] < 1.2 * rows[1]["cache MiB"]  # rings
    assert rows[2]["cache MiB"] > 1.9 * rows[0]["cache MiB"]
