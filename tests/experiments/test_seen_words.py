"""What a word of a text sees before training."""

from pathlib import Path

import pytest
import torch

from scripts.experiments import seen_words
from tests.cli.sentence_data import write_texts


def seen(*rows: str) -> torch.Tensor:
    """[1, N, N] from a string of 0 and 1 a query."""
    return torch.tensor([[[mark == "1" for mark in row] for row in rows]])


def test_the_means_of_a_text():
    words = torch.tensor([7, 8, 7, 9])
    first = [seen("1100", "0100", "1010", "0001"), seen("1000", "0110", "0010", "0001")]
    second = [seen("0001", "0010", "0001", "0001")]
    result = seen_words.what_is_seen([first, second], words)
    assert result["tokens"] == pytest.approx((2 + 2 + 2 + 1) / 4)
    assert result["words"] == pytest.approx((2 + 2 + 1 + 1) / 4)
    assert result["same word"] == pytest.approx(1 / 3)  # of 0 to 1, 1 to 2 and 2 to 0, the last
    # its own, what the second layer sees, and what the first layer brought to either
    reached = [{0, 1, 3}, {0, 1, 2}, {0, 2, 3}, {3}]
    assert result["reached"] == pytest.approx(sum(map(len, reached)) / 16)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_texts(folder / "20news")
    return folder


def table(capsys) -> dict[str, list[str]]:
    _, _, *rows = capsys.readouterr().out.splitlines()
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    return {name: numbers for name, *numbers in cells}


def test_a_row_for_each_model(data, capsys, monkeypatch):
    monkeypatch.setattr(seen_words, "TEXTS", 1)
    command = ["--data", str(data), "--only", "20news", "--lengths", "6", "6"]
    assert seen_words.main([*command, "--attention", "full", "window+full"]) == 0
    rows = table(capsys)
    assert list(rows) == [
        "Transformer",
        "Reformer",
        "Routing Transformer",
        "window",
        "ClusterFormer",
        "`full`",
        "`window+full`",
    ]
    tokens, _, _, reached = rows["Transformer"]
    assert (tokens, reached) == ("6.0", "100%")  # of the one text that is 6 long
    assert rows["Transformer"] == rows["`full`"]
    assert rows["`window+full`"][0] == "6.0"  # in any head


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "--data {data} --only news",
            "--only is news; allowed: 20news, ",
        ),
        ("--data {data} --only mr", "allowed: a folder with mr/fold0"),
        (
            "--data {data} --only 20news --lengths 900 901",
            "--lengths is 900 901; allowed: lengths of texts in",
        ),
    ],
)
def test_bad_values_are_told(data, capsys, words, message):
    assert seen_words.main(words.format(data=data).split()) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err.splitlines()[-1]
