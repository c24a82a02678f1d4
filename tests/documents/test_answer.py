"""Questions to files of text, HTML and PDF: what is found, where, and what is refused."""

import io
import json
import math
import random
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from selectolax.lexbor import LexborHTMLParser

from fairseq_clusterformer import load
from fairseq_clusterformer.answers import Answer
from fairseq_clusterformer.attention.inspect import token_clusters
from fairseq_clusterformer.checkpoints import load as loading
from fairseq_clusterformer.checkpoints.load import load_checkpoint
from fairseq_clusterformer.cli import main
from fairseq_clusterformer.documents import found as finding
from fairseq_clusterformer.documents import read as reading
from fairseq_clusterformer.documents.drawing import answer_page
from fairseq_clusterformer.documents.sentences import Index
from fairseq_clusterformer.documents.sources import Source
from fairseq_clusterformer.errors import UserError
from tests.cli.in_process import QUESTIONS, train
from tests.data.subword_models import LOSSLESS, write_sentencepiece
from tests.documents.commands import error
from tests.documents.sections import read_of, section_of
from tests.models.bert import folder_of

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
    """Contexts that answer two questions, and one of these, or ``WHY``."""
    draw, contexts = random.Random(seed), []
    for i in range(number):
        told = {question: draw.choice(FACTS[question][1]) for question in draw.sample([*FACTS], 2)}
        sentences = [fact(*pair) for pair in told.items()] + [FILLING] * draw.randint(0, 6)
        draw.shuffle(sentences)
        context, question = " ".join(sentences), draw.choice([*told])
        before, _ = FACTS[question][0].split("{}")
        start = context.index(fact(question, told[question])) + len(before)
        asked = {
            "question": question,
            "answers": [{"text": told[question], "answer_start": start}],
        }
        if i % 4 == 0:
            asked = {"question": WHY, "answers": [], "is_impossible": True}
        contexts.append({"context": context, "qas": [asked | {"id": f"{i}"}]})
    return {"version": "v2.0", "data": [{"title": "Towns", "paragraphs": contexts}]}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As ``clusterformer prepare qa`` makes it."""
    folder = tmp_path_factory.mktemp("towns")
    texts = [fact(question, name) for question in FACTS for name in FACTS[question][1]]
    texts += [FILLING, WHY, *FACTS] * 3
    model = write_sentencepiece(folder / "some.model", texts, vocab_size=360, **LOSSLESS)
    for split, (number, seed) in {"train": (400, 1), "dev": (2, 2)}.items():
        (folder / f"{split}-v2.0.json").write_text(json.dumps(squad(number, seed)))
    line = ["squad2", folder / "data", "--source", folder, "--sentencepiece-model", model]
    assert main.main(["prepare", "qa", *map(str, line)]) == 0
    return folder / "data"


@pytest.fixture(scope="module")
def checkpoint(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that has learned to find a name, and when there is none."""
    folder = tmp_path_factory.mktemp("reader")
    train(data, TRAINING, folder)
    return folder / "checkpoint_last.pt"


@pytest.fixture(scope="module")
def reader(checkpoint: Path) -> reading.Reader:
    return reading.Reader(load_checkpoint(checkpoint), device="cpu")


@pytest.fixture
def towns(tmp_path: Path) -> Path:
    """Two paragraphs."""
    path = tmp_path / "towns.txt"
    path.write_text(f"{fact(RULES, 'the Elm')} {FILLING}\n\n{FILLING}\n{fact(COSTS, 'five')}\n")
    return path


def run(*arguments: object) -> int:
    return main.run(["answer"], [str(argument) for argument in arguments])


def refused(capsys: pytest.CaptureFixture, *arguments: object) -> str:
    """The one line that a refused call prints."""
    return error(capsys, "answer", *arguments)


