"""What a word of a text sees before training."""

import sys
from pathlib import Path

import pytest
import torch

from tests.cli.sentence_data import write_texts

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import seen_words  # noqa: E402


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
    # the first, third and fourth see the fourth's, which is of itself; the second the third's
    assert result["reached"] == pytest.approx((1 + 2 + 1 + 1) / 16)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_texts(folder / "20news")
    return folder


def test_a_row_for_each_model(data, capsys):
    command = ["table2", "--data", str(data), "--only", "20news", "--texts", "3"]
    assert seen_words.main([*command, "--attention", "gated"]) == 0
    _, _, *rows = capsys.readouterr().out.splitlines()
    assert [row.split(" | ")[0] for row in rows] == [
        "| Transformer",
        "| Reformer",
        "| Routing Transformer",
        "| window",
        "| ClusterFormer",
        "| gated",
    ]
    assert rows[0].endswith("| 100% |")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "table2 --data {data} --only news",
            "--only is news; allowed: cr, mpqa, mr, subj, 20news",
        ),
        ("table2 --data {data} --only mr", "has no mr/fold0; allowed: a folder"),
        ("table2 --data {data} --only 20news --lengths 900 901", "--lengths is 900 901, which no"),
        ("table2 --data {data} --only 20news --attention no", "'no'"),
        ("table6 --data {data} --only mnist", "choose from 'table2'"),
    ],
)
def test_bad_values_are_told(data, capsys, words, message):
    with pytest.raises(SystemExit) as end:
        seen_words.main(words.format(data=data).split())
    assert end.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
