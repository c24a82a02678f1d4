"""OpenKP's files: the folder that is made of them."""

from pathlib import Path

import pytest

from fairseq_clusterformer.cli.main import program
from openkp import prepare
from openkp.pages import PageData
from openkp.tests.test_pages import NODES
from openkp.tests.web_pages import page, pages_with_headings, write_pages
from tests.corpora.commands import record_of
from tests.data.subword_models import write_gpt2


def run(*words: object) -> int:
    """``prepare.py WORDS``; a string may be several, between blanks."""
    given = [w for word in words for w in (word.split() if type(word) is str else [str(word)])]
    return program(prepare.NAME, prepare.main, given)


def test_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Pages of a test set may have no keyphrases."""
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
    assert data.texts(4)["phrases"] == ["no such phrase", "star trek"]
    folded = data[4].folded.tolist()
    assert len(set(folded)) == 7
    assert folded[:2] == folded[6:8]
    assert run(*words) == 0
    assert "already prepared" in capsys.readouterr().out
    assert run(*words, "--gpt2-bpe", write_gpt2(tmp_path / "bpe"), "--workers 2 --force") == 0
    assert PageData(tmp_path / "data", "train")[4].places.tolist() == [[0, 2]]
    assert not (tmp_path / "data" / "sentencepiece.model").exists()
    bad = write_pages(tmp_path / "bad.jsonl", [page(NODES, ["x"])])
    assert run(tmp_path / "bad", "--train", bad) == 1
    error = f"in train; left out: no keyphrase in the text: {bad}: line 1: 'x' of a.com\n"
    assert capsys.readouterr().err.endswith(error)
    assert not (tmp_path / "bad").exists()