def test_the_best_answers(checkpoint, towns, capsys):
    line = ["--checkpoint", checkpoint, "--document", towns, "--top", 1]
    assert run(*line, "--question", RULES, "--question", COSTS) == 0
    rows = capsys.readouterr().out.splitlines()
    for i, question, name, place, around in (
        (0, RULES, "the Elm", "paragraph 1, characters [18, 25)", "In the town rules [the Elm]."),
        (4, COSTS, "five", "paragraph 2, characters [25, 29)", "A bed costs [five] coins."),
    ):
        asked, first, where, sentence = rows[i : i + 4]
        assert (asked, first, sentence) == (f"? {question}", f"1. {name}", f"   {around}")
        pattern = r"   probability (0\.\d{3})(?:, low confidence)?: (.*)"
        found = re.fullmatch(pattern, where)
        assert float(found[1]) > 0.3
        assert found[2] == f"{towns}, {place}"


def test_a_document_does_not_command_the_terminal(checkpoint, tmp_path, capsys):
    path = tmp_path / "a\x1b]0;b\x07.txt"
    path.write_text(fact(RULES, "the Elm").replace(" ", " \x1b[2J\x9b ", 1))
    (tmp_path / "\x1bc.txt").write_text("")
    line = ["--checkpoint", checkpoint, "--question", RULES]
    assert run(*line, "--document", tmp_path) == 0
    out, err = capsys.readouterr()
    assert "the Elm" in out
    assert "\ufffd[2J\ufffd" in out
    assert "\ufffdc.txt" in err
    assert run(*line, "--document", tmp_path / "\x1bc.txt") == 1
    for text in (out, err, *capsys.readouterr()):
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", text)


def section_read(name: str, types: dict[str, float], short: list[Answer], **more):
    """Of a document of one paragraph, a word of three characters and one of five."""
    characters = torch.tensor([[-1, 0, 4], [-1, 3, 8]])
    section = section_of(Source(name, name, ("One two.",)), characters)
    return read_of(section, types, short, **more)


def span(score: float) -> Answer:
    return Answer("One", score, 0, (0, 3), (1, 2))


def test_one_section_keeps_the_probabilities_of_the_reader():
    types = {"short": 0.6, "yes": 0.1, "none": 0.3}
    read = section_read("x", types, [span(math.log(0.5)), Answer("yes", math.log(0.1))])
    ranking = finding.ranked([read], 9)
    found = {each.text: each.probability for each in ranking}
    assert found == {"One": pytest.approx(0.5), "yes": pytest.approx(0.1)}
    assert ranking.no_answer == pytest.approx(0.3)
    assert ranking.found
    assert ranking[0].around() == ("", "One", " two.")
    assert ranking[0].context == "One two."


def test_yes_and_no_are_no_guesses_beside_spans_by_margins():
    answers = [span(math.log(0.2)), Answer("yes", math.log(0.1)), Answer("no", math.log(0.3))]
    for short, texts in ((answers[:2], ["One"]), (answers, ["no", "One"])):
        read = section_read("x", {"short": 0.6, "none": 0.1}, short)
        read.answers = replace(read.answers, none=math.log(0.1))
        assert [each.text for each in finding.ranked([read], 9)] == texts


def test_a_short_file_does_not_win_by_being_short():
    """In it one span is as good as certain, by logits that are far below the right file's."""
    types = {"short": 0.8, "none": 0.2}
    reads = [
        section_read("short", types, [span(math.log(0.79))], evidence=3.0),
        section_read("right", types, [span(math.log(0.3))], evidence=9.0),
    ]
    ranking = finding.ranked(reads, 2)
    assert [each.file for each in ranking] == ["right", "short"]
    assert ranking.no_answer == pytest.approx(0.2)
    # and a file that says by itself that nothing answers comes behind
    reads[1] = section_read("right", {"short": 1e-6, "none": 1.0}, [span(-15.0)], evidence=9.0)
    assert finding.ranked(reads, 2)[0].file == "short"


