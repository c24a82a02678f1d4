"""clusterformer classify: plain texts and pairs get the labels that the model learned."""

import io
from pathlib import Path

import pytest
import torch

import fairseq_clusterformer
from fairseq_clusterformer.checkpoints.bundle import write_bundle
from fairseq_clusterformer.checkpoints.load import load_checkpoint
from fairseq_clusterformer.cli.main import main
from fairseq_clusterformer.errors import UserError
from fairseq_clusterformer.use.classify import Classifier
from tests.cli.in_process import CLASSIFICATION, train

# of a machine without an accelerator
pytestmark = pytest.mark.filterwarnings("ignore:'pin_memory' argument is set")

FILMS = {"very good": ("lovely", "a fine film"), "bad": ("dull", "a boring film")}
LINE = f"{CLASSIFICATION} --max-update 40 --lr 0.01 --max-positions 12 --truncate-sequence"


def learned(folder: Path, rows: list[tuple[str, ...]], *more: object) -> Path:
    """The checkpoint of a model that learned rows of a label and texts."""
    (folder / "rows.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    words = ("text", folder / "rows.tsv", folder / "data", "--max-length", 9)
    assert main(["prepare", "classification", *map(str, words)]) == 0
    train(folder / "data", f"{LINE} --disable-validation", folder, *more)
    return folder / "checkpoint_last.pt"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a model that labels texts."""
    rows = [
        (label, f"{text}, {i}.") for label, of in FILMS.items() for text in of for i in range(40)
    ]
    return learned(tmp_path_factory.mktemp("texts"), rows)


@pytest.fixture(scope="module", params=["joined", "siamese"])
def pairs(request, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a model whose labels depend on the second text."""
    rows = [(str(i % 2), f"What is {i}?", "yes yes" if i % 2 else "no no no") for i in range(80)]
    return learned(tmp_path_factory.mktemp("pairs"), rows, "--pair-form", request.param)


def classify(*words: object) -> int:
    return main(["classify", "--cpu", *map(str, words)])


def test_texts(checkpoint, tmp_path, capsys, monkeypatch):
    texts = ["Lovely!", "A BORING film.", "dull"]
    assert classify("--checkpoint", checkpoint, *texts) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [label for label, _ in lines] == ["very good", "bad", "bad"]
    assert all(0.5 < float(probability) <= 1 for _, probability in lines)

    (tmp_path / "texts.txt").write_text("\n".join(texts))
    assert classify("--checkpoint", checkpoint, "--input", tmp_path / "texts.txt", "--top", 2) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.split("\t")[:2] for line in printed] == lines
    assert printed[0].split("\t")[2] == "bad"

    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"lovely " * 9 + b"\n")))
    assert classify("--checkpoint", checkpoint) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("very good\t")
    assert "1 texts were longer than the model reads" in printed.err


def test_any_iterable_of_texts(checkpoint):
    model = fairseq_clusterformer.load(checkpoint, device="cpu")
    texts = ["Lovely!", "dull", "A BORING film."]
    assert model.classify(text for text in texts) == model.classify(texts)
    with pytest.raises(UserError, match="batch_size is 0; allowed: 1 or more"):
        model.classify(texts, batch_size=0)


def test_words_are_those_of_the_preparation(checkpoint, tmp_path):
    """Raw texts get the probabilities of the prepared ones, from a bundle too."""
    loaded = load_checkpoint(checkpoint)
    loaded.task.load_dataset("test")
    dataset = loaded.task.dataset("test")
    dictionary = loaded.task.dictionary
    write_bundle(loaded, tmp_path / "bundle")
    for classifier in (
        Classifier(loaded, device="cpu"),
        Classifier(load_checkpoint(tmp_path / "bundle"), device="cpu"),
    ):
        for index in range(len(dataset)):
            sample = dataset.collater([dataset[index]])
            with torch.no_grad():
                expected = loaded.model(**sample["net_input"])[0].softmax(-1)[0]
            text = dictionary.string(sample["net_input"]["src_tokens"][0][1:-1])
            (found,) = classifier.classify([text.replace(" ,", ",").replace(" .", ".")])
            got = torch.tensor([found.probabilities[label] for label in classifier.labels])
            torch.testing.assert_close(got, expected)


def test_pairs(pairs, tmp_path, capsys, monkeypatch):
    assert (
        classify("--checkpoint", pairs, "What is it?", "yes yes", "What is it?", "no no no") == 0
    )
    printed = capsys.readouterr().out
    assert [line.split("\t")[0] for line in printed.splitlines()] == ["1", "0"]
    lines = b"What is it?\tyes yes\nWhat is it?\tno no no\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines)))
    assert classify("--checkpoint", pairs) == 0
    assert capsys.readouterr().out == printed
    assert classify("--checkpoint", pairs, "alone") == 1
    assert "TEXT: there are 1; allowed: two per pair" in capsys.readouterr().err


def test_mistakes(checkpoint, tmp_path, capsys):
    (tmp_path / "input0").mkdir()
    assert classify("--checkpoint", checkpoint, "--data", tmp_path, "x") == 1
    assert f"--data is {tmp_path}: " in capsys.readouterr().err
    record = checkpoint.parent / "data" / "data.json"
    text = record.read_text()
    record.unlink()
    assert classify("--checkpoint", checkpoint, "x") == 1
    assert "allowed: a folder that `clusterformer prepare class" in capsys.readouterr().err
    record.write_text('{"tokenised": true, "settings": 1}')
    assert classify("--checkpoint", checkpoint, "x") == 1
    assert "does not say how texts became words" in capsys.readouterr().err
    record.write_text(text)
