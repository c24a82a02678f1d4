"""OpenKP's files: what is read, what is left out, and the folder that is made."""

import json
import re
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest

from fairseq_clusterformer.cli.main import program
from fairseq_clusterformer.corpora.question_answering.records import Drops
from fairseq_clusterformer.data.subwords import Tokens
from openkp import prepare
from openkp.pages import PageData, encode
from openkp.records import PageRecord, openkp, page_record, phrase_places
from openkp.tests.web_pages import HEADING, PLAIN, page, pages_with_headings, write_pages
from tests.corpora.commands import record_of
from tests.data.subword_models import write_gpt2

NODES = [("Star Trek Discovery Season 1", HEADING), ("the star  trek cast", PLAIN)]


def test_a_page_written_out() -> None:
    """Between two blanks there is an empty word, which is no word here; VDOM may be a list."""
    item = page(NODES, ["star Trek", "Season 1", "STAR trek", "no such", ""])
    record = page_record(item)
    assert record.words == tuple("Star Trek Discovery Season 1 the star trek cast".split())
    assert record.nodes == ((0, 5), (5, 9))
    assert record.visual == (tuple(map(int, HEADING)), tuple(map(int, PLAIN)))
    assert record.phrases == (("star", "trek"), ("season", "1"), ("no", "such"))
    assert phrase_places(record, record.nodes) == [(0, 2), (3, 2)]
    assert page_record(item | {"VDOM": json.loads(item["VDOM"])}) == record
    del item["KeyPhrases"]
    assert page_record(item).phrases is None


def test_a_phrase_stands_in_one_node_as_whole_words() -> None:
    record = page_record(page([("a bc", PLAIN), ("d a", PLAIN)], ["bc d", "a b", "d a", "c"]))
    assert phrase_places(record, record.nodes) == [(2, 2)]
    assert phrase_places(record, ((0, 4),)) == [(1, 2), (2, 2)]


def changed(**node: object) -> dict:
    """A page with another second node."""
    item = page(NODES, ["star trek"])
    vdom = json.loads(item["VDOM"])
    vdom[1] |= node
    return item | {"VDOM": json.dumps(vdom)}


@pytest.mark.parametrize(
    ("item", "reason", "detail"),
    [
        (page(NODES, ["x"]) | {"VDOM": "[{"}, "broken JSON", "Expecting property name"),
        (page(NODES, ["x"]) | {"VDOM": "{}"}, "no VDOM", "VDOM is {}; allowed: list"),
        (page(NODES, ["x"]) | {"VDOM": "[]"}, "nodes that do not", "ends at word 0; allowed: 10"),
        (changed(end_idx=11), "nodes that do not", r"node 1 of a.com is words \[5, 11\); allowed"),
        (changed(start_idx="5"), "no start_idx", 'start_idx is "5"; allowed: int'),
        (changed(text="the star"), "node of another text", "node 1 of a.com is 'the star'"),
        (changed(feature=PLAIN[:10]), "feature that is none", "of node 1 of a.com .*: 20 numbers"),
        (changed(feature=[float("nan")] * 20), "feature that is none", "is .nan, nan"),
        (changed(feature=[0.5] * 20), "feature that is none", "those at 4, 5, .* 0 or 1"),
        (page(NODES, None), "no keyphrase in the text", "none of a.com"),
        (page(NODES, ["trek the"]), "no keyphrase in the text", "'trek the' of a.com"),
        (page(NODES, None) | {"KeyPhrases": ["a"]}, "no keyphrase", 'is "a"; allowed: list'),
        (page([(" ", PLAIN)], ["x"]), "empty text", "text of a.com"),
        (page([("\ud800", PLAIN)], ["x"]), "not valid Unicode", "half a character"),
        ([], "no url", "url is null"),
    ],
)
def test_what_cannot_be_used_is_named(item, reason: str, detail: str, tmp_path: Path) -> None:
    path = write_pages(tmp_path / "pages.jsonl", [page(NODES, ["star trek"], "b.com"), item])
    drops = Drops()
    assert [record.id for record in openkp(path, drops)] == ["b.com"]
    ((found, (example,)),) = drops.examples.items()
    assert found.startswith(reason)
    assert example.startswith(f"{path}: line 2: ")
    assert re.search(detail, example), example