def test_probabilities_of_all_files_sum_to_one():
    noes = [0.1, 0.5, 0.999]
    reads = [
        section_read(each, {"short": 1 - no, "none": no}, [span(math.log1p(-no))], evidence=e)
        for each, no, e in zip("abc", noes, (1.0, 3.0, 2.0), strict=True)
    ]
    ranking = finding.ranked(reads, 9, -math.inf)
    total = sum(each.probability for each in ranking if each.type == "short")
    assert total + ranking.no_answer == pytest.approx(1, abs=1e-5)
    empty = section_read("a", {"none": 1.0}, [], evidence=-math.inf)
    assert finding.ranked([empty], 3).no_answer == pytest.approx(1, abs=1e-6)


def test_answers_of_the_likeliest_type_come_first():
    """As the reader is scored: a span may be less likely than yes, and spans together likelier."""
    answers = [span(math.log(0.2)), Answer("yes", math.log(0.3))]
    types = {"short": 0.5, "yes": 0.3, "none": 0.2}
    found = finding.ranked([section_read("x", types, answers, long=[(0, 0.0)])], 9)
    assert [each.type for each in found] == ["short", "yes", "long"]
    types = {"long": 0.5, "yes": 0.3, "none": 0.2}
    (first, *_) = finding.ranked([section_read("x", types, answers, long=[(0, 0.0)])], 9)
    assert (first.type, first.text, first.around()) == ("long", "One two.", ("", "One two.", ""))


def test_a_piece_of_a_paragraph_answers_with_what_it_holds():
    """A long answer is no more than its section holds; a piece of blanks alone is none."""
    characters = torch.tensor([[-1, 3, 4, -1, 7], [-1, 3, 7, -1, 7]])
    section = section_of(Source("x", "x", ("One two.",) * 2), characters, (0, 3))
    read = read_of(section, {"long": 1.0}, [], long=[(0, -1.0), (1, -0.5)])
    (found,) = finding.ranked([read], 9)
    assert (found.text, found.characters, found.paragraph) == ("two", (4, 7), 0)


@pytest.mark.parametrize(
    ("text", "cut", "whole"),
    [
        ("King Rodrigues of 1,500 men", "Rodrigue", "Rodrigues"),
        ("King Rodrigues of 1,500 men", "of 1", "of 1,500"),
        ("Otto's horse", "Ott", "Otto"),
        ("by O'Brien, the 3rd", "Brien", "O'Brien"),
        ("the Franco-Prussian war", "Prussia", "Prussian"),
        ("$5 million.", "5 m", "$5 million"),
        ("it cost -\u20ac.5, no more", ".5", "-\u20ac.5"),
        ("A$5", "5", "5"),
        ("\u6771\u4eac\u306f\u65e5\u672c", "\u4eac", "\u4eac"),
        ("One two", "One two", "One two"),
        ("fell to -2 degrees", "2", "-2"),
        ("\u22122.5 to +3", "2.5", "\u22122.5"),
        ("-7 it was (-9 at night)", "7", "-7"),
        ("-7 it was (-9 at night)", "9 at", "-9 at"),
        ("in 1914-18", "18", "18"),
        ("in A-4", "4", "4"),
        ("Smith (1966)", "(1966", "1966"),
        ("Smith (1966)", "1966)", "1966"),
        ("Smith (1966)", "(1966)", "(1966)"),
        ("Smith (1966)", "Smith (1966", "Smith (1966"),
        ('called "The Elm"', '"The Elm', "The Elm"),
        ('called "The Elm"', '"The Elm"', '"The Elm"'),
        ("\u201cSo it is\u201d", "is\u201d", "is"),
        ("\u201c(Foo) is", "\u201c(Foo", "Foo"),
        ("na\u00efve", "\u00efv", "na\u00efve"),
        # abbreviations keep their points, and end no sentence, which stands between bars
        ("He left. |It is in L.A. now.| So.", "L.A", "L.A."),
        ("Who? |Dr. King Jr. spoke.| So.", "King Jr", "King Jr."),
        ("So. |J. R. R. Tolkien wrote it.|", "Tolkien", "Tolkien"),
        ("|Born at 5 p.m. in D.C.|", "D.C", "D.C."),
        ("|It fell.| Then he went.", "fell", "fell"),
    ],
)
def test_answers_are_whole_words(text, cut, whole):
    _, *sentence = text.split("|")
    text = text.replace("|", "")
    start = text.index(cut)
    start, end = finding.whole_words(text, start, start + len(cut))
    assert text[start:end] == whole
    if sentence:
        assert text[slice(*finding.sentence_around(text, start, end))].strip() == sentence[0]


