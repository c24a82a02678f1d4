"""OpenKP's files: what is read, what is left out, and the folder that is made."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from fairseq_clusterformer.cli.main import program
from fairseq_clusterformer.corpora.question_answering.records import Drops
from fairseq_clusterformer.data.subwords import Tokens, gpt2
from openkp import prepare
from openkp.pages import PageData, encode_record
from openkp.records import PageRecord, openkp, page_record, phrase_places
from openkp.tests.web_pages import HEADING, PLAIN, page, pages_with_headings, write_pages
from tests.corpora.commands import record_of
from tests.data.subword_models import write_gpt2


def run(*words: object) -> int:
    """``prepare.py WORDS``; a string may be several, between blanks."""
    given = [w for word in words for w in (word.split() if type(word) is str else [str(word)])]
    return program(prepare.NAME, prepare.main, given)


NODES = [("Star Trek Discovery Season 1", HEADING), ("the star  trek cast", PLAIN)]


def test_a_page_written_out() -> None:
    """Between two blanks there is an empty word, which is no word here."""
    record = page_record(page(NODES, ["star Trek", "Season 1", "STAR trek", "no such", ""]))
    assert record.words == (
        *("Star", "Trek", "Discovery", "Season", "1"),
        *("the", "star", "trek", "cast"),
    )
    assert record.nodes == ((0, 5), (5, 9))
    assert record.visual == (tuple(map(int, HEADING)), tuple(map(int, PLAIN)))
    assert record.phrases == (("star", "trek"), ("season", "1"), ("no", "such"))
    assert phrase_places(record) == [(0, 2), (3, 2)]


def test_a_phrase_stands_in_one_node_as_whole_words() -> None:
    record = page_record(page([("a bc", PLAIN), ("d a", PLAIN)], ["bc d", "a b", "d a", "c"]))
    assert phrase_places(record) == [(2, 2)]


def test_json_in_strings_or_not_and_phrases_as_texts() -> None:
    item = page(NODES, ["Star Trek"])
    expected = page_record(item)
    assert page_record(item | {"VDOM": json.loads(item["VDOM"])}) == expected
    for phrases in ('[["Star", "Trek"], []]', [["Star Trek"]], ["Star Trek"]):
        assert page_record(item | {"KeyPhrases": phrases}) == expected
    del item["KeyPhrases"]
    assert page_record(item).phrases is None


def changed(**node: object) -> dict:
    """A page with another second node."""
    item = page(NODES, ["star trek"])
    vdom = json.loads(item["VDOM"])
    vdom[1] |= node
    return item | {"VDOM": json.dumps(vdom)}


@pytest.mark.parametrize(
    ("item", "reason", "detail"),
    [
        (page(NODES, ["x"]) | {"VDOM": "[{"}, "broken JSON in VDOM", "Expecting property name"),
        (page(NODES, ["x"]) | {"VDOM": "{}"}, "no VDOM", "VDOM is {}; allowed: a list"),
        (page(NODES, ["x"]) | {"VDOM": "[]"}, "nodes that do not", "ends at word 0; allowed: 10"),
        (changed(end_idx=11), "nodes that do not", r"node 1 of a.com is words \[5, 11\); allowed"),
        (changed(start_idx=4), "nodes that do not", r"is words \[4, 10\); allowed: from 5 to 10"),
        (changed(start_idx="5"), "no start_idx", 'start_idx is "5"; allowed: int'),
        (changed(text="the star"), "node of another text", "node 1 of a.com is 'the star'"),
        (changed(feature=PLAIN[:10]), "feature that is none", "has 10 features; allowed: 20"),
        (changed(feature=[None] * 20), "feature that is none", "0 of node 1 of a.com is None"),
        (changed(feature=[float("nan")] * 20), "feature that is none", "is nan; allowed: a num"),
        (
            changed(feature=[0.5] * 20),
            "feature that is none",
            "4 of .* is 0.5; allowed: 0 or 1",
        ),
        (page(NODES, None), "no keyphrase in the text", "none of a.com"),
        (page(NODES, ["trek the"]), "no keyphrase in the text", "'trek the' of a.com"),
        (page(NODES, None) | {"KeyPhrases": [[3]]}, "no keyphrase", r"\[3\]; allowed: a list of"),
        (page([(" ", PLAIN)], ["x"]), "empty text", "text of a.com"),
        (page([("\ud800", PLAIN)], ["x"]), "not valid Unicode", "half a character"),
        (page(NODES, ["x"]) | {"text": None}, "no text", "text is null; allowed: str"),
        ([], "no url", "url is null"),
    ],
)
def test_what_cannot_be_used_is_named(
    item: object, reason: str, detail: str, tmp_path: Path
) -> None:
    path = write_pages(tmp_path / "pages.jsonl", [page(NODES, ["star trek"], "b.com"), item])
    drops = Drops()
    assert [record.id for record in openkp(path, drops)] == ["b.com"]
    ((found, (example,)),) = drops.examples.items()
    assert found.startswith(reason)
    assert example.startswith(f"{path}: line 2: ")
    assert re.search(detail, example), example


def test_pages_without_keyphrases_are_kept_to_be_read(tmp_path: Path) -> None:
    """Those of a test set; of one address, the first alone."""
    items = [page(NODES, None), page(NODES, ["x"], "b.com"), page(NODES, None)]
    drops = Drops()
    path = write_pages(tmp_path / "pages.jsonl", items)
    records = list(openkp(path, drops, keep_unfound=True))
    assert [record.phrases for record in records] == [None, (("x",),)]
    assert drops.counts == {"id seen before": 1}


class Letters:
    """Tokens of some characters, given as spans."""

    def __init__(self, *spans: tuple[int, int]):
        self.spans = np.array(spans, np.int32)

    def encode(self, text: str) -> Tokens:
        return Tokens(np.arange(len(self.spans), dtype=np.int32), *self.spans.T)


def starts(words: list[str], model: object) -> list[int]:
    record = PageRecord("a", tuple(words), (), (), None)
    return encode_record(record, model=model).starts.tolist()


def test_tokens_of_words() -> None:
    """The blank before a word is the word's, whether it is a token or a part of one."""
    assert starts(["ab", "c"], Letters((0, 1), (1, 2), (2, 4))) == [0, 2]
    assert starts(["ab", "c"], Letters((0, 0), (0, 2), (2, 3), (3, 4))) == [0, 2]
    assert starts(["ab", "c"], Letters((0, 2), (2, 2), (3, 4))) == [0, 1]
    # a model that leaves out the middle one of three words
    assert starts(["a", "b", "c"], Letters((0, 1), (3, 5))) == [0, 1, 1]