@pytest.mark.parametrize(
    ("words", "spans", "starts"),
    [
        ("ab c", [(0, 1), (1, 2), (2, 4)], [0, 2]),
        ("ab c", [(0, 0), (0, 2), (2, 3), (3, 4)], [0, 2]),
        ("ab c", [(0, 2), (2, 2), (3, 4)], [0, 1]),
        ("a b c", [(0, 1), (3, 5)], [0, 1, 1]),  # a model that leaves out the middle one
    ],
)
def test_tokens_of_words(words: str, spans: list, starts: list[int]) -> None:
    """The blank before a word is the word's, whether it is a token or a part of one."""
    given = words.split()
    record = PageRecord("a", tuple(given), ((0, len(given)),), ((0,) * 20,), None)
    tokens = Tokens(np.arange(len(spans)), *np.array(spans).T)
    model = Namespace(encode=lambda _: tokens)
    assert encode(record, model=model, to_index=range(9))[0].starts.tolist() == starts


def run(*words: object) -> int:
    """``prepare.py WORDS``; a string may be several, between blanks."""
    given = [w for word in words for w in (word.split() if type(word) is str else [str(word)])]
    return program(prepare.NAME, prepare.main, given)


def test_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Pages of a test set may have no keyphrases; of one address, the first is read."""
    items = pages_with_headings(6)
    items[4] = page(NODES, ["no such phrase", "STAR TREK"], "star.com")
    train = write_pages(tmp_path / "OpenKPTrain.jsonl", [*items, {"url": "broken"}])
    write_pages(tmp_path / "OpenKPDev.jsonl", [page(NODES, ["x"])])
    write_pages(tmp_path / "OpenKPEvalPublic.jsonl", [page(NODES, None), page(NODES, None)])
    words = (tmp_path / "data", "--source", tmp_path)
    assert run(*words) == 0
    printed = capsys.readouterr().out
    assert "train: dropped 1: no text" in printed
    assert f"{train}: line 7: text is null" in printed
    counts = record_of(tmp_path / "data")["splits"]
    assert counts["train"]["keyphrases"] == counts["train"]["pages"] == 6
    assert counts["train"]["keyphrases not found"] == counts["train"]["dropped"] == 1
    named = ("pages", "nodes", "keyphrases", "keyphrases not found", "dropped")
    assert [counts["valid"][name] for name in named] == [1, 2, 0, 1, 0]
    assert [counts["test"][name] for name in named] == [1, 2, 0, 0, 1]
    data = PageData(tmp_path / "data", "train")
    assert data.texts(4)["text"] == "Star Trek Discovery Season 1 the star trek cast"
    assert data.texts(4)["phrases"] == ["no such phrase", "star trek"]
    assert data[4].folded.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 6]
    assert PageData(tmp_path / "data", "test").texts(0)["phrases"] is None
    assert run(*words) == 0
    assert "already prepared" in capsys.readouterr().out
    assert run(*words, "--gpt2-bpe", write_gpt2(tmp_path / "bpe"), "--workers 2 --force") == 0
    assert PageData(tmp_path / "data", "train")[4].phrases.tolist() == [[0, 2]]
    assert not (tmp_path / "data" / "sentencepiece.model").exists()
    bad = write_pages(tmp_path / "bad.jsonl", [page(NODES, ["x"])])
    assert run(tmp_path / "bad", "--train", bad) == 1
    error = f"in train; left out: no keyphrase in the text: {bad}: line 1: 'x' of a.com\n"
    assert capsys.readouterr().err.endswith(error)
    assert not (tmp_path / "bad").exists()
