"""Questions to files of text, HTML and PDF: what is found, where, and what is refused."""

import io
import json
import math
import random
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from fairseq_clusterformer.answers import TYPES, Answer, Answers, Document
from fairseq_clusterformer.attention.inspect import token_clusters
from fairseq_clusterformer.cli import answer
from fairseq_clusterformer.cli.prepare import qa as prepare_qa
from fairseq_clusterformer.inference import read as qa_reading
from fairseq_clusterformer.inference.documents import Source
from fairseq_clusterformer.models.clusterformer_reader import ClusterformerReader
from fairseq_clusterformer.visual import answer_page
from fairseq_clusterformer.visual import document as document_clusters
from tests.cli.in_process import QUESTIONS, train
from tests.data.subword_models import LOSSLESS, write_sentencepiece
from tests.inference.test_documents import pdf

#: questions, each with what a text may say to it
FACTS = {
    "Who rules?": ("In the town rules {}.", ["Otto", "Ida", "Noor", "the Elm", "old Sool"]),
    "What does it cost?": ("A bed costs {} coins.", ["two", "five", "ninety", "half a dozen"]),
    "How long does it last?": ("They stay for {} here.", ["a week", "years", "three days"]),
}
RULES, COSTS, LASTS = FACTS
WHY = "Why so?"  # no text says anything to it
FILLING = "All is well."
TRAINING = (
    f"{QUESTIONS} --window-size 32 --window-stride 24 --window-positions 64"
    " --max-question-positions 24 --kmeans-interval 20 --kmeans-bank-size 1000 --dropout 0"
    " --attention-dropout 0 --batch-size 16 --lr 0.005 --max-update 150 --disable-validation"
    " --save-interval 100"
)


def fact(question: str, answer: str) -> str:
    return FACTS[question][0].format(answer)


