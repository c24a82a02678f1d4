"""Questions to files of text, HTML and PDF: what is found, where, and what is refused."""

import io
import json
import math
import random
import re
import sys
from html.parser import HTMLParser
from itertools import product
from pathlib import Path

import pytest
import torch

from fairseq_clusterformer.attention.inspect import token_clusters
from tests.cli.in_process import HERE, train
from tests.data.subword_models import LOSSLESS, write_sentencepiece
from tests.scripts.test_qa_documents import pdf

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

import answer  # noqa: E402
import prepare_qa  # noqa: E402
import qa_reading  # noqa: E402
from qa_documents import Source  # noqa: E402

TOWNS = ["Arle", "Bruntel", "Cosk", "Dimmer"]
THINGS = {"king": ["Otto", "Ida", "Noor"], "river": ["the Elm", "the Una", "the Sool"]}
TRAINING = (
    "--task clusterformer_qa --arch clusterformer_reader --criterion clusterformer_qa"
    " --encoder-layers 3 --encoder-embed-dim 32 --encoder-ffn-embed-dim 64"
    " --encoder-attention-heads 4 --cluster-layers 1 --num-clusters 4 --window-size 32"
    " --window-stride 24 --window-positions 64 --max-question-positions 24 --attention-window 16"
    " --kmeans-interval 20 --dropout 0 --attention-dropout 0 --batch-size 16 --optimizer adam"
    f" --lr 0.005 --clip-norm 1 --seed 1 --disable-validation --no-epoch-checkpoints {HERE}"
)


def fact(thing: str, town: str, name: str) -> str:
    return f"The {thing} of {town} is {name}. Many like {name} there."


def question(thing: str, town: str) -> str:
    return f"What is the {thing} of {town}?"


def squad(number: int, seed: int) -> dict:
    """Contexts that tell the things of two towns, and questions of these and of others."""
    draw, contexts = random.Random(seed), []
    for i in range(number):
        told = draw.sample([*product(THINGS, TOWNS)], 3)
        context, answers = "", {}
        for pair in told:
            name = draw.choice(THINGS[pair[0]])
            start = len(context) + fact(*pair, name).index(name)
            answers[pair] = [{"text": name, "answer_start": start}]
            context += fact(*pair, name) + " "
        asked = draw.choice(told)
        other = draw.choice([pair for pair in product(THINGS, TOWNS) if pair not in told])
        questions = [
            {"id": f"{i}a", "question": question(*asked), "answers": answers[asked]},
            {"id": f"{i}b", "question": question(*other), "answers": [], "is_impossible": True},
        ]
        contexts.append({"context": context, "qas": questions})
    return {"version": "v2.0", "data": [{"title": "Towns", "paragraphs": contexts}]}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As ``prepare_qa.py`` makes it."""
    folder = tmp_path_factory.mktemp("towns")
    texts = [fact(*pair, name) for pair in product(THINGS, TOWNS) for name in THINGS[pair[0]]]
    texts += [question(*pair) for pair in product(THINGS, TOWNS)]
    model = write_sentencepiece(folder / "some.model", texts, vocab_size=360, **LOSSLESS)
    for split, (number, seed) in {"train": (64, 1), "dev": (2, 2)}.items():
        (folder / f"{split}-v2.0.json").write_text(json.dumps(squad(number, seed)))
    line = [
        "squad2",
        folder / "data",
        "--source",
        folder,
        "--sentencepiece-model",
        model,
        "--workers",
        "1",
    ]
    assert prepare_qa.main([str(word) for word in line]) == 0
    return folder / "data"


@pytest.fixture(scope="module")
def checkpoint(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that has learned to find a name, and whether there is one."""
    folder = tmp_path_factory.mktemp("reader")
    train(data, f"{TRAINING} --max-update 400", folder)
    return folder / "checkpoint_last.pt"


@pytest.fixture(scope="module")
def reader(checkpoint: Path) -> qa_reading.DocumentReader:
    return qa_reading.DocumentReader(str(checkpoint), cpu=True)


