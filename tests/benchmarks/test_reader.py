"""The benchmarks of the reader and of generation run, and print what they measured."""

from scripts.benchmarks import generation
from scripts.benchmarks import reader as benchmark_reader


def test_lengths(capsys) -> None:
    line = "--lengths 300 600 --width 32 --repeats 1 --device cpu"
    assert benchmark_reader.main(line.split()) == 0
    rows = [row.split("|") for row in capsys.readouterr().out.splitlines()]
    assert [row[1].strip() for row in rows] == ["tokens", "---", "300", "600"]
    assert float(rows[3][2]) > 0
    assert rows[2][3].strip() == "-"
    assert abs(float(rows[3][3]) - float(rows[3][2]) / float(rows[2][2])) < 0.5


def test_kmeans(capsys) -> None:
    line = "--kmeans --states 200 --clusters 5 --kmeans-width 8 --device cpu"
    assert benchmark_reader.main(line.split()) == 0
    assert capsys.readouterr().out.startswith("200 states of 8 in 5 clusters: ")


def test_generation(capsys) -> None:
    line = "--lengths 6 --sentences 1 --beam 2 --repeats 1 --attention-window 4"
    assert generation.main(line.split()) == 0
    assert capsys.readouterr().out.splitlines()[2].startswith("| 6 | 1 | 2 | ")
