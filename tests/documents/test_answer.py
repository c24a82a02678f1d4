"""Questions to documents: what is read, what is found and where, what is shown and refused."""

import io
import json
import math
import re
import shutil
from itertools import pairwise
from pathlib import Path
from unittest import mock

import pytest
import torch
from selectolax.lexbor import LexborHTMLParser

from fairseq_clusterformer import load
from fairseq_clusterformer.attention.inspect import token_clusters
from fairseq_clusterformer.checkpoints import load as loading
from fairseq_clusterformer.checkpoints.load import load_checkpoint
from fairseq_clusterformer.documents import sources
from fairseq_clusterformer.documents.drawing import answer_page
from fairseq_clusterformer.documents.found import Weights, ranked
from fairseq_clusterformer.documents.passages import Index
from fairseq_clusterformer.documents.read import Reader
from fairseq_clusterformer.documents.sources import Source, text_source
from fairseq_clusterformer.errors import UserError
from tests.cli.in_process import QUESTIONS, train
from tests.cli.towns import long_text
from tests.documents.commands import error, run, usage_error
from tests.documents.sections import read_of, section_of
from tests.models.bert import folder_of

ASKED, OTHER = "Who rules Bree?", "Who rules Lund?"
TOWNS = "Otto rules Ulm. Noor rules Bree."


@pytest.fixture(scope="module")
def reader(towns_reader: Path) -> Reader:
    return Reader(load_checkpoint(towns_reader), device="cpu")