@pytest.fixture
def towns(tmp_path: Path) -> Path:
    """Two paragraphs; nothing tells the king of Bruntel."""
    path = tmp_path / "towns.txt"
    told = fact("river", "Arle", "the Una") + " " + fact("king", "Arle", "Noor")
    path.write_text(told + "\n\n" + fact("king", "Cosk", "Ida") + "\n")
    return path


def run(*arguments: object) -> int:
    return answer.main([str(argument) for argument in arguments])


def refused(capsys: pytest.CaptureFixture, *arguments: object) -> str:
    """The one line that a refused call prints."""
    assert run(*arguments) == 1
    out, err = capsys.readouterr()
    assert not out
    (line,) = err.splitlines()
    assert "allowed: " in line
    return line


@pytest.mark.parametrize(
    ("asked", "name", "paragraph"),
    [
        (("king", "Cosk"), "Ida", 2),
        (("king", "Arle"), "Noor", 1),
        (("river", "Arle"), "the Una", 1),
    ],
)
def test_the_best_answer(
    asked: tuple[str, str],
    name: str,
    paragraph: int,
    checkpoint: Path,
    towns: Path,
    capsys: pytest.CaptureFixture,
) -> None:
    line = ["--checkpoint", checkpoint, "--document", towns, "--question", question(*asked)]
    assert run(*line, "--top", 1) == 0
    first, place, around = capsys.readouterr().out.splitlines()
    assert first == f"1. {name}"
    found = re.fullmatch(
        r"   (0\.\d{3}) \(score (-\d\.\d\d)\): (.*), paragraph (\d), characters \[(\d+), (\d+)\)",
        place,
    )
    assert float(found[1]) > 0.3
    assert math.exp(float(found[2])) == pytest.approx(float(found[1]), abs=0.01)
    assert (found[3], int(found[4])) == (str(towns), paragraph)
    text = towns.read_text().split("\n\n")[paragraph - 1]
    assert text[int(found[5]) : int(found[6])] == name
    assert around == f"   The {asked[0]} of {asked[1]} is [{name}]."


def test_files_of_every_kind_are_ranked_together(
    checkpoint: Path, towns: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    page, paper = tmp_path / "page.html", tmp_path / "paper.pdf"
    page.write_text(f"<p>{fact('river', 'Dimmer', 'the <i>Sool</i>')}<p>Else")
    paper.write_bytes(pdf(fact("king", "Bruntel", "Otto")))
    line = ["--checkpoint", checkpoint, "--document", towns, page, paper]
    for asked, name, path in (
        (("river", "Dimmer"), "the Sool", page),
        (("king", "Bruntel"), "Otto", paper),
        (("king", "Cosk"), "Ida", towns),
    ):
        assert run(*line, "--question", question(*asked), "--top", 5) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0] == f"1. {name}"
        assert str(path) in lines[1]
        assert lines[-3].startswith("5. ") or lines[-2].startswith("5. ")


def test_no_answer_is_told(checkpoint: Path, towns: Path, capsys: pytest.CaptureFixture) -> None:
    line = ["--checkpoint", checkpoint, "--document", towns, "--question"]
    assert run(*line, question("river", "Dimmer")) == 0
    first = capsys.readouterr().out.splitlines()[0]
    found = re.fullmatch(
        r"No answer: with probability (0\.\d+|1\.0+) nothing answers this\. Next likely:", first
    )
    assert float(found[1]) > 0.5


