"""The recall task: its answers, that no window reaches them, and the command line."""

import json

import pytest
import torch

from examples.language_model import recall as task
from fairseq_clusterformer.attention import Batch
from fairseq_clusterformer.attention.inspect import seen_keys
from fairseq_clusterformer.attention.layout import recent_layouts
from fairseq_clusterformer.errors import UserError

PAIRS, PAIRS_END, SYMBOLS, LENGTH = 8, 40, 16, 96  # the defaults


def rows_of(count: int, **setting) -> task.Rows:
    setting = task.Setting("full", **setting)
    return task.TASKS[setting.task](setting, count, torch.Generator().manual_seed(3))


def test_answers_are_the_values_of_the_asked_keys():
    for row, answers, pairs_at, _ in zip(*(t.tolist() for t in rows_of(200)), strict=True):
        places = [i for i in range(PAIRS_END) if SYMBOLS <= row[i] < 2 * SYMBOLS]  # of keys
        place_of, queries = {row[i]: i + 1 for i in places}, row[-PAIRS:]
        values = {row[i + 1] for i in places}
        assert len(place_of) == len(values) == len(places) == PAIRS
        assert max(values) < SYMBOLS
        assert sorted(queries) == sorted(place_of)
        assert pairs_at == [place_of[query] for query in queries]
        assert answers == [row[at] for at in pairs_at]
        assert min(row[PAIRS_END:-PAIRS]) >= 2 * SYMBOLS  # noise


def test_rows_of_zoology():
    more = {"task": "mqar", "length": 256, "pairs": 16}
    rows, half = rows_of(400, **more), task.MQAR_WORDS // 2
    keys, at = rows.tokens[:, :32:2], rows.queries_at
    assert int(keys.min()) >= half > int(rows.answers.max())
    assert all(len(set(row)) == 16 for row in [*keys.tolist(), *at.tolist()])
    assert torch.equal(rows.tokens.gather(1, rows.pairs_at), rows.answers)
    assert torch.equal(rows.tokens.gather(1, rows.pairs_at - 1), keys)
    assert torch.equal(rows.tokens.gather(1, at), keys)
    assert 32 == int(at.min()) < int(at.max()) < 256
    near = (at < 32 + 28).float().mean()  # without the power law, an eighth
    assert 0.4 < near < 0.8
    drawn, setting = torch.Generator().manual_seed(0), task.Setting("full", **more)
    sizes = {task.training_rows(setting, drawn)[0].shape[1] for _ in range(30)}
    assert sizes == {64, 128, 256}


def test_halved_rows_have_as_many_tokens_and_queries():
    setting, drawn = task.Setting("near", halvings=2, batch=4), torch.Generator().manual_seed(0)
    rows = [task.training_rows(setting, drawn) for _ in range(40)]
    found = {(*each.tokens.shape, *each.answers.shape) for each in rows}
    assert found == {(4, 96, 4, 8), (8, 48, 8, 4), (16, 24, 16, 2)}


def test_no_window_of_the_defaults_reaches_a_pair():
    rows = rows_of(20)
    reach = task.LAYERS * (task.Setting("full").attention_window - 1)
    assert reach <= LENGTH - PAIRS - PAIRS_END
    changed, at = rows.tokens.clone(), rows.queries_at
    changed[:, :PAIRS_END] = rows.tokens.roll(1, 0)[:, :PAIRS_END]
    for kind, moves in (("window", False), ("near", False), ("full", True)):
        net = task.Model(task.Setting(kind))
        same = torch.equal(net(rows.tokens, at)[0], net(changed, at)[0])
        assert same != moves, kind


def test_pairs_seen_and_what_decoding_keeps(monkeypatch):
    """Keys and values of two layers: all of them, or those that windows and clusters show."""
    monkeypatch.setattr(task, "TEST_ROWS", 20)
    kinds = ("full", 96, 1.0), ("window", 24, 0.0), ("near+neural", (8 + 8 * 24) / 2, None)
    for kind, tokens, share in kinds:
        model = task.Model(task.Setting(kind))
        assert model.state_size() // (2 * 2 * 64) == tokens
        result = task.evaluate(model)
        assert result["state"] == model.state_size()
        if share is not None:
            assert result["sees its pair"] == result["sees another pair"] == [share, share]
    model = task.Model(task.Setting("near+taught"))  # what routes looks back in training, too
    assert model.train().state_size() == model.eval().state_size()

    # Each pair in the cluster of its query, and of no other: own 1, another 0.
    rows = rows_of(20)
    clusters, queries = torch.full((20, 1, LENGTH), PAIRS), torch.arange(PAIRS).expand(20, -1)
    clusters[:, 0].scatter_(1, rows.pairs_at, queries)
    clusters[:, 0, -PAIRS:] = queries
    (layout,) = recent_layouts(clusters, PAIRS + 1, None, causal=True, batch=Batch())
    assert task.pairs_seen([seen_keys(layout)], rows) == (1.0, 0.0)


def test_the_command_trains_and_writes_its_result(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(task, "TEST_ROWS", 16)
    path = tmp_path / "recall.json"
    words = ["near+neural", "--steps", "2", "--cluster-normalizer", "running"]
    assert task.main([*words, "--json", str(path)]) == 0
    result = json.loads(path.read_text())
    assert result["curve"] == [[2, result["accuracy"]]]
    assert all(1.0 <= number <= 8.0 for number in result["effective clusters"])
    assert f"accuracy {result['accuracy']:.3f} after 2 updates" in capsys.readouterr().out


MISTAKES = {
    "neurall": "KIND is neurall",
    "near --pairs 17": "--pairs is 17; allowed: 2 to 16",
    "near --length 47": "--length is 47; allowed: 48 or more",
    "near --task mqar --length 31": "--length is 31; allowed: 32 or more",
    "near --task mqr": "--task is mqr; allowed: recall, mqar",
    "near --copying-start --short-convolution 2": "a short convolution of 2; allowed: caus",
    "near --halvings 3": "--halvings is 3; allowed: 0, and with --task recall",
}


@pytest.mark.parametrize("arguments", MISTAKES)
def test_bad_input_is_one_line(monkeypatch, arguments):
    monkeypatch.setattr(task, "training_rows", lambda *_: pytest.fail("trained"))
    with pytest.raises(UserError, match=MISTAKES[arguments]):
        task.main(arguments.split())
