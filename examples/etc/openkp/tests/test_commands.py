"""etc_keyphrases by fairseq's commands: from OpenKP's files to F1 of the best phrases."""

import json
import logging
import math
import re
from pathlib import Path

import pytest

from fairseq_clusterformer.cli.main import program
from openkp import prepare
from openkp.pages import PageData
from openkp.tests.conftest import page, pages_with_headings, write_pages
from openkp.tests.test_pages import NODES
from tests.cli.in_process import HERE, train, trained, validate
from tests.corpora.commands import record_of
from tests.data.subword_models import write_gpt2
from tests.pages import blocks

KEYPHRASES = (
    "--task etc_keyphrases --arch etc_keyphrases --criterion etc_keyphrases --encoder-layers 1"
    " --encoder-embed-dim 32 --encoder-ffn-embed-dim 64 --encoder-attention-heads 4 --radius 4"
    " --max-distance 3 --encoder-normalize-before --dropout 0 --batch-size 16 --optimizer adam"
    f" --lr 0.006 --clip-norm 1 --seed 1 --max-update 2 --no-epoch-checkpoints {HERE}"
)
learned = trained("pages", f"{KEYPHRASES} --max-update 40 --disable-validation")


def test_it_learns_keyphrases(learned, pages):
    """Each page has one, so that three or five phrases have two or four too many."""
    printed = validate(pages, learned, "--task etc_keyphrases --batch-size 5 --valid-subset valid")
    assert printed["loss"] < 1
    assert printed["f1_at_1"] == printed["recall_at_5"] == 100
    assert (printed["precision_at_3"], printed["f1_at_5"]) == (33.33, 33.33)
    # of four pages two are right, one has its keyphrase nowhere, and one's are unknown
    printed = validate(pages, learned, "--task etc_keyphrases --batch-size 5 --valid-subset test")
    assert printed["f1_at_1"] == 66.67


def test_the_python_of_the_page_writes_predictions(learned, pages, tmp_path, monkeypatch):
    (tmp_path / "data-bin").mkdir()
    (tmp_path / "data-bin" / "openkp").symlink_to(pages)
    (tmp_path / "checkpoint_best.pt").symlink_to(learned)
    monkeypatch.chdir(tmp_path)
    (code,) = blocks(Path(prepare.__file__).with_name("README.md"), "python")
    exec(code, {})
    rows = [json.loads(line) for line in Path("predictions.jsonl").read_text().splitlines()]
    assert [row["url"] for row in rows] == ["a.com/0", "a.com/1", "b.com", "c.com"]
    for row, item in zip(rows, pages_with_headings(2), strict=False):
        assert row["KeyPhrases"][:1] == item["KeyPhrases"]
        assert len({*map(tuple, row["KeyPhrases"])}) == 5


@pytest.mark.usefixtures("no_update")
def test_bad_options(pages, tmp_path):
    for options, message in {
        "--max-positions 1": r": no page has a keyphrase left \(--max-positions 1,",
        "--clusters 3": "--clusters is 3; allowed: 0 for keyphrases",
    }.items():
        with pytest.raises(ValueError, match=message):
            train(pages, f"{KEYPHRASES} {options}", tmp_path)


@pytest.mark.parametrize(
    ("options", "cut"),
    [
        ("--phrase-loss max --no-visual-features --projections shared", 0),
        ("--fixed-blocks --block 5 --checkpoint-activations", 0),
        ("--max-nodes 2 --hard-global --amp", 16),
        ("--max-positions 8", 16),
    ],
)
def test_option(options, cut, pages, tmp_path, caplog):
    """Pages that lose their keyphrase are left out of training, and count in validation."""
    with caplog.at_level(logging.INFO):
        log = train(pages, f"{KEYPHRASES} {options}", tmp_path)
    assert len(log.updates) == 2
    for update in log.updates + log.valid:
        assert all(map(math.isfinite, update.values()))
    assert sum(log["scored"] for log in log.valid) == 16 * len(log.valid)
    assert f"train: {cut} of 16 pages are cut" in caplog.text
    left_out = re.findall(r"train: (\d+) pages are left out", caplog.text)
    assert [log.updates[0]["nsentences"]] == [16 - int(*left_out or "0")]
    assert bool(left_out) == bool(cut)


def prepared(*words: object) -> int:
    return program(prepare.NAME, prepare.main, [*map(str, words)])


def test_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Pages of a test set may have no keyphrases."""
    items = pages_with_headings(6)
    items[4] = page(NODES, ["no such phrase", "STAR TREK"], "star.com")
    train = write_pages(tmp_path / "OpenKPTrain.jsonl", [*items, {"url": "broken"}])
    write_pages(tmp_path / "OpenKPDev.jsonl", [page(NODES, ["x"])])
    write_pages(tmp_path / "OpenKPEvalPublic.jsonl", [page(NODES, None), page(NODES, None)])
    words = (tmp_path / "data", "--source", tmp_path)
    assert prepared(*words) == 0
    assert f"train: dropped 1: no text\n  {train}: line 7: text is" in capsys.readouterr().out
    counts = record_of(tmp_path / "data")["splits"]
    named = ("pages", "nodes", "keyphrases", "dropped")
    for split, expected in (
        ("train", [6, 22, 6, 1]),
        ("valid", [1, 2, 0, 0]),
        ("test", [1, 2, 0, 1]),
    ):
        assert [counts[split][name] for name in named] == expected
    data = PageData(tmp_path / "data", "train")
    assert data.texts(4)["phrases"] == ["no such phrase", "star trek"]
    folded = data[4].folded.tolist()
    assert (len(set(folded)), folded[:2]) == (7, folded[6:8])
    assert prepared(*words) == 0
    assert "already prepared" in capsys.readouterr().out
    words += ("--gpt2-bpe", write_gpt2(tmp_path / "bpe"), "--force")
    assert prepared(*words) == 0
    assert PageData(tmp_path / "data", "train")[4].places.tolist() == [[0, 2]]
    assert not (tmp_path / "data" / "sentencepiece.model").exists()
    bad = write_pages(tmp_path / "bad.jsonl", [page(NODES, ["x"])])
    assert prepared(tmp_path / "bad", "--train", bad) == 1
    error = f"in train; left out: no keyphrase in the text: {bad}: line 1: 'x' of a.com\n"
    assert capsys.readouterr().err.endswith(error)
    assert not (tmp_path / "bad").exists()
