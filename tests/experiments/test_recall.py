"""The recall task: its answers, that no window reaches them, and the command line."""

import json

import pytest
import torch

from examples.language_model import recall as task
from fairseq_clusterformer.attention import Batch
from fairseq_clusterformer.attention.inspect import seen_keys
from fairseq_clusterformer.attention.layout import recent_layouts

PAIRS, PAIRS_END, SYMBOLS, LENGTH = 8, 40, 16, 96  # the defaults


def rows_of(count=200, **setting):
    generator = torch.Generator().manual_seed(3)
    return task.make_rows(task.Setting("full", **setting), count, generator)


def test_answers_are_the_values_of_the_asked_keys():
    rows = rows_of()
    for row, answers, pairs_at in zip(*(t.tolist() for t in rows[:3]), strict=True):
        value_of, place_of = {}, {}
        for i in range(PAIRS_END):
            if SYMBOLS <= row[i] < 2 * SYMBOLS:  # a key
                assert 0 <= row[i + 1] < SYMBOLS
                assert row[i] not in value_of
                value_of[row[i]], place_of[row[i]] = row[i + 1], i + 1
        queries = row[-PAIRS:]
        assert sorted(queries) == sorted(value_of)
        assert len(set(value_of.values())) == len(value_of) == PAIRS
        assert answers == [value_of[query] for query in queries]
        assert pairs_at == [place_of[query] for query in queries]
        noise = row[PAIRS_END:-PAIRS]
        assert min(noise) >= 2 * SYMBOLS


def test_rows_of_zoology():
    setting = task.Setting("full", task="mqar", length=256, pairs=16)
    rows = task.make_mqar(setting, 400, torch.Generator().manual_seed(3))
    half = task.MQAR_WORDS // 2
    keys = rows.tokens[:, :32:2]
    assert int(keys.min()) >= half
    assert all(len(set(row)) == 16 for row in keys.tolist())
    assert torch.equal(rows.tokens.gather(1, rows.pairs_at), rows.answers)
    assert torch.equal(rows.tokens.gather(1, rows.pairs_at - 1), keys)
    assert torch.equal(rows.tokens.gather(1, rows.queries_at), keys)
    assert int(rows.answers.max()) < half
    at = rows.queries_at
    assert int(at.min()) == 32
    assert int(at.max()) < 256
    assert all(len(set(row)) == 16 for row in at.tolist())
    near = (at < 32 + 28).float().mean()  # without the power law, an eighth
    assert 0.4 < near < 0.8
    sizes = {
        task.training_rows(setting, torch.Generator().manual_seed(i))[0].shape[1]
        for i in range(30)
    }
    assert sizes == {64, 128, 256}


def test_rows_of_a_phone_book():
    setting = task.Setting("full", task="phonebook", length=96, pairs=12)
    rows = task.make_phonebook(setting, 50, torch.Generator().manual_seed(3))
    for row, *of_row in zip(*(t.tolist() for t in rows), strict=True):
        entries = [row[i : i + 6] for i in range(0, 96, 6)]
        numbers = {tuple(entry[:2]): entry[2:] for entry in entries[:12]}
        assert len(numbers) == 12
        assert all(10 <= first < 74 <= last < 138 for first, last in numbers)
        asked = [numbers[tuple(entry[:2])] for entry in entries[12:]]
        answers, pairs_at, queries_at = of_row
        assert answers == sum(asked, [])
        assert [row[at] for at in pairs_at] == answers
        assert max(pairs_at) < 72
        assert [row[at + 1] for at in queries_at] == answers
        assert queries_at == [72 + 6 * i + j for i in range(4) for j in range(1, 5)]


def test_no_window_of_the_defaults_reaches_a_pair():
    rows = rows_of(20)
    first_query = LENGTH - PAIRS
    last_of_pairs = max(i for row in rows.tokens for i in range(first_query) if row[i] < 32)
    reach = task.LAYERS * (task.Setting("full").attention_window - 1)
    assert first_query - last_of_pairs > LENGTH - PAIRS - PAIRS_END >= reach

    changed, at = rows.tokens.clone(), rows.queries_at
    changed[:, :PAIRS_END] = rows.tokens.roll(1, 0)[:, :PAIRS_END]
    for kind, moves in (("window", False), ("near", False), ("full", True)):
        net = task.Model(task.Setting(kind))
        same = torch.equal(net(rows.tokens, at)[0], net(changed, at)[0])
        assert same != moves, kind


def test_pairs_seen_by_dense_and_local_attention(monkeypatch):
    monkeypatch.setattr(task, "TEST_ROWS", 20)
    rows = rows_of(20)
    for kind, share in (("full", 1.0), ("window", 0.0)):
        net = task.Model(task.Setting(kind))
        result = task.evaluate(net)
        assert result["sees its pair"] == result["sees another pair"] == [share, share]

    # Each pair in the cluster of its query, and of no other: own 1, another 0.
    clusters = torch.full((len(rows.tokens), 1, LENGTH), PAIRS)
    queries = torch.arange(PAIRS).expand(len(rows.tokens), -1)
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
    assert 0.0 <= result["accuracy"] < 0.5
    assert result["curve"] == [[2, result["accuracy"]]]
    assert all(1.0 <= number <= 8.0 for number in result["effective clusters"])
    assert f"accuracy {result['accuracy']:.3f} after 2 updates" in capsys.readouterr().out


def test_what_decoding_keeps(monkeypatch):
    """Keys and values of two layers: all of them, or those that windows and clusters show."""
    monkeypatch.setattr(task, "TEST_ROWS", 2)
    for kind, tokens in (("full", 96), ("window", 24), ("near+neural", (8 + 8 * 24) / 2)):
        model = task.Model(task.Setting(kind))
        assert model.state_size() // (2 * 2 * 64) == tokens
        assert task.evaluate(model)["state"] == model.state_size()
    model = task.Model(task.Setting("near+taught"))  # what routes looks back in training, too
    assert model.train().state_size() == model.eval().state_size()


def test_halved_rows_have_as_many_tokens_and_queries():
    setting = task.Setting("near", halvings=2, batch=4)
    drawn = torch.Generator().manual_seed(0)
    found = {
        (*rows.tokens.shape, *rows.answers.shape)
        for rows in (task.training_rows(setting, drawn) for _ in range(40))
    }
    assert found == {(4, 96, 4, 8), (8, 48, 8, 4), (16, 24, 16, 2)}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("neurall", "KIND is neurall"),
        ("full+window+neural", "divides 2"),
        ("near --steps 0", "1 or more"),
        ("near --pairs 17", "--pairs is 17"),
        ("near --length 47", "--length is 47"),
        ("near --task mqar --length 31", "4 times --pairs or more"),
        ("near --task mqr", "--task is mqr; allowed: recall, mqar, phonebook"),
        ("near --task phonebook --length 60 --pairs 10", "--length is 60; allowed: 66 or more"),
        (
            "near --copying-start --short-convolution 2",
            "a short convolution of 2; allowed: causal",
        ),
        ("near --halvings 3", "--halvings is 3; allowed: 0, and with --task recall"),
        ("near --seed one", "a whole number"),
    ],
)
def test_bad_input_is_one_line(capsys, monkeypatch, arguments, said):
    monkeypatch.setattr(task, "make_rows", lambda *_: pytest.fail("trained"))
    try:
        status = task.main(arguments.split())
    except SystemExit as end:  # argparse
        status = end.code
    assert status not in (0, None)
    last = capsys.readouterr().err.splitlines()[-1]
    assert "error:" in last
    assert said in last