@torch.no_grad()
def test_parts_are_all_of_a_document(reader: qa_reading.DocumentReader) -> None:
    """Whole paragraphs where they fit, else pieces; each token stands for what it stood for."""
    long = " ".join(fact(*pair, "Ida") for pair in product(THINGS, TOWNS))
    texts = ("One.", fact("king", "Arle", "Noor"), long, "A few words.", "\u00e9")
    source = Source("x", "x", texts)
    (whole,) = reader.parts(source, 10_000)
    assert whole.numbers == (0, 1, 2, 3, 4)
    for most in (2, 7, 40, len(whole.tokens) - 1):
        parts = reader.parts(source, most)
        assert len(parts) > 1
        assert max(len(part.tokens) for part in parts) <= most
        read = [""] * len(texts)
        for part in parts:
            start, end = part.document.characters
            heads = part.document.starts.tolist()
            assert (part.tokens[part.document.starts] == 0).all()
            for i, number in enumerate(part.numbers):
                assert part.document.texts[i] == texts[number]
                last = heads[i + 1] if i + 1 < len(heads) else len(part.tokens)
                for token in range(heads[i] + 1, last):
                    place, first, after = part.document.place(token, token + 1)
                    assert (place, first, after) == (i, int(start[token]), int(end[token]))
                    read[number] += texts[number][max(len(read[number]), first) : after]
        assert tuple(read) == texts
        if most == 40:
            assert {part.numbers for part in parts} >= {(0, 1), (2,), (3, 4)}


