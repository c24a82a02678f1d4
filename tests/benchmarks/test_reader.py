"""The benchmarks of the reader and of generation run, and print what they measured."""

from argparse import Namespace

import pytest

from fairseq_clusterformer.attention import MultiheadAttention
from fairseq_clusterformer.attention.options import ClusterOptions
from scripts.benchmarks import common, generation
from scripts.benchmarks import reader as benchmark_reader

XLQA = "--user-dir examples/xlqa"


@pytest.fixture
def table(capsys, monkeypatch):
    """Runs the benchmark of readers in this process, and returns its rows by columns."""
    monkeypatch.setattr(common, "in_own_process", lambda measure, **request: measure(**request))
    monkeypatch.setattr(benchmark_reader, "WORDS", 500)

    def run(line: str) -> list[dict[str, str]]:
        assert benchmark_reader.main(f"{line} --repeats 1 --device cpu".split()) == 0
        head, _, *rows = (
            [cell.strip() for cell in row.strip("| ").split("|")]
            for row in capsys.readouterr().out.splitlines()
        )
        return [dict(zip(head, row, strict=True)) for row in rows]

    return run


def test_lengths(table):
    rows = table("--lengths 300 600")
    assert [row["tokens"] for row in rows] == ["300", "600"]
    short, long = (float(row["seconds"]) for row in rows)
    assert short > 0
    assert rows[0]["times half the length"] == rows[0]["second"] == "-"
    assert abs(float(rows[1]["times half the length"]) - long / short) < 0.5


def test_kinds_and_second_questions(table):
    rows = table(f"{XLQA} --arch qanet_reader_tiny --attention full window+taught --lengths 400")
    assert [row["attention"] for row in rows] == ["full", "window+taught"]
    assert all(float(row["second"]) > 0 for row in rows)
    assert rows[0]["times as fast as full"] == "1.00"
    (bidaf,) = table(f"{XLQA} --arch bidaf_reader_tiny --lengths 400")
    assert float(bidaf["second"]) < float(bidaf["seconds"])


@pytest.mark.parametrize("attention", [None, "neural"])
def test_the_model_is_as_the_options_say(attention, monkeypatch):
    monkeypatch.setattr(benchmark_reader, "WORDS", 500)
    args = Namespace(arch="clusterformer_reader_tiny", clusters=7, impl="reference", device="cpu")
    built = benchmark_reader.make_reader(args, attention)
    own = [module for module in built.modules() if isinstance(module, MultiheadAttention)]
    assert {module.impl for module in own} == {"reference"}
    options = [heads.options for module in own for heads in module.kinds]
    assert {of.clusters for of in options if isinstance(of, ClusterOptions)} == {7}


def test_generation(capsys):
    line = "--lengths 6 --sentences 1 --beam 2 --repeats 1"
    assert generation.main(line.split()) == 0
    assert capsys.readouterr().out.splitlines()[2].startswith("| 6 | 1 | 2 | ")