def test_spans_that_become_the_same_words_are_one_answer():
    source = Source("x", "x", ("Rodrigues",))
    characters = torch.tensor([[-1, 0, 8], [-1, 8, 9]])
    section = section_of(source, characters)
    short = [Answer("Rodrigue", -1.0, 0, (0, 8), (1, 2)), Answer("s", -2.0, 0, (8, 9), (2, 3))]
    found = finding.ranked([read_of(section, {"short": 0.6}, short)], 3)
    assert [each.text for each in found if each.type == "short"] == ["Rodrigues"]


def test_guesses_are_three_sentences_each_once():
    """Where no answer is found: no paragraph as a whole, and no sentence or text twice."""
    text = "One two. " * 2 + "Otto rules Ulm. " * 40 + "Ida rules."
    spans = [(0, 3), (4, 7), (9, 12), (18, 22), (len(text) - 10, len(text) - 7)]
    short = [
        Answer(text[a:b], -3.0 - i, 0, (a, b), (i + 1, i + 2)) for i, (a, b) in enumerate(spans)
    ]
    starts, ends = zip(*spans, strict=True)
    section = section_of(Source("x", "x", (text,)), torch.tensor([[-1, *starts], [-1, *ends]]))
    types = {"none": 0.9, "short": 0.1, "long": 0.09}
    found = finding.ranked([read_of(section, types, short, long=[(0, 0.0)])], 9)
    assert not found.found
    assert [each.text for each in found] == ["One", "Otto", "Ida"]
    assert not any(each.found for each in found)
    assert all(0 < each.probability < 0.1 for each in found)
    (guess,) = finding.ranked([read_of(section, types, [], long=[(0, 0.0)])], 9)
    assert (guess.type, guess.text, guess.context) == ("long", "One two.", "One two.")
    found = finding.ranked([read_of(section, {"none": 0.01, "short": 0.99}, [span(-0.1)])], 9)
    assert found.found
    assert found[0].found


def test_a_question_of_unknown_words_keeps_the_bound(reader, monkeypatch):
    """And says that no word of it is in the documents."""
    read, read_all = [], reader.read
    monkeypatch.setattr(reader, "read", lambda *x: read.extend(x[1]) or read_all(*x))
    passages = reader.passages(reader.sections(Source("x", "x", (FILLING,) * 60), 20))
    assert len(passages) > 20
    ranking = reader.ask("Quid?", passages, 3, windows=4)
    assert len(read) == 4
    assert "No word of the question is in the documents." in ranking.note
    assert "No word" not in reader.ask("What is well?", passages, 3, windows=4).note


