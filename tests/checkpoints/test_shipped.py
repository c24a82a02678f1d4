"""The trained models that are installed with the package: they do what their cards say."""

import re

import pytest

import fairseq_clusterformer
from fairseq_clusterformer.checkpoints.bundle import CARD, SHIPPED, is_bundle, located
from tests.documents.commands import run

NAMES = fairseq_clusterformer.shipped()


@pytest.mark.parametrize("name", NAMES)
def test_each_has_a_card(name):
    card = (SHIPPED / name / CARD).read_text()
    for title in ("Data", "Licence", "Scores", "What it cannot do"):
        assert re.search(rf"^## {title}$", card, flags=re.MULTILINE), title


def test_a_path_comes_before_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert located(NAMES[0]) == SHIPPED / NAMES[0]
    (tmp_path / NAMES[0]).mkdir()
    assert not is_bundle(located(NAMES[0]))


def test_a_translator_translates(capsys):
    text = "Zwei Hunde rennen am Strand."
    assert run("translate", "--checkpoint", "multi30k-de-en", "--cpu", text) == 0
    assert capsys.readouterr().out.strip() == "two dogs running on the beach."
    model = fairseq_clusterformer.load("multi30k-de-en", device="cpu")
    assert model.translate(["Ein Mann fährt mit dem Fahrrad."]) == ["a man is riding a bicycle."]
    back = fairseq_clusterformer.load("multi30k-en-de", device="cpu")
    assert back.translate(["Two men are playing football on the beach."]) == [
        "zwei männer spielen football am strand."
    ]


def test_a_reader_reads(tmp_path, capsys):
    """Without naming it; and it says where nothing answers."""
    text = (
        "Marie Curie was born in Warsaw in 1867. With her husband Pierre she discovered polonium."
    )
    (tmp_path / "curie.txt").write_text(text)
    asked = ["answer", "--document", str(tmp_path), "--cpu", "--question"]
    assert run(*asked, "Where was Marie Curie born?") == 0
    assert "[Warsaw]" in capsys.readouterr().out
    assert run(*asked, "Who painted the Mona Lisa?") == 0
    assert "No answer found" in capsys.readouterr().out
    reader = fairseq_clusterformer.load("reader-en", device="cpu")
    assert reader.answer("What did she discover?", text)[0].text == "polonium"


def test_draw_says_which_readers_cluster(tmp_path, capsys, towns_reader):
    (tmp_path / "a.txt").write_text("Ulm lies on the Danube.")
    how = ["--text", tmp_path / "a.txt", "--question", "Where is Ulm?", "--out", tmp_path / "o"]
    assert run("draw", "--checkpoint", "reader-en", *how) == 1
    assert "no layer clusters; allowed: a reader with a --cluster-att" in capsys.readouterr().err
    assert run("draw", "--checkpoint", towns_reader, *how) == 1
    said = capsys.readouterr().err
    assert "is a BidafReader; allowed: a language model, or a reader of the architecture" in said
    assert not (tmp_path / "o").exists()


CODE = "def total(values):\n    result = 0\n    for value in values:\n        return value\n"
ENGLISH = "He opened the door, and went down the stairs to meet his friend in the garden."
GERMAN = "Er öffnete die Tür und ging die Treppe hinab, um seinen Freund im Garten zu treffen."


@pytest.mark.parametrize(
    ("name", "prompt", "known", "at_most", "at_least"),
    [
        pytest.param("python-code", "def read(", CODE, 4, 40, marks=pytest.mark.whole),
        ("books-en", "It was", ENGLISH, 150, 400),
    ],
)
def test_a_writer_knows_its_language(name, prompt, known, at_most, at_least, capsys):
    assert run("generate", "--checkpoint", name, "--cpu", prompt, "--seed", 1) == 0
    assert capsys.readouterr().out.startswith(prompt)
    model = fairseq_clusterformer.load(name, device="cpu")
    assert model.perplexity(known) < at_most < at_least < model.perplexity(GERMAN)
