"""ListOps: values worked out by hand and by another reading, and data that can be prepared."""

import json
import random

import pytest

from fairseq_clusterformer.cli.main import main as clusterformer
from scripts.experiments import listops


def worked_out(text: str) -> int:
    """By a stack, instead of a recursion."""
    stack: list[list] = [[]]
    for token in text.split():
        if token.startswith("["):
            stack.append([token])
        elif token == "]":
            name, *values = stack.pop()
            values.sort()
            half = len(values) // 2
            middle = values[half] if len(values) % 2 else (values[half - 1] + values[half]) // 2
            of = {"[MAX": values[-1], "[MIN": values[0], "[MED": middle, "[SM": sum(values) % 10}
            stack[-1].append(of[name])
        else:
            stack[-1].append(int(token))
    ((value,),) = stack
    return value


def test_values() -> None:
    assert worked_out("[MAX 2 9 [MIN 4 7 ] 0 ]") == 9
    assert worked_out("[SM 5 8 [MED 1 4 3 6 ] ]") == 6
    drawn = listops.expressions(random.Random(1), 20, 200)
    found = [next(drawn) for _ in range(300)]
    assert len({text for _, text in found}) == 300
    for value, text in found:
        assert value == worked_out(text)
        assert 20 <= len(text.split()) <= 200
    assert {value for value, _ in found} == set(range(10))


def test_the_command_and_what_reads_it(tmp_path) -> None:
    line = "--train 40 --valid 10 --test 10 --shortest 30 --longest 90".split()
    assert listops.main([str(tmp_path / "raw"), *line]) == 0
    assert listops.main([str(tmp_path / "again"), *line]) == 0
    files = [(tmp_path / name / "train.tsv").read_text() for name in ("raw", "again")]
    assert files[0] == files[1]
    words = ["prepare", "classification", "text", str(tmp_path / "raw"), str(tmp_path / "data")]
    assert clusterformer([*words, "--tokenised"]) == 0
    facts = json.loads((tmp_path / "data" / "data.json").read_text())
    assert [facts["splits"][split]["examples"] for split in ("train", "valid", "test")] == [
        40,
        10,
        10,
    ]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--shortest 90 --longest 80", "--shortest is 90: --longest is 80; allowed: 4 or more"),
        ("--train none", "--train"),
        ("--train 500 --shortest 4 --longest 4", "only 400 expressions of up to 4 tokens"),
    ],
)
def test_mistakes(line: str, said: str, tmp_path, capsys) -> None:
    try:
        status = listops.main([str(tmp_path / "new"), *line.split()])
    except SystemExit as end:
        status = end.code
    assert status
    assert said in capsys.readouterr().err


def test_a_folder_with_files_stays_as_it_is(tmp_path, capsys) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    assert listops.main([str(tmp_path)]) == 1
    assert "allowed: a new folder, or an empty one" in capsys.readouterr().err