def test_a_long_document_is_read_in_parts(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    """The model never sees more tokens than it may, and finds what stands in any part."""
    text = [fact("river", "Dimmer", "the Elm")] * 60
    text[41] = fact("king", "Bruntel", "Otto")
    (tmp_path / "long").write_text(" ".join(text))
    seen, forward = [], qa_reading.ClusterformerReader.forward

    def record(self, question_tokens, document_tokens, text_mask):
        seen.append(document_tokens.size(1))
        return forward(self, question_tokens, document_tokens, text_mask)

    monkeypatch.setattr(qa_reading.ClusterformerReader, "forward", record)
    line = ["--checkpoint", checkpoint, "--document", tmp_path / "long", "--tokens-at-once", 100]
    assert run(*line, "--question", question("king", "Bruntel")) == 0
    assert capsys.readouterr().out.startswith("1. Otto\n")
    assert len(seen) > 5
    assert max(seen) == 100


@torch.no_grad()
def test_clusters_are_those_of_the_layers(reader: qa_reading.DocumentReader) -> None:
    """Every token has the cluster that it has in the sequence of questions and windows."""
    encoder, source = reader.model.encoder, Source("x", "x", (fact("king", "Arle", "Noor"),) * 9)
    (part,) = reader.parts(source, 1000)
    asked = reader.question(question("king", "Arle"))
    read = reader.read(asked, part, 1)
    (sequence,) = token_clusters(encoder, asked[None], part.tokens[None]).values()
    (name,) = read.clusters
    assert name == "layer 1 of 0 to 2"
    length, stride = len(part.tokens), encoder.stride
    assert length > 2 * encoder.size
    step = len(asked) + stride
    expected = [
        int(sequence[0, 0, i // stride * step + len(asked) + i % stride]) for i in range(length)
    ]
    assert read.clusters[name].tolist() == expected
    assert len(set(expected)) > 1


class _Page(HTMLParser):
    """What a page shows of its documents, its tokens, and what it asks a network for."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.paragraphs, self.tokens, self.answers, self.links, self.within = [], {}, {}, [], []
        text = path.read_text(encoding="utf-8")
        self.data = json.loads(re.search(r"^const data = (.*);$", text, re.MULTILINE)[1])
        self.feed(text)
        self.close()
        assert self.within == []

    def handle_starttag(self, tag: str, attrs: list) -> None:
        attrs = dict(attrs)
        self.links += [value for name, value in attrs.items() if name in ("src", "href")]
        if tag == "p":
            self.paragraphs.append("")
        if tag not in ("meta", "link"):
            self.within.append((tag, attrs))

    def handle_endtag(self, tag: str) -> None:
        assert self.within.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        tag, attrs = self.within[-1] if self.within else ("", {})
        if any(outer == "p" for outer, _ in self.within) and tag != "small":
            self.paragraphs[-1] += data
        if "data-i" in attrs:
            self.tokens[int(attrs["data-i"])] = data
            if attrs.get("class") == "answer":
                self.answers[int(attrs["data-i"])] = data


def test_page(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """A file that needs nothing else: all text, each token with its cluster, the answers."""
    texts = [fact("king", "Cosk", "Ida") + " <b>&amp; na\u00efve \U0001f370</b>", "</script> two"]
    (tmp_path / "a.txt").write_text("\n\n".join(texts), encoding="utf-8")
    out = tmp_path / "page.html"
    line = ["--checkpoint", checkpoint, "--document", tmp_path / "a.txt", "--html", out]
    assert run(*line, "--question", question("king", "Cosk"), "--top", 1) == 0
    assert capsys.readouterr().out.startswith("1. Ida\n")
    page = _Page(out)
    assert page.paragraphs == texts
    assert "".join(page.answers.values()).strip() == "Ida"
    assert page.links == []
    assert "//" not in out.read_text(encoding="utf-8")
    (clusters,) = page.data["parts"][0]
    assert len(clusters) > max(page.tokens)
    assert set(clusters) <= set(range(4))
    assert page.data["answers"] == [[0, [min(page.answers), max(page.answers) + 1]]]
    assert not out.with_name("page.html.partial").exists()


def test_page_of_a_question_without_an_answer(
    checkpoint: Path, towns: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    out = tmp_path / "page.html"
    line = ["--checkpoint", checkpoint, "--document", towns, "--html", out]
    assert run(*line, "--question", question("river", "Dimmer")) == 0
    assert "nothing here answers this" in out.read_text(encoding="utf-8")
    assert "--html is" in refused(
        capsys, *line, "--html", tmp_path / "no" / "page", "--question", question("king", "Arle")
    ).replace(capsys.readouterr().out, "")


def test_interactive(
    checkpoint: Path, towns: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """A question a line; a mistake is told, and the next one answered. All is loaded once."""
    loads = []
    load = qa_reading._load
    monkeypatch.setattr(qa_reading, "_load", lambda *args: loads.append(args) or load(*args))
    lines = [question("king", "Cosk"), "", "What " * 50, question("river", "Arle")]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines)))
    line = ["--checkpoint", checkpoint, "--document", towns, "--top", 1, "--interactive"]
    assert run(*line, "--question", question("king", "Arle")) == 0
    out, err = capsys.readouterr()
    assert [row for row in out.splitlines() if row.startswith("1. ")] == [
        *("1. Noor", "1. Ida", "1. the Una")
    ]
    assert re.fullmatch(r"answer.py: error: --question has \d+ subwords; allowed: 22.*\n", err)
    assert len(loads) == 1


def test_mistakes(
    checkpoint: Path,
    data: Path,
    towns: Path,
    translation_model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
) -> None:
    model, ask = ["--checkpoint", checkpoint], ["--document", towns, "--question", "Who?"]
    assert "nowhere: No such file" in refused(capsys, *model, *ask, "--document", "nowhere")
    assert "is nowhere.pt: no such file" in refused(capsys, "--checkpoint", "nowhere.pt", *ask)
    assert "of the task TranslationTask" in refused(
        capsys, "--checkpoint", translation_model, *ask
    )
    (tmp_path / "text.pt").write_text("no checkpoint")
    assert "cannot be loaded" in refused(capsys, "--checkpoint", tmp_path / "text.pt", *ask)
    assert "--question is empty" in refused(capsys, *model, *ask[:-1], " ")
    assert "allowed: 22 or fewer" in refused(capsys, *model, *ask[:-1], "What " * 50)
    assert "no such folder" in refused(capsys, *model, *ask, "--data", tmp_path / "none")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "dict.txt").write_text("a 1\n")
    line = refused(capsys, *model, *ask, "--data", tmp_path / "data")
    assert "trained with another dictionary" in line
    (tmp_path / "data" / "dict.txt").write_text((data / "dict.txt").read_text())
    assert "that scripts/prepare_qa.py has" in refused(
        capsys, *model, *ask, "--data", tmp_path / "data"
    )
    for wrong in ([], ["--question", "Who?", "--tokens-at-once", "1"]):
        with pytest.raises(SystemExit):
            run(*model, "--document", towns, *wrong)
        assert "allowed: " in capsys.readouterr().err