def squad(number: int, seed: int) -> dict:
    """Contexts that tell something to two questions, and one of these, or ``WHY``."""
    draw, contexts = random.Random(seed), []
    for i in range(number):
        told = {question: draw.choice(FACTS[question][1]) for question in draw.sample([*FACTS], 2)}
        sentences = [fact(*pair) for pair in told.items()] + [FILLING] * draw.randint(0, 6)
        draw.shuffle(sentences)
        context, question = " ".join(sentences), draw.choice([*told])
        start = context.index(fact(question, told[question]))
        start = context.index(told[question], start)
        asked = {"id": f"{i}", "question": question}
        asked["answers"] = [{"text": told[question], "answer_start": start}]
        if i % 4 == 0:
            asked |= {"question": WHY, "answers": [], "is_impossible": True}
        contexts.append({"context": context, "qas": [asked]})
    return {"version": "v2.0", "data": [{"title": "Towns", "paragraphs": contexts}]}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As ``prepare_qa.py`` makes it."""
    folder = tmp_path_factory.mktemp("towns")
    texts = [fact(question, name) for question in FACTS for name in FACTS[question][1]]
    texts += [FILLING, WHY, *FACTS] * 3
    model = write_sentencepiece(folder / "some.model", texts, vocab_size=360, **LOSSLESS)
    for split, (number, seed) in {"train": (400, 1), "dev": (2, 2)}.items():
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
    """A model that has learned to find a name, and when there is none."""
    folder = tmp_path_factory.mktemp("reader")
    train(data, TRAINING, folder)
    return folder / "checkpoint_last.pt"


@pytest.fixture(scope="module")
def reader(checkpoint: Path) -> qa_reading.DocumentReader:
    return qa_reading.DocumentReader(str(checkpoint), cpu=True)


@pytest.fixture
def towns(tmp_path: Path) -> Path:
    """Two paragraphs."""
    path = tmp_path / "towns.txt"
    path.write_text(f"{fact(RULES, 'the Elm')} {FILLING}\n\n{FILLING}\n{fact(COSTS, 'five')}\n")
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
    ("question", "name", "paragraph", "around"),
    [
        (RULES, "the Elm", 1, "In the town rules [the Elm]."),
        (COSTS, "five", 2, "A bed costs [five] coins."),
    ],
)
def test_the_best_answer(
    question: str,
    name: str,
    paragraph: int,
    around: str,
    checkpoint: Path,
    towns: Path,
    capsys: pytest.CaptureFixture,
) -> None:
    line = ["--checkpoint", checkpoint, "--document", towns, "--question", question]
    assert run(*line, "--top", 1) == 0
    first, place, sentence = capsys.readouterr().out.splitlines()
    assert first == f"1. {name}"
    found = re.fullmatch(
        r"   (0\.\d{3}) \(score (-\d\.\d\d)\): (.*), paragraph (\d), characters \[(\d+), (\d+)\)",
        place,
    )
    assert float(found[1]) > 0.3
    assert math.exp(float(found[2])) == pytest.approx(float(found[1]), abs=0.01)
    assert (found[3], int(found[4])) == (str(towns), paragraph)
    text = towns.read_text().split("\n\n")[paragraph - 1].replace("\n", " ")
    assert text[int(found[5]) : int(found[6])] == name
    assert sentence == f"   {around}"


def test_files_of_every_kind_are_ranked_together(
    checkpoint: Path, towns: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    page, paper = tmp_path / "page.html", tmp_path / "paper.pdf"
    page.write_text(f"<p>{fact(LASTS, 'three <i>days</i>')}<p>{FILLING}")
    towns.write_text(fact(RULES, "Ida"))
    paper.write_bytes(pdf(fact(COSTS, "two").replace("costs", "\ncosts")))
    found = ((LASTS, "three days", page), (COSTS, "two", paper), (RULES, "Ida", towns))
    for question, name, path in found:
        line = ["--checkpoint", checkpoint, "--question", question]
        assert run(*line, "--document", path, "--top", 1) == 0
        first, place, _ = capsys.readouterr().out.splitlines()
        assert first == f"1. {name}"
        assert f": {path}, paragraph 1, " in place
    assert run(*line, "--document", towns, page, paper, "--top", 6) == 0
    out = capsys.readouterr().out
    scores = [float(score) for score in re.findall(r"\(score (-?[\d.]+)\)", out)]
    assert len(scores) == 6
    assert scores == sorted(scores, reverse=True)
    assert all(str(path) in out for *_, path in found)


def test_order_of_answers() -> None:
    """What the model holds for the likeliest type in its part goes before what it does not."""
    source = Source("x", "x", ("One two.",))
    characters = torch.tensor([[-1, 0, 4], [-1, 3, 8]])
    document = Document(source.paragraphs, torch.tensor([0]), characters)
    part = qa_reading.Part(source, (0,), torch.arange(3), document)

    def read(types: dict[str, float], **scores: float) -> qa_reading.PartRead:
        types = dict.fromkeys(TYPES, 0.01) | types
        short = [document.answer(1, 2, scores["short"]), Answer("yes", scores["yes"])]
        answers = Answers(types, short, [(0, math.log(0.8))])
        return qa_reading.PartRead(part, answers, {})

    reads = [
        read({"none": 0.9}, short=-0.1, yes=-3.0),  # none of it is meant
        read({"short": 0.9}, short=-2.0, yes=-0.5),
        read({"long": 0.5, "yes": 0.4}, short=-4.0, yes=-0.9),
    ]
    found = qa_reading.ranked(reads, 9)
    assert [(reads.index(each.read), each.type) for each in found] == [
        *(
            (2, "long"),
            (1, "short"),
            (0, "short"),
            (1, "yes"),
            (2, "yes"),
            (0, "yes"),
            (2, "short"),
        ),
        *((0, "long"), (1, "long")),
    ]
    assert [each.is_meant for each in found] == [True] * 2 + [False] * 7
    assert found[0].probability == pytest.approx(0.8 * 0.5)
    assert found[0].sentence() == ("", "One two.", "")
    assert found[1].sentence() == ("", "One", " two.")
    assert [each.type for each in qa_reading.ranked(reads, 2)] == ["long", "short"]


def test_a_piece_of_a_paragraph_answers_with_what_it_holds() -> None:
    """A long answer is no more than its part holds; a piece of blanks alone is none."""
    source = Source("x", "x", ("One two.",))
    characters = torch.tensor([[-1, 3, 4, -1, 7], [-1, 3, 7, -1, 7]])
    document = Document(source.paragraphs * 2, torch.tensor([0, 3]), characters)
    part = qa_reading.Part(source, (0, 0), torch.arange(5), document)
    types = dict.fromkeys(TYPES, 0.0) | {"long": 1.0}
    read = qa_reading.PartRead(part, Answers(types, [], [(0, -1.0), (1, -0.5)]), {})
    (found,) = qa_reading.ranked([read], 9)
    assert found.answer == Answer("two", -1.0, 0, (4, 7), (2, 3))


@pytest.mark.parametrize(
    ("probability", "told"),
    [(0.98765, "0.988"), (0.001, "0.001"), (0.00051, "5.1e-04"), (1.23e-5, "1.2e-05")],
)
def test_small_probabilities_are_told(probability: float, told: str) -> None:
    assert qa_reading.figures(probability) == told


def test_no_answer_is_told(checkpoint: Path, towns: Path, capsys: pytest.CaptureFixture) -> None:
    line = ["--checkpoint", checkpoint, "--document", towns, "--question"]
    assert run(*line, WHY) == 0
    first = capsys.readouterr().out.splitlines()[0]
    found = re.fullmatch(
        r"No answer: with probability (0\.\d+|1\.0+) nothing answers this\. Next likely:", first
    )
    assert float(found[1]) > 0.5


@torch.no_grad()
def test_parts_are_all_of_a_document(reader: qa_reading.DocumentReader) -> None:
    """Whole paragraphs where they fit, else pieces; each token stands for what it stood for."""
    long = " ".join(fact(RULES, name) for name in FACTS[RULES][1] * 3)
    texts = ("One.", fact(RULES, "Noor"), long, "A few words.", "\u00e9")
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
        if most == 40:  # the last piece of the long one has room for more
            assert [part.numbers[0] for part in parts][:2] == [0, 2]
            assert parts[0].numbers == (0, 1)


def test_titles_stand_where_they_stood_in_training(
    checkpoint: Path, data: Path, tmp_path: Path
) -> None:
    """A file's title before each of its paragraphs; no answer lies in it."""
    shutil.copytree(data, tmp_path / "data")
    record = json.loads((data / "prepared.json").read_text())
    record["recipe"]["titles"] = True
    (tmp_path / "data" / "prepared.json").write_text(json.dumps(record))
    with_titles = qa_reading.DocumentReader(str(checkpoint), str(tmp_path / "data"), cpu=True)
    source = Source("x", RULES, (FILLING, fact(RULES, "Ida")))
    (part,) = with_titles.parts(source, 1000)
    title = with_titles.question(RULES)[1:-1]
    for start in part.document.starts.tolist():
        assert torch.equal(part.tokens[start + 1 : start + 1 + len(title)], title)
        assert (part.document.characters[:, start : start + 1 + len(title)] == -1).all()
        assert part.document.characters[0, start + 1 + len(title)] == 0


