"""The recall task: its answers, that no window reaches them, and the command line."""

import dataclasses
import importlib
import json
import sys

import pytest
import torch

from fairseq_clusterformer.attention import base
from fairseq_clusterformer.attention.inspect import seen_keys
from fairseq_clusterformer.attention.layout import cluster_layout
from tests.conftest import REPO_ROOT


@pytest.fixture(scope="module")
def task():
    """``recall_model``; the kind that it registers is gone again after these tests, as it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "_KINDS", dict(base._KINDS))
        yield importlib.import_module("scripts.experiments.recall.model")
        del sys.modules["recall_model"]


@pytest.fixture(scope="module")
def recall(task):
    """``recall_task``, the command."""
    yield importlib.import_module("scripts.experiments.recall.task")
    del sys.modules["recall_task"]


@pytest.fixture
def no_training(recall, monkeypatch):
    monkeypatch.setattr(recall, "train", lambda *_: pytest.fail("trained"))


def rows_of(task, count=200, **options):
    return task.make_rows(count, torch.Generator().manual_seed(3), **options)


@pytest.mark.parametrize("value_first", [False, True])
def test_answers_are_the_values_of_the_asked_keys(task, value_first):
    rows = rows_of(task, value_first=value_first)
    for row, answers, pairs_at in zip(*(t.tolist() for t in rows), strict=True):
        value_of, place_of = {}, {}
        for i in range(task.PAIRS_END):
            if task.SYMBOLS <= row[i] < 2 * task.SYMBOLS:  # a key
                at = i - 1 if value_first else i + 1
                assert 0 <= row[at] < task.SYMBOLS
                assert row[i] not in value_of
                value_of[row[i]], place_of[row[i]] = row[at], max(i, at)
        queries = row[-task.PAIRS :]
        assert sorted(queries) == sorted(value_of)
        assert len(set(value_of.values())) == len(value_of) == task.PAIRS
        assert answers == [value_of[query] for query in queries]
        assert pairs_at == [place_of[query] for query in queries]
        noise = row[task.PAIRS_END : -task.PAIRS]
        assert min(noise) >= 2 * task.SYMBOLS


def test_what_is_near_a_query_says_nothing_of_its_answer(task):
    rows = rows_of(task, 4096)
    count = torch.zeros(task.SYMBOLS, task.SYMBOLS)
    queries = rows.tokens[:, -task.PAIRS :] - task.SYMBOLS
    count.index_put_((queries, rows.answers), torch.ones(()), accumulate=True)
    chance = 1 / task.SYMBOLS
    assert (count / count.sum(1, keepdim=True) - chance).abs().max() < 0.03
    by_place = torch.nn.functional.one_hot(rows.answers, task.SYMBOLS).float().mean(0)
    assert (by_place - chance).abs().max() < 0.02


def test_no_window_of_the_defaults_reaches_a_pair(task):
    rows = rows_of(task, 20)
    first_query = task.LENGTH - task.PAIRS
    last_of_pairs = max(i for row in rows.tokens for i in range(first_query) if row[i] < 32)
    assert first_query - last_of_pairs > task.GAP
    assert task.LAYERS * (task.Setting("window").attention_window - 1) <= task.GAP

    changed = rows.tokens.clone()
    changed[:, : task.PAIRS_END] = rows.tokens.roll(1, 0)[:, : task.PAIRS_END]
    for kind, moves in (("window", False), ("near", False), ("full", True)):
        net = task.Model(task.Setting(kind))
        same = torch.equal(net(rows.tokens)[0], net(changed)[0])
        assert same != moves, kind


def test_pairs_seen_by_dense_and_local_attention(task, monkeypatch):
    monkeypatch.setattr(task, "TEST_ROWS", 20)
    rows = rows_of(task, 20)
    for kind, share in (("full", 1.0), ("window", 0.0)):
        net = task.Model(task.Setting(kind))
        result = task.evaluate(net)
        assert result["sees its pair"] == result["sees another pair"] == [share, share]

    # Each pair in the cluster of its query, and of no other: own 1, another 0.
    clusters = torch.full((len(rows.tokens), 1, task.LENGTH), task.PAIRS)
    queries = torch.arange(task.PAIRS).expand(len(rows.tokens), -1)
    clusters[:, 0].scatter_(1, rows.pairs_at, queries)
    clusters[:, 0, -task.PAIRS :] = queries
    layout = cluster_layout(clusters, task.PAIRS + 1, None, causal=True)
    assert task.pairs_seen([seen_keys(layout)], rows) == (1.0, 0.0)


def test_command_line_trains_keeps_and_tabulates(recall, no_training, run_cli, tmp_path, capsys):
    out = tmp_path / "recall.json"
    arguments = "--kinds near+neural --seeds 1 --steps 30 --loss-weights 0.1".split()
    arguments += ["--cluster-normalizer", "running", "--out", str(out)]
    printed = run_cli("scripts/recall_task.py", *arguments, user_dir=None).stdout.splitlines()
    table = [line for line in printed if line.startswith("|")]
    assert len(table) == 3
    assert table[2].startswith("| near+neural | running | 0.1 | 30 | 1 | 0.")
    (result,) = json.loads(out.read_text())
    assert 0.0 <= result["accuracy"] < 0.5
    assert result["curve"] == {"30": result["accuracy"]}
    assert all(1.0 <= number <= 8.0 for number in result["effective clusters"])
    assert "--steps 30" in result["command"]
    assert not list(tmp_path.glob("*.partial"))

    assert recall.main(arguments) == 0  # nothing left to train
    assert capsys.readouterr().out.splitlines() == table


def test_table_has_a_row_for_each_setting(recall):
    def result(setting, accuracy, clusters):
        return {
            "setting": dataclasses.asdict(setting),
            "accuracy": accuracy,
            "effective clusters": clusters,
            "sees its pair": [0.25, 1.0],
            "sees another pair": [0.5, 0.125],
        }

    neural = recall.Setting("neural", "running", 0.5, num_clusters=4)
    results = [
        result(neural, 0.25, [2.0, 3.0]),
        result(recall.Setting("full"), 1.0, []),
        result(neural, 0.75, [3.0, 4.0]),
    ]
    head, _, clustered, dense = recall.table(results).splitlines()
    assert "| num clusters |" in head
    assert "temperature" not in head
    assert clustered == (
        "| neural | running | 0.5 | 4 | 2 | 0.500 (0.250 to 0.750) | 3.0 "
        "| 0.25 (0.50) | 1.00 (0.12) |"
    )
    assert dense == "| full | - | - | 8 | 1 | 1.000 | - | 0.25 (0.50) | 1.00 (0.12) |"


def test_a_run_is_named_by_a_command_that_asks_for_it(recall):
    args = recall.make_parser().parse_args(
        "--kinds near+neural --steps 70 --num-clusters 4 --value-first --loss-weights 0.5".split()
    )
    for setting in recall.settings(args):
        again = recall.command(setting, 7).split()[2:]
        args = recall.make_parser().parse_args(again)
        assert recall.settings(args) == [setting]
        assert args.seeds == [7]


@pytest.mark.parametrize(
    ("arguments", "option", "value", "allowed"),
    [
        ("--kinds neurall", "--kinds", "'neurall'", "near"),
        ("--kinds full+window+neural", "--kinds", "3 kinds", "divides 2"),
        ("--kinds window*0", "--kinds", "'window*0'", "1 up"),
        ("--steps 0", "--steps", "'0'", "1 or more"),
        ("--steps many", "--steps", "'many'", "a whole number"),
        ("--seeds 0", "--seeds", "'0'", "1 or more"),
        ("--loss-weights nan", "--loss-weights", "'nan'", "a number, 0 or more"),
        ("--num-clusters 0", "--num-clusters", "'0'", "1 or more"),
        ("--kinds window --attention-window 60", "--attention-window", "60", "25 or less"),
        ("--cluster-temperature 0", "--cluster-temperature", "0", "above 0"),
        ("--cluster-normalizer best", "--cluster-normalizer", "'best'", "running"),
        ("--out /nowhere/x.json", "--out", "/nowhere/x.json", "a folder that exists"),
    ],
)
@pytest.mark.usefixtures("no_training")
def test_bad_input_is_told_in_one_last_line(recall, capsys, arguments, option, value, allowed):
    try:
        status = recall.main(arguments.split())
    except SystemExit as end:  # argparse
        status = end.code
    assert status not in (0, None)
    last = capsys.readouterr().err.splitlines()[-1]
    assert "error:" in last
    for part in (option, value, allowed):
        assert part in last


@pytest.mark.parametrize("text", ["", "{}", "[1]", '[{"setting": {"x": 2}}]', "\0"])
@pytest.mark.usefixtures("no_training")
def test_a_file_of_something_else_is_refused_and_kept(recall, capsys, tmp_path, text):
    path = tmp_path / "out.json"
    path.write_text(text)
    assert recall.main(["--out", str(path)]) == 1
    assert f"--out is {path}; allowed:" in capsys.readouterr().err.splitlines()[-1]
    assert path.read_text() == text


def test_results_older_than_exploration_are_of_runs_without(recall):
    results = recall.load(REPO_ROOT / "examples" / "language_model" / "results" / "recall.json")
    assert {setting.cluster_exploration for setting, _ in results} == {0.0}
    assert [setting.kind for setting, _ in results].count("near+neural") == 3
