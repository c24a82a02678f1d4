"""Subwords learned from text."""

import json

import pytest
import sentencepiece

from fairseq_clusterformer.corpora import binarize
from fairseq_clusterformer.corpora.binarize import train_sentencepiece
from tests.corpora.commands import record_of, run


def test_a_line_of_any_length_is_learned_from(tmp_path):
    """A whole document on one line, of more bytes than sentencepiece takes."""
    text, model = tmp_path / "text", tmp_path / "model"
    text.write_text("\n" + "clusters attend 東京 " * 5000 + "\n", encoding="utf-8")
    train_sentencepiece([text], 300, model, at_most=True)
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(model))
    learned = "".join(pieces.id_to_piece(i) for i in range(len(pieces)))
    assert {*"clusters東京"} <= {*learned}


def test_sentencepiece_learns_from_a_bounded_sample(tmp_path, monkeypatch):
    """Memory does not grow with the corpus; a small one is learned from whole."""
    given = []

    def train(sentence_iterator, **_):
        given.append(list(sentence_iterator))

    monkeypatch.setattr(binarize.sentencepiece.SentencePieceTrainer, "train", train)
    monkeypatch.setattr(binarize, "MB", 55_000)
    lines = [f"line {i:05}" for i in range(20_000)]
    texts = [tmp_path / "a", tmp_path / "b"]
    for text, part in zip(texts, (lines[:5000], lines[5000:]), strict=True):
        text.write_text("\n".join(part) + "\n")
    for sample in (5, 1, 1):
        binarize.train_sentencepiece(texts, 300, tmp_path / "model", sample=sample)
    assert given[0] == lines
    assert given[1] == given[2]
    assert 45_000 < sum(len(line) + 1 for line in given[2]) < 65_000
    assert min(given[2]) < lines[1000]
    assert max(given[2]) > lines[-1000]


PREPARED = {
    "lm text {0} {1} --sentencepiece 300": "of the language model",
    "qa text {0}/train.jsonl {1} --sentencepiece 300": "of the questions",
    "translation text {1} --train {0}/pairs.tsv --source-lang de --target-lang en": "of pairs",
}


@pytest.mark.parametrize("words", PREPARED, ids=PREPARED.get)
def test_the_size_of_the_sample_is_an_option(words, tmp_path, monkeypatch, capsys):
    (tmp_path / "in").mkdir()
    lines = [f"the number {i} of them" for i in range(300)]
    for split in ("train", "valid", "test"):
        (tmp_path / "in" / f"{split}.txt").write_text("\n".join(lines))
    (tmp_path / "in" / "pairs.tsv").write_text("\n".join(f"das {i}\t{i}" for i in lines))
    questions = [{"question": "Which?", "context": line, "answers": ["them"]} for line in lines]
    text = "\n".join(map(json.dumps, questions))
    (tmp_path / "in" / "train.jsonl").write_text(text)
    sizes, train = [], binarize.train_sentencepiece

    def watch(*given, **options):
        sizes.append(options["sample"])
        return train(*given, **options)

    monkeypatch.setattr(binarize, "train_sentencepiece", watch)
    words = words.format(tmp_path / "in", tmp_path / "out")
    if words.startswith("lm"):
        for name in ("pairs.tsv", "train.jsonl"):
            (tmp_path / "in" / name).unlink()
    assert run("prepare", words, "--sentencepiece-sample 3") == 0
    assert run("prepare", words, "--sentencepiece-sample 3") == 0
    assert sizes == [3]
    assert record_of(tmp_path / "out")["recipe"]["sentencepiece sample"] == 3
    assert run("prepare", words) == 1
    assert "sentencepiece sample: 3 then, none now" in capsys.readouterr().err
    for value in ("0", "100001", "2.5", "x"):
        assert run("prepare", words, "--sentencepiece-sample", value) == 2
        assert (
            f"--sentencepiece-sample is {value}; allowed: a whole num" in capsys.readouterr().err
        )


@pytest.mark.parametrize(
    "words",
    ["lm text {0} {0}/out", "lm text {0} {0}/out --words", "translation multi30k {0}/out"],
)
def test_without_sentencepiece_there_is_no_sample(words, tmp_path, capsys):
    assert run("prepare", words.format(tmp_path), "--sentencepiece-sample 3") == 1
    told = "--sentencepiece-sample is 3; allowed: where a sentencepiece model is trained\n"
    assert capsys.readouterr().err.endswith(told)