@torch.no_grad()
def test_sections_are_all_of_a_document(reader):
    """Whole paragraphs where they fit, else pieces; each token stands for what it stood for."""
    long = " ".join(fact(RULES, name) for name in FACTS[RULES][1] * 3)
    texts = ("One.", fact(RULES, "Noor"), long, "A few words.", "\u00e9")
    source = Source("x", "x", texts)
    (whole,) = reader.sections(source, 10_000)
    assert [piece.number for piece in whole.pieces] == [0, 1, 2, 3, 4]
    for most in (2, 7, 40, len(whole.tokens) - 1):
        parts = reader.sections(source, most)
        assert len(parts) > 1
        assert max(len(part.tokens) for part in parts) <= most
        read = [""] * len(texts)
        for part in parts:
            start, end = part.document.characters
            heads = part.document.starts.tolist()
            assert (part.tokens[part.document.starts] == 0).all()
            for i, number in enumerate(piece.number for piece in part.pieces):
                assert part.document.texts[i] == texts[number]
                last = heads[i + 1] if i + 1 < len(heads) else len(part.tokens)
                for token in range(heads[i] + 1, last):
                    place, first, after = part.document.place(token, token + 1)
                    assert (place, first, after) == (i, int(start[token]), int(end[token]))
                    read[number] += texts[number][max(len(read[number]), first) : after]
        assert tuple(read) == texts
        if most == 40:  # the last piece of the long one has room for more
            assert [part.pieces[0].number for part in parts][:2] == [0, 2]
            assert len(parts[0].pieces) == 2


def test_titles_stand_where_they_stood_in_training(checkpoint, data, tmp_path):
    """A file's title before each of its paragraphs; no answer lies in it."""
    shutil.copytree(data, tmp_path / "data")
    record = json.loads((data / "prepared.json").read_text())
    record["recipe"]["titles"] = True
    (tmp_path / "data" / "prepared.json").write_text(json.dumps(record))
    with_titles = reading.Reader(load_checkpoint(checkpoint, data=tmp_path / "data"), device="cpu")
    source = Source("x", RULES, (FILLING, fact(RULES, "Ida")))
    (part,) = with_titles.sections(source, 1000)
    title = with_titles.question(RULES)[1:-1]
    for start in part.document.starts.tolist():
        assert torch.equal(part.tokens[start + 1 : start + 1 + len(title)], title)
        assert (part.document.characters[:, start : start + 1 + len(title)] == -1).all()
        assert part.document.characters[0, start + 1 + len(title)] == 0


