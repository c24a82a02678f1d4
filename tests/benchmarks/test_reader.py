"""The benchmarks of the reader and of generation run, and print what they measured."""

from scripts.benchmarks import common, generation
from scripts.benchmarks import reader as benchmark_reader


def test_lengths(capsys, monkeypatch) -> None:
    monkeypatch.setattr(common, "in_own_process", lambda measure, **request: measure(**request))
    monkeypatch.setattr(benchmark_reader, "WORDS", 500)
    line = "--lengths 300 600 --repeats 1 --device cpu"
    assert benchmark_reader.main(line.split()) == 0
    rows = [row.split("|") for row in capsys.readouterr().out.splitlines()]
    assert [row[1].strip() for row in rows] == ["tokens", "---", "300", "600"]
    assert float(rows[3][2]) > 0
    assert rows[2][3].strip() == "-"
    assert abs(float(rows[3][3]) - float(rows[3][2]) / float(rows[2][2])) < 0.5


def test_generation(capsys) -> None:
    line = "--lengths 6 --sentences 1 --beam 2 --repeats 1"
    assert generation.main(line.split()) == 0
    assert capsys.readouterr().out.splitlines()[2].startswith("| 6 | 1 | 2 | ")