def test_a_long_document_is_read_in_parts(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    """The model never sees more tokens than it may, and finds what stands in any part."""
    text = [FILLING] * 150
    text[93] = fact(RULES, "Otto")
    (tmp_path / "long").write_text(" ".join(text))
    seen, forward = [], ClusterformerReader.forward

    def record(self, question_tokens, document_tokens, text_mask):
        seen.append(document_tokens.size(1))
        return forward(self, question_tokens, document_tokens, text_mask)

    monkeypatch.setattr(ClusterformerReader, "forward", record)
    line = ["--checkpoint", checkpoint, "--document", tmp_path / "long", "--tokens-at-once", 100]
    assert run(*line, "--question", COSTS) == 0
    assert capsys.readouterr().out.startswith("1. Otto\n")
    assert len(seen) > 5
    assert max(seen) == 100


@torch.no_grad()
def test_clusters_are_those_of_the_layers(reader: qa_reading.DocumentReader) -> None:
    """Every token has the cluster that it has in the sequence of questions and windows."""
    encoder, source = reader.model.encoder, Source("x", "x", (fact(RULES, "Noor"),) * 9)
    (part,) = reader.parts(source, 1000)
    asked = reader.question(RULES)
    read = reader.read(asked, part, 1)
    (sequence,) = token_clusters(encoder, asked[None], part.tokens[None]).values()
    (name,) = read.clusters
    assert name == "layer 2 of 3, kmeans"
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
    texts = [fact(RULES, "Ida") + " <b>&amp; na\u00efve \U0001f370</b>", "</script> two"]
    (tmp_path / "a.txt").write_text("\n\n".join(texts), encoding="utf-8")
    out = tmp_path / "page.html"
    line = ["--checkpoint", checkpoint, "--document", tmp_path / "a.txt", "--html", out]
    assert run(*line, "--question", RULES, "--top", 1) == 0
    answer = capsys.readouterr().out.splitlines()[0].removeprefix("1. ")
    page = _Page(out)
    assert page.paragraphs == texts
    assert "".join(page.answers.values()).strip() == answer
    assert page.links == []
    assert "//" not in out.read_text(encoding="utf-8")
    (clusters,) = page.data["parts"][0]
    assert len(clusters) > max(page.tokens)
    assert set(clusters) <= set(range(4))
    assert page.data["answers"] == [[0, [min(page.answers), max(page.answers) + 1]]]
    assert not out.with_name("page.html.partial").exists()


def test_page_shows_an_answer_that_begins_within_a_character() -> None:
    """Several tokens may be bytes of one character, which the first of them shows."""
    characters = torch.tensor([[-1, 0, 1, 1, 1, 2], [-1, 1, 2, 2, 2, 3]])
    document = Document(["a\u4e00b"], torch.tensor([0]), characters)
    part = qa_reading.Part(Source("x", "x", ("a\u4e00b",)), (0,), torch.arange(6), document)
    answer = document.answer(4, 6, -1.0)
    assert answer.text == "\u4e00b"
    read = qa_reading.PartRead(part, Answers({"short": 1.0}, [answer], []), {})
    html = answer_page.page("?", [qa_reading.Found(read, answer, "short")])
    assert '"answers":[[0,[2,6]]]' in html
    assert re.findall(r'<span data-i="(\d)" class="answer">(.)</span>', html) == [
        *(("2", "\u4e00"), ("5", "b"))
    ]


def test_page_of_a_question_without_an_answer(
    checkpoint: Path, towns: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    out = tmp_path / "page.html"
    line = ["--checkpoint", checkpoint, "--document", towns, "--html", out]
    assert run(*line, "--question", WHY) == 0
    assert "nothing here answers this" in out.read_text(encoding="utf-8")
    assert run(*line, "--html", tmp_path / "no" / "page", "--question", WHY) == 1
    error = capsys.readouterr().err
    assert re.fullmatch(r"answer.py: error: --html is .*: No such file .*; allowed: .*\n", error)


def test_several_questions(checkpoint: Path, towns: Path, capsys: pytest.CaptureFixture) -> None:
    line = ["--checkpoint", checkpoint, "--document", towns, "--top", 1]
    assert run(*line, "--question", RULES, "--question", COSTS) == 0
    rows = capsys.readouterr().out.splitlines()
    assert (rows[0], rows[1], rows[4], rows[5]) == (
        *(f"? {RULES}", "1. the Elm", f"? {COSTS}", "1. five"),
    )
    assert run(*line, "--question", RULES) == 0
    assert capsys.readouterr().out.startswith("1. ")


def test_interactive(
    checkpoint: Path, towns: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """A question a line; a mistake is told, and the next one answered. All is loaded once."""
    loads = []
    load = qa_reading.load_reader
    monkeypatch.setattr(qa_reading, "load_reader", lambda *args: loads.append(args) or load(*args))
    lines = [COSTS, "", "What " * 50, RULES + "\n"]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines)))
    line = ["--checkpoint", checkpoint, "--document", towns, "--top", 1, "--interactive"]
    assert run(*line, "--question", RULES) == 0
    out, err = capsys.readouterr()
    assert [row for row in out.splitlines() if row.startswith("1. ")] == [
        *("1. the Elm", "1. five", "1. the Elm")
    ]
    asked = [row for row in out.splitlines() if row.startswith("? ")]
    assert asked == [f"? {question.strip()}" for question in (RULES, COSTS, "What " * 50, RULES)]
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
    assert "of the task translation; allowed: a reader" in refused(
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


def test_the_words_of_tokens(reader: qa_reading.DocumentReader) -> None:
    source = Source("a.txt", "", ["All is well (here).", "Ninety coins!"])
    (part,) = reader.parts(source, 1000)
    words = document_clusters.words_of(part)
    assert len(words) == len(part.tokens)
    merged = [word for i, word in enumerate(words) if word and word != (words[i - 1] if i else "")]
    assert merged == ["<s>", *"All is well ( here ) .".split(), "<s>", "Ninety", "coins", "!"]


def test_a_picture_of_clusters(checkpoint: Path, towns: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "clusters.png"
    line = ["--checkpoint", checkpoint, "--document", towns, "--question", RULES, "--cpu"]
    assert document_clusters.main([*map(str, line), "--out", str(out), "--clusters", "3"]) == 0
    assert out.read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.glob(".*")] == []
    for more, message in (
        (["--out", tmp_path / "a.jpg"], "--out is .*a.jpg; allowed: a .png"),
        (["--out", out, "--layer", "9"], "--layer is '9'; allowed: 'layer 2 of 3, kmeans'"),
    ):
        assert document_clusters.main([*map(str, line), *map(str, more)]) == 1
        assert re.search(message, capsys.readouterr().err)