@torch.no_grad()
def test_clusters_are_those_of_the_layers(reader):
    """Every token has the cluster that it has in the sequence of questions and windows."""
    encoder, source = reader.model.encoder, Source("x", "x", (fact(RULES, "Noor"),) * 9)
    (part,) = reader.sections(source, 1000)
    asked = reader.question(RULES)
    (read,) = reader.read(asked, [part], 1)
    (sequence,) = token_clusters(encoder, asked[None], part.tokens[None]).values()
    (layer,) = read.clusters
    assert layer == (1, "layer 1 of layers 0 to 2, kmeans")
    length, stride = len(part.tokens), encoder.stride
    assert length > 2 * encoder.size
    step = len(asked) + stride
    expected = [
        int(sequence[0, 0, i // stride * step + len(asked) + i % stride]) for i in range(length)
    ]
    assert read.clusters[layer].tolist() == expected
    assert len(set(expected)) > 1


def test_page(checkpoint, tmp_path, capsys):
    """A file that needs nothing else: all text, each token with its cluster, the answers."""
    evil = "</script><script>alert(1)</script> \u2028"
    texts = [f"{fact(RULES, 'Ida')} <b>&amp; na\u00efve \U0001f370</b>", f"{evil.strip()} two"]
    (tmp_path / "a.txt").write_text("\n\n".join(texts), encoding="utf-8")
    out = tmp_path / "page.html"
    line = ["--checkpoint", checkpoint, "--document", tmp_path / "a.txt", "--html", out]
    assert run(*line, "--question", RULES, "--top", 1) == 0
    first, place = capsys.readouterr().out.splitlines()[:2]
    file = re.escape(str(tmp_path / "a.txt"))
    said = re.fullmatch(rf" +(probability .*): ({file}, paragraph (\d)), characters .*", place)
    html = out.read_text(encoding="utf-8")
    assert f"<small>{said[1]}; {said[2]}</small>" in html
    assert "//" not in html
    assert html.count("<script>") == html.count("</script>") == 1
    page = LexborHTMLParser(html)
    assert page.css("[src],[href]") == []
    paragraphs = page.css("section p")
    assert len(paragraphs[int(said[3]) - 1].css(".answer")) == len(page.css(".answer")) > 0
    assert "".join(each.text() for each in page.css(".answer")).strip() == first[3:]
    data = json.loads(re.search(r"^const data = (.*);$", html, re.MULTILINE)[1])
    ((section, head),) = data["answers"]
    assert section == 0
    assert str(head) in [each.attributes["data-i"] for each in page.css(".answer")]
    (clusters,) = data["sections"][0]
    assert len(clusters) > max(int(each.attributes["data-i"]) for each in page.css("[data-i]"))
    assert set(clusters) <= set(range(4))
    page.strip_tags(["small"])
    assert [each.text().strip("\n") for each in paragraphs] == texts
    assert not out.with_name("page.html.partial").exists()


def test_page_of_a_question_that_would_end_the_script():
    read = section_read("</script><script>", {"short": 0.9, "none": 0.1}, [span(-0.2)])
    read.clusters[1, "</script><script>"] = torch.tensor([0, 1, 1])
    html = answer_page("</script><script>alert(1)</script>\u2028", finding.ranked([read], 3))
    assert html.count("<script>") == html.count("</script>") == 1


def page_of(section, answer):
    return answer_page("?", finding.ranked([read_of(section, {"short": 0.6}, [answer])], 1))


def test_page_opens_with_one_token_of_the_answer():
    """The longest word's, in all clusters that it has."""
    characters = torch.tensor([[-1, 0, 2, 6, 9], [-1, 2, 6, 9, 10]])
    section = section_of(Source("x", "x", ("in the Elm",)), characters)
    html = page_of(section, section.document.answer(1, 5, -1.0))
    assert '"answers":[[0,3]]' in html


def test_page_shows_an_answer_that_begins_within_a_character():
    """Several tokens may be bytes of one character, which the first of them shows."""
    characters = torch.tensor([[-1, 0, 1, 1, 1, 2], [-1, 1, 2, 2, 2, 3]])
    section = section_of(Source("x", "x", ("a\u4e00b",)), characters)
    answer = section.document.answer(4, 6, -1.0)
    assert answer.text == "\u4e00b"
    shown = re.findall(r'<span data-i="(\d)" class="answer">(.)</span>', page_of(section, answer))
    assert shown == [("2", "\u4e00"), ("5", "b")]


def test_interactive(checkpoint, towns, monkeypatch, capsys):
    """A question a line; a mistake is reported, and the next one answered. All is loaded once."""
    loads, load = [], loading.load_checkpoint
    monkeypatch.setattr(
        loading, "load_checkpoint", lambda *args, **more: loads.append(args) or load(*args, **more)
    )
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
    assert re.fullmatch(
        r".* answer: error: --question is What .*\.\.\.: has \d+ subwords; allowed: 22.*\n",
        err,
    )
    assert len(loads) == 1


def test_letters_that_cannot_be_read_or_shown(checkpoint, towns, monkeypatch, capsys):
    """A question in Latin-1 is refused by itself, and an ASCII terminal has no ellipsis."""
    asked = io.BytesIO(f"Caf\u00e9?\n{COSTS}\n".encode("latin-1"))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(asked, "utf-8"))
    shown = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(shown, "ascii"))
    towns.write_text(f"{fact(COSTS, 'five')} \u201cSo it is\u201d \u2013 {'and ' * 60}on.")
    line = ["--checkpoint", checkpoint, "--document", towns, "--top", 1, "--interactive"]
    assert run(*line, "--question", f"{COSTS} \u00e9") == 0
    out, err = shown.getvalue().decode(), capsys.readouterr().err
    assert "? Caf\\ufffd?\n" in out
    assert f"? {COSTS}\n1. five\n" in out
    assert "error: --question is 'Caf\\udce9?': no Unicode; allowed: a question" in err