def test_tokens_of_gpt2_words_are_those_words(tmp_path: Path) -> None:
    model = gpt2(write_gpt2(tmp_path / "bpe"))
    words = ["The", "café", "opened,", "🍰", "in", "1901", "naïve"]
    item = encode_record(PageRecord("a", tuple(words), (), (), None), model=model)
    parts = np.split(item.ids, item.starts[1:])
    assert [model.join(model.symbols[i] for i in part) for part in parts] == words


def test_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    items = pages_with_headings(6)
    items[4] = page(NODES, ["no such phrase", "STAR TREK"], "star.com")
    train = write_pages(tmp_path / "OpenKPTrain.jsonl", [*items, {"url": "broken"}])
    write_pages(tmp_path / "OpenKPDev.jsonl", [page(NODES, ["x"])])
    write_pages(tmp_path / "OpenKPEvalPublic.jsonl", [page(NODES, None)])
    words = (tmp_path / "data", "--source", tmp_path)
    assert run(*words) == 0
    printed = capsys.readouterr().out
    assert "train: dropped 1: no text" in printed
    assert f"{train}: line 7: text is null" in printed
    counts = record_of(tmp_path / "data")["splits"]
    assert counts["train"]["keyphrases"] == counts["train"]["pages"] == 6
    assert counts["train"]["keyphrases not found"] == counts["train"]["dropped"] == 1
    assert counts["valid"] | {"tokens": 0, "longest": 0} == {
        **{"pages": 1, "nodes": 2, "keyphrases": 0, "keyphrases not found": 1},
        **{"tokens": 0, "longest": 0, "dropped": 0},
    }
    data = PageData(tmp_path / "data", "train")
    texts = data.texts(4)
    assert texts["text"] == "Star Trek Discovery Season 1 the star trek cast"
    assert texts["phrases"] == ["no such phrase", "star trek"]
    assert data[4].folded.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 6]
    assert data[4].phrases.tolist() == [[0, 2]]
    assert PageData(tmp_path / "data", "test").texts(0)["phrases"] is None
    assert run(*words) == 0
    assert "already prepared" in capsys.readouterr().out
    assert run(*words, "--sentencepiece 300") == 1
    assert "was prepared otherwise (at most: true then, none now)" in capsys.readouterr().err
    bpe = write_gpt2(tmp_path / "bpe")
    assert run(*words, "--gpt2-bpe", bpe, "--workers 2 --force") == 0
    again = PageData(tmp_path / "data", "train")
    assert again[4].phrases.tolist() == [[0, 2]]
    assert not (tmp_path / "data" / "sentencepiece.model").exists()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--train none.jsonl", "--train is .*none.jsonl: no such file; allowed"),
        ("--source none", "--source is none: no such folder; allowed: a folder"),
        ("", "--source is missing; allowed: a folder with OpenKPTrain"),
        ("--valid GOOD", "a sentencepiece model to train, but no train; allowed: --train with"),
        ("--train GOOD --dict x.txt", "--dict is x.txt; allowed: with --gpt2-bpe"),
        ("--train BAD", r"no keyphrase in the text: .*bad.jsonl: line 1: 'x' of a.com"),
        ("--train GOOD --sentencepiece 9000", "--sentencepiece is 9000; allowed: at most"),
    ],
)
def test_mistakes(line: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    good = write_pages(tmp_path / "good.jsonl", [page(NODES, ["star trek"])])
    bad = write_pages(tmp_path / "bad.jsonl", [page(NODES, ["x"])])
    line = line.replace("GOOD", str(good)).replace("BAD", str(bad))
    assert run(tmp_path / "data", line) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert re.search(message, error), error
    assert not (tmp_path / "data").exists()