@pytest.fixture(scope="module")
def clustered(towns_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ``clusterformer_reader`` of 20 updates."""
    folder = tmp_path_factory.mktemp("clustered")
    line = f"{QUESTIONS} --window-size 32 --window-stride 24 --window-positions 96"
    line += " --max-question-positions 64 --kmeans-interval 10 --kmeans-bank-size 1000"
    line += " --batch-size 16 --lr 0.005 --max-update 20 --disable-validation --save-interval 100"
    train(towns_data, line, folder)
    return folder / "checkpoint_last.pt"


@pytest.fixture
def towns(tmp_path: Path) -> Path:
    """Two paragraphs."""
    path = tmp_path / "towns.txt"
    path.write_text(f"{TOWNS}\n\nIda Brun rules Pisa.\nKim 2nd rules Lund.\n")
    return path


@pytest.fixture
def line(towns_reader: Path, towns: Path) -> list:
    return ["answer", "--checkpoint", towns_reader, "--document", towns, "--top", 1]


class TestCommand:
    def test_the_best_answers(self, line, towns, capsys):
        assert run(*line, "--question", ASKED, "--question", OTHER) == 0
        rows = capsys.readouterr().out.splitlines()
        for i, question, name, place, around in (
            (0, ASKED, "Noor", "paragraph 1, characters [16, 20)", "[Noor] rules Bree."),
            (4, OTHER, "Kim 2nd", "paragraph 2, characters [21, 28)", "[Kim 2nd] rules Lund."),
        ):
            asked, first, where, sentence = rows[i : i + 4]
            assert (asked, first, sentence) == (f"? {question}", f"1. {name}", f"   {around}")
            found = re.fullmatch(r"   probability ([01]\.\d{3}): (.*)", where)
            assert float(found[1]) > 0.5
            assert found[2] == f"{towns}, {place}"

    def test_a_document_does_not_command_the_terminal(self, line, tmp_path, capsys):
        path = tmp_path / "a\x1b]0;b\x07.txt"
        path.write_text(TOWNS.replace("Noor", "\x1b[2J\x9b Noor"))
        (tmp_path / "\x1bc.txt").write_text("")
        line[4] = tmp_path
        assert run(*line, "--question", ASKED, "--top", 3) == 0
        out, err = capsys.readouterr()
        assert "Noor" in out
        assert "\ufffd[2J\ufffd" in out
        assert "\ufffdc.txt" in err
        line[4] = tmp_path / "\x1bc.txt"
        assert run(*line, "--question", ASKED) == 1
        for text in (out, err, *capsys.readouterr()):
            assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", text)

    def test_interactive(self, line, monkeypatch, capsys):
        """A question a line; a mistake is reported, and the next one answered. All is loaded
        once. A question in Latin-1 is refused by itself, and an ASCII terminal has no ellipsis."""
        load = mock.Mock(wraps=loading.load_checkpoint)
        monkeypatch.setattr(loading, "load_checkpoint", load)
        asked = f"{OTHER}\n\n{'What ' * 50}\nCaf\u00e9?\n{ASKED}\n\n".encode("latin-1")
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(asked), "utf-8"))
        shown = io.BytesIO()
        monkeypatch.setattr("sys.stdout", io.TextIOWrapper(shown, "ascii"))
        line[4].write_text(f"{line[4].read_text()} {'and ' * 60}on.")
        assert run(*line, "--interactive", "--question", f"{ASKED} \u00e9") == 0
        rows, err = shown.getvalue().decode().splitlines(), capsys.readouterr().err
        found = [row for row in rows if row.startswith("1. ")]
        assert found == ["1. Noor", "1. Kim 2nd", "1. Noor"]
        asked = [f"{ASKED} \\xe9", OTHER, ("What " * 50).strip(), "Caf\\ufffd?", ASKED]
        assert [row for row in rows if row.startswith("? ")] == [f"? {each}" for each in asked]
        assert re.search(r" error: --question is What .*\.\.\.: has \d+ subwords; allowed: ", err)
        assert "error: --question is 'Caf\\udce9?': no Unicode; allowed: a question" in err
        load.assert_called_once()

    def test_the_margin_is_an_option(self, line, capsys):
        assert run(*line, "--question", ASKED, "--no-answer-margin", 90) == 0
        out = capsys.readouterr().out
        assert out.startswith("No answer here: the best margin is ")
        assert "and above 90 counts. The best guesses are:\n1. Noor\n" in out
        assert run(*line, "--question", "Who rules Tyre?") == 0
        assert capsys.readouterr().out.startswith("Most likely, no answer here")

    def test_mistakes(self, line, clustered, towns_data, translation_model, tmp_path, capsys):
        ask = ["--question", "Who?"]
        assert "nowhere: No such file" in error(capsys, *line, *ask, "--document", "nowhere")
        assert "of the task translation" in error(
            capsys, *line, *ask, "--checkpoint", translation_model
        )
        assert "--question is empty" in error(capsys, *line, "--question", " ")
        said = error(capsys, *line, "--question", "What " * 500)
        assert "allowed: 62 subwords or fewer" in said
        assert len(said) < 250
        (tmp_path / "data").mkdir()
        shutil.copy(towns_data / "dict.txt", tmp_path / "data")
        line[2] = clustered
        said = error(capsys, *line, *ask, "--data", tmp_path / "data")
        assert "that clusterformer prepare qa has made" in said
        said = error(capsys, *line, *ask, "--candidates", "Noor", "Otto")
        assert "the model is a clusterformer_reader; allowed: a reader of the architec" in said
        said = error(capsys, *line, *ask, "--index", tmp_path)
        assert "holds data, and is no index; allowed: a new or empty folder" in said

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            ("--question Who?", "there is no document; allowed: --document PATH, or --serve"),
            ("--document x", "there is no question; allowed: --question TEXT, --interactive or"),
            ("--serve --question Who?", "--serve and --question are given; allowed: one of the t"),
            ("--serve --html a", "--serve and --html a are given; allowed: one of the two"),
            ("--serve --port 70000", "--port is 70000; allowed: a whole number, 1 or more, up"),
            ("--document x --question y --no-answer-margin nan", "is nan; allowed: a finite num"),
            ("--document x --question y --tokens-at-once 1", "allowed: a whole number, 2 or more"),
            (
                "--document x --question y --candidates z --no-answer-margin 1",
                "--candidates and --no-answer-margin 1.0 are given; allowed: one of the two",
            ),
        ],
    )
    def test_options_that_do_not_fit(self, words, message, capsys):
        assert message in usage_error(capsys, "answer", *words.split())

    def test_models_are_looked_for_first(self, line, tmp_path, monkeypatch, capsys):
        """Before documents are read, which may take long."""
        monkeypatch.setattr(sources, "read_sources", None)
        for option, problem in (("--checkpoint", "no such file"), ("--encoder", "it has no conf")):
            said = error(capsys, *line, "--question", ASKED, option, tmp_path / "none")
            assert f"{option} is {tmp_path}/none: {problem}" in said


class TestPython:
    def test_answers(self, reader, towns, tmp_path, monkeypatch, caplog):
        """Texts and files together; an answer says where it is from."""
        found = reader.answer(ASKED, ["All is well.", towns])
        place = found[0].file, found[0].paragraph, found[0].characters, found[0].context
        assert place == (str(towns), 0, (16, 20), "Noor rules Bree.")
        assert 0.5 < found[0].probability <= 1
        (one,) = reader.answer(OTHER, "All is well.\n\nKim 2nd rules Lund.", top=1)
        assert (one.text, one.file, one.paragraph) == ("Kim 2nd", "text 0", 1)
        with pytest.raises(UserError, match="documents is text 0: is empty"):
            reader.answer(ASKED, [" "])
        monkeypatch.chdir(tmp_path)
        caplog.clear()
        reader.answer(ASKED, [towns.name, TOWNS])
        (said,) = (each.getMessage() for each in caplog.records if each.levelname == "WARNING")
        assert said.startswith("'towns.txt' is read as a text: give Path('towns.txt') for the fi")

    def test_as_the_command_does(self, towns_reader, tmp_path, monkeypatch, capsys):
        """The same passages are read; no file is read for the next question, until one changes."""
        for number, answer in enumerate(["", "", "Noor"]):
            (tmp_path / f"{number}.txt").write_text(long_text(answer))
        line = ["answer", "--checkpoint", towns_reader, "--document", tmp_path, "--cpu"]
        line += ["--windows", 3, "--tokens-at-once", 60, "--question", ASKED, "--top", 2]
        assert run(*line) == 0
        said = capsys.readouterr().out.replace("below 0.001", "0.000")
        shown = re.findall(r"^\d\. (.*)\n   probability ([\d.]+)", said, re.M)
        reader = load(towns_reader, device="cpu")
        reader.windows, reader.window = 3, 60
        read, split = [], reader.sections
        monkeypatch.setattr(reader, "sections", lambda own: read.append(own) or split(own))
        for _ in range(2):
            found = reader.answer(ASKED, tmp_path, top=2)
            assert [each.text for each in found] == [text for text, _ in shown]
            probabilities = [float(probability) for _, probability in shown]  # three decimals
            assert [each.probability for each in found] == pytest.approx(probabilities, abs=2e-3)
            assert found[0].text == "Noor"
        assert reader.answer(ASKED, reader.index(tmp_path), top=1)[0].text == "Noor"
        assert len(read) == 3
        (tmp_path / "2.txt").write_text("Ida Brun rules Bree.")
        assert reader.answer(ASKED, tmp_path, top=1)[0].text == "Ida Brun"
        assert len(read) == 6

    def test_a_question_of_unknown_words_keeps_the_bound(self, reader, monkeypatch):
        """And says that no word of it is in the documents."""
        read, read_all = [], reader.read
        monkeypatch.setattr(reader, "read", lambda *x: read.extend(x[1]) or read_all(*x))
        passages = reader.passages(reader.sections(Source("x", "x", ("All is well.",) * 60), 20))
        assert len(passages) > 20
        ranking = reader.ask("Quid?", passages, 3, windows=4)
        assert len(read) == 4
        assert "No word of the question is in the documents." in ranking.note
        assert "No word" not in reader.ask("What is well?", passages, 3, windows=4).note

    def test_sentence_vectors_choose_passages(self, towns_reader, towns, tmp_path, monkeypatch):
        """Made once for a document, by a reader that an index was opened with or a later one."""
        encoder, made, put = folder_of("bert", tmp_path / "bert"), [], Index.put
        monkeypatch.setattr(Index, "put", lambda self, own: made.extend(own) or put(self, own))
        for _ in range(2):
            reader = load(towns_reader, device="cpu")
            passages = reader.index(towns, tmp_path / "index", encoder=encoder)
            assert reader.answer(ASKED, passages, top=1)[0].text == "Noor"
            assert reader.answer(OTHER, towns, top=1)[0].text == "Kim 2nd"
            assert all(0 < abs(likeness) < 1.01 for *_, likeness in passages.likeliest(ASKED, 9))
        assert len(made) == len(passages)


class TestBundles:
    def test_a_calibration(self, towns_reader, line, tmp_path, capsys):
        file, out = tmp_path / "c.json", tmp_path / "bundle"
        making = ["bundle", towns_reader, out, "--calibration", file]
        assert "No such file" in error(capsys, *making)
        weights = {"margin": 0.1, "words": 0.0, "likeness": 0.0, "none": 0.0, "bias": 0.0}
        for more, says in (
            ({"threshold": 2}, "c.json: cannot be read (a threshold outside of 0 to 1"),
            ({"threshold": 0.9, "passage": 2.5}, "(passage is 2.5; allowed: a whole number from"),
        ):
            file.write_text(json.dumps({"weights": weights | more}))
            assert says in error(capsys, *making)
            assert not out.exists()
        weights |= {"threshold": 0.9, "passage": 20}
        file.write_text(json.dumps({"weights": weights}))
        assert run(*making) == 0
        assert run("bundle", out, tmp_path / "again") == 0
        reader = Reader(load_checkpoint(tmp_path / "again"), device="cpu")
        assert reader.weights == Weights(**weights)
        assert reader.window == 20
        capsys.readouterr()
        assert run(*line, "--checkpoint", out, "--question", ASKED) == 0
        shown = capsys.readouterr().out.splitlines()
        assert re.match(r"No answer found: .* as these, \d\d% are right. The best", shown[0])
        assert shown[1] == "1. Noor"

    @pytest.mark.parametrize(("bias", "answered"), [(-100, True), (100, False)])
    def test_how_sure_a_reader_must_be(self, bias, answered, reader, towns_reader, tmp_path):
        """It moves the margin, and so what counts as an answer; the order of answers stays."""
        assert run("bundle", towns_reader, tmp_path / "b", "--no-answer-bias", bias) == 0
        assert run("bundle", tmp_path / "b", tmp_path / "again") == 0
        biased = Reader(load_checkpoint(tmp_path / "again"), device="cpu")
        passages = reader.passages(reader.sections(text_source(long_text("Noor"), "x"), 60))
        assert biased.ask(ASKED, passages, 3).found == answered
        expected, found = (x.ask(ASKED, passages, 3, least=-math.inf) for x in (reader, biased))
        assert [each.text for each in found] == [each.text for each in expected]
        margins = [each.margin - bias for each in expected]
        assert [each.margin for each in found] == pytest.approx(margins, abs=1e-3)


class TestSections:
    @torch.no_grad()
    def test_they_are_all_of_a_document(self, reader):
        """Whole paragraphs where they fit, else pieces that overlap by a quarter; each token
        stands for what it stood for."""
        long = " ".join(["Noor rules Bree."] * 12)
        texts = ("One.", TOWNS, long, "A few words.", "\u00e9")
        source = Source("x", "x", texts)
        (whole,) = reader.sections(source, 10_000)
        assert [piece.number for piece in whole.pieces] == [0, 1, 2, 3, 4]
        for most in (2, 7, 40, len(whole) - 1):
            parts = reader.sections(source, most)
            assert len(parts) > 1
            assert max(len(part.tokens) for part in parts) <= most
            read = [""] * len(texts)
            for part in parts:
                assert (part.tokens[part.document.starts] == 0).all()
                for i, (number, text, (_, *tokens)) in enumerate(part.paragraphs()):
                    assert part.document.texts[i] == text == texts[number]
                    for token in tokens:
                        place, first, after = part.document.place(token, token + 1)
                        assert place == i
                        read[number] += text[max(len(read[number]), first) : after]
            assert tuple(read) == texts
        pieces = [piece for part in reader.sections(source, 40) for piece in part.pieces]
        spans = [(piece.first, piece.last) for piece in pieces if piece.number == 2]
        room = max(last - first for first, last in spans)
        assert all(mine[1] - next_[0] == room // 4 for mine, next_ in pairwise(spans))

    def test_they_are_as_long_as_in_training(self, towns_reader):
        source = text_source(long_text("Noor"), "x")
        short = Reader(load_checkpoint(towns_reader, max_positions=50), device="cpu")
        assert short.window == 50
        assert max(len(section.tokens) for section in short.sections(source)) <= 50
        free = Reader(load_checkpoint(towns_reader, max_positions=0), device="cpu")
        assert len(free.sections(source)) == 1

    @pytest.mark.parametrize(
        ("lengths", "expected"),
        [
            ((3, 78, 3, 78), [[0, 1], [2, 3]]),  # headings
            ((78, 3), [[0, 1]]),  # a last line
            ((3, 3, 78, 20, 20, 78, 3), [[0, 1, 2], [3, 4], [5, 6]]),
            ((30, 78, 30), [[0], [1], [2]]),
        ],
    )
    def test_short_ones_join_their_neighbour(self, lengths, expected, reader):
        """A heading by itself would win: all of its few tokens are likely."""
        (token,) = reader.sections(text_source("Noor", "x"), 100)
        paragraphs = tuple(" ".join(["Noor"] * length) for length in lengths)
        sections = reader.sections(Source("x", "x", paragraphs), 100 * (len(token) - 1))
        assert [[piece.number for piece in part.pieces] for part in sections] == expected

    @pytest.mark.parametrize("place", [0, 37, 80])
    def test_the_answer_is_found_in_any(self, place, reader, monkeypatch):
        """The order and the number of what is read together change nothing."""
        sections = reader.sections(text_source(long_text("Mary-Ann", place, 80 - place), "x"), 60)
        assert len(sections) > 10
        monkeypatch.setattr(reader, "weights", Weights(words=0.0))
        monkeypatch.setattr("fairseq_clusterformer.documents.read.IN_A_BATCH", 200)
        ranking = reader.ask(ASKED, reader.passages(sections), 3, windows=0)
        best, *others = ranking
        assert (best.text, best.paragraph, ranking.found) == ("Mary-Ann", place, True)
        assert all(best.margin > other.margin for other in others)
        alone = sum((reader.read(reader.question(ASKED), [part], 3) for part in sections), [])
        expected = ranked(alone, 3, weights=reader.weights)
        assert [each.text for each in ranking] == [each.text for each in expected]
        margins = [each.margin for each in expected]
        assert [each.margin for each in ranking] == pytest.approx(margins, abs=1e-3)

    def test_titles_stand_where_they_stood_in_training(self, clustered, towns_data, tmp_path):
        """A file's title before each of its paragraphs; no answer lies in it."""
        shutil.copytree(towns_data, tmp_path / "data")
        record = json.loads((towns_data / "prepared.json").read_text())
        record["recipe"]["titles"] = True
        (tmp_path / "data" / "prepared.json").write_text(json.dumps(record))
        reader = Reader(load_checkpoint(clustered, data=tmp_path / "data"), device="cpu")
        (part,) = reader.sections(Source("x", ASKED, ("All is well.", TOWNS)), 1000)
        title = reader.question(ASKED)[1:-1]
        for start in part.document.starts.tolist():
            behind = start + 1 + len(title)
            assert torch.equal(part.tokens[start + 1 : behind], title)
            assert (part.document.characters[:, start:behind] == -1).all()
            assert part.document.characters[0, behind] == 0


class TestClusters:
    @torch.no_grad()
    def test_they_are_those_of_the_layers(self, clustered):
        """Every token has the cluster that it has in the sequence of questions and windows."""
        reader = Reader(load_checkpoint(clustered), device="cpu")
        encoder, (part,) = reader.model.encoder, reader.sections(Source("x", "x", (TOWNS,) * 9))
        asked = reader.question(ASKED)
        (read,) = reader.read(asked, [part], 1)
        (sequence,) = token_clusters(encoder, asked[None], part.tokens[None]).values()
        (layer,) = read.clusters()
        assert layer == (1, "layer 1 of layers 0 to 2, kmeans")
        length, stride = len(part.tokens), encoder.stride
        assert length > 2 * encoder.size
        step = len(asked) + stride
        places = (i // stride * step + len(asked) + i % stride for i in range(length))
        expected = [int(sequence[0, 0, place]) for place in places]
        assert read.clusters()[layer].tolist() == expected
        assert len(set(expected)) > 1

    def test_page(self, clustered, tmp_path, capsys):
        """A file that needs nothing else: all text, each token with its cluster, the answers."""
        evil = "</script><script>alert(1)</script> \u2028"
        texts = [f"{TOWNS} <b>&amp; na\u00efve \U0001f370</b>", f"{evil.strip()} two"]
        (tmp_path / "a.txt").write_text("\n\n".join(texts), encoding="utf-8")
        out = tmp_path / "page.html"
        line = ["answer", "--checkpoint", clustered, "--document", tmp_path / "a.txt"]
        line += ["--html", out, "--question", f"{ASKED} {evil}", "--top", 1]
        line += ["--no-answer-margin", -99]
        assert run(*line) == 0
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

    @pytest.mark.parametrize(
        ("text", "characters", "tokens", "opened", "shown"),
        [
            # the longest word's token
            ("in the Elm", [(0, 2), (2, 6), (6, 9), (9, 10)], (1, 5), 3, "in the Elm"),
            # several tokens may be bytes of one character, which the first of them shows
            ("a\u4e00b", [(0, 1), (1, 2), (1, 2), (1, 2), (2, 3)], (4, 6), 5, "\u4e00b"),
        ],
    )
    def test_page_opens_with_one_token_of_the_answer(
        self, text, characters, tokens, opened, shown
    ):
        characters = torch.tensor([(-1, -1), *characters]).T
        section = section_of(Source("x", "x", (text,)), characters)
        answer = section.document.answer(*tokens, -1.0)
        html = answer_page("?", ranked([read_of(section, {"short": 0.6}, [answer])], 1))
        assert f'"answers":[[0,{opened}]]' in html
        marked = re.findall(r'([^>]*)<span data-i="\d" class="answer">(.*?)</span>', html)
        assert "".join(map("".join, marked)) == shown

    def test_a_drawing(self, clustered, towns, tmp_path, capsys):
        out = tmp_path / "drawn"
        line = ["draw", "--checkpoint", clustered, "--document", towns, "--question", ASKED]
        assert run(*line, "--out", out) == 0
        assert "clusters.html: 1 clusterings of " in capsys.readouterr().out
        page = (out / "clusters.html").read_text()
        assert "layer 1 of layers 0 to 2, kmeans" in page
        text = re.sub(r"<[^>]+>", "", page.split("<pre", 1)[1])
        for paragraph in towns.read_text().split("\n\n"):
            assert " ".join(paragraph.split()) in text
        assert "--question is missing" in error(capsys, *line[:5], "--out", out)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_quantised_reader(clustered, towns):
    """Also fairseq's layers, which do not call their projections but read their weights."""
    plain, quantised = (Reader(load_checkpoint(clustered), device="cpu") for _ in range(2))
    quantised.model = torch.ao.quantization.quantize_dynamic(quantised.model)
    (expected,), (found,) = (each.answer(ASKED, towns, top=1) for each in (plain, quantised))
    assert found.probability == pytest.approx(expected.probability, abs=0.05)