def test_mistakes(checkpoint, data, towns, translation_model, tmp_path, capsys):
    model, ask = ["--checkpoint", checkpoint], ["--document", towns, "--question", "Who?"]
    assert "nowhere: No such file" in refused(capsys, *model, *ask, "--document", "nowhere")
    assert "of the task translation" in refused(capsys, "--checkpoint", translation_model, *ask)
    assert "--question is empty" in refused(capsys, *model, *ask[:-1], " ")
    line = refused(capsys, *model, *ask[:-1], "What " * 500)
    assert "allowed: 22 subwords or fewer" in line
    assert len(line) < 250
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "dict.txt").write_text((data / "dict.txt").read_text())
    line = refused(capsys, *model, *ask, "--data", tmp_path / "data")
    assert "that clusterformer prepare qa has made" in line
    for wrong in ([], ["--question", "Who?", "--tokens-at-once", "1"]):
        with pytest.raises(SystemExit):
            run(*model, "--document", towns, *wrong)
        assert "allowed: " in capsys.readouterr().err


def test_answers_in_python(reader, towns):
    """Texts and files together; an answer says where it is from."""
    found = reader.answer(RULES, [FILLING, towns])
    place = found[0].file, found[0].paragraph, found[0].characters, found[0].context
    assert place == (str(towns), 0, (18, 25), "In the town rules the Elm.")
    assert 0.3 < found[0].probability <= 1
    (one,) = reader.answer(COSTS, f"{FILLING}\n\n{fact(COSTS, 'five')}", top=1)
    assert (one.text, one.file, one.paragraph) == ("five", "text 0", 1)
    assert reader.answer(COSTS, towns.parent, top=1)[0].text == "five"
    with pytest.raises(UserError, match="documents is text 0: is empty"):
        reader.answer(RULES, [" "])


def test_sentence_vectors_choose_passages(checkpoint, towns, tmp_path, monkeypatch):
    """Made once for a document, by the reader that an index was opened with or by a later one."""
    encoder, made, put = folder_of("bert", tmp_path / "bert"), [], Index.put
    monkeypatch.setattr(Index, "put", lambda self, own: made.extend(own) or put(self, own))
    for _ in range(2):
        reader = load(checkpoint, device="cpu")
        passages = reader.index(towns, tmp_path / "index", encoder=encoder)
        assert reader.answer(RULES, passages, top=1)[0].text == "the Elm"
        assert reader.answer(COSTS, towns, top=1)[0].text == "five"
        assert all(0 < abs(likeness) < 1.01 for *_, likeness in passages.likeliest(RULES, 9))
    assert len(made) == len(passages)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_quantised_reader(checkpoint, towns):
    """Also fairseq's layers, which do not call their projections but read their weights."""
    quantised = reading.Reader(load_checkpoint(checkpoint), device="cpu")
    quantised.model = torch.ao.quantization.quantize_dynamic(quantised.model)
    (found,) = quantised.answer(RULES, towns, top=1)
    assert found.text == "the Elm"


def test_a_drawing(checkpoint, towns, tmp_path, capsys):
    out = tmp_path / "drawn"
    line = ["--checkpoint", checkpoint, "--document", towns, "--question", RULES, "--out", out]
    assert main.main(["draw", *map(str, line)]) == 0
    assert "clusters.html: 1 clusterings of " in capsys.readouterr().out
    page = (out / "clusters.html").read_text()
    assert "layer 1 of layers 0 to 2, kmeans" in page
    text = re.sub(r"<[^>]+>", "", page.split("<pre", 1)[1])
    for paragraph in towns.read_text().split("\n\n"):
        assert " ".join(paragraph.split()) in text
    assert "--question is missing" in error(capsys, "draw", *line[:4], "--out", out)
