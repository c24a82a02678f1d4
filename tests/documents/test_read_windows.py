"""Readers of words over long documents: windows, margins, and how sure they must be."""

import json
import math
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from fairseq_clusterformer import load
from fairseq_clusterformer.answers import AnswerLogits, Document, ranked_answers
from fairseq_clusterformer.checkpoints import bundle
from fairseq_clusterformer.checkpoints.load import load_checkpoint
from fairseq_clusterformer.documents import sources
from fairseq_clusterformer.documents.found import Ranking, SectionRead, Weights, ranked
from fairseq_clusterformer.documents.read import Reader
from fairseq_clusterformer.documents.sources import Source, text_source
from tests.cli.in_process import train
from tests.cli.towns import COMMON, long_text
from tests.documents.commands import error, run, usage_error
from tests.documents.sections import section_of

ASKED = "Who rules Bree?"


@pytest.fixture(scope="module")
def reader(towns_reader: Path) -> Reader:
    return Reader(load_checkpoint(towns_reader), device="cpu")


def logits(start: list[float], end: list[float], none: float) -> AnswerLogits:
    """Of words of one token each, behind an ``<s>``."""
    start, end = (torch.tensor([[-math.inf, *x]]) for x in (start, end))
    slots = torch.tensor([[[-9.0, -9.0, -9.0, none / 2]] * 2])
    paragraph = torch.full_like(start, -math.inf)
    paragraph[:, 0] = 0
    return AnswerLogits.shared(start, end, paragraph, slots)


def read_of(name: str, *given) -> SectionRead:
    found = logits(*given)
    length = found.start.size(1)
    text = " ".join("abcdefgh"[: length - 1])
    starts = range(0, 2 * length - 2, 2)
    characters = torch.tensor([[-1, *starts], [-1, *(start + 1 for start in starts)]])
    document = Document([text], torch.tensor([0]), characters)
    section = section_of(Source(name, name, (text,)), characters)
    (answers,) = ranked_answers(found, [document], top=3)
    return SectionRead(section, answers)


class TestMargins:
    def test_a_margin_is_of_logits_alone(self):
        """Score of the span less that of the place for no answer, however long the document."""
        short, long = [5.0, 1.0], [5.0, 1.0, 4.9, 4.8, 4.7]
        for start in (short, long):
            read = read_of("x", start, [-2.0, 3.0, *[-50.0] * (len(start) - 2)], 6.5)
            best, *_ = ranked([read], 3)
            assert (best.text, best.type) == ("a b", "short")
            assert best.margin == pytest.approx(5 + 3 - 6.5, abs=1e-5)
            assert best.probability == pytest.approx(1 / (1 + math.exp(-1.5)), abs=1e-6)

    def test_a_span_that_is_too_long_is_no_answer(self):
        """Nor does it hide that there is none: as SQuAD's baselines compare legal spans."""
        given = logits([6.0, 1.0, 0.0], [0.0, 1.0, 6.0], 8.0)
        assert given.type[0, 0] == 12  # from the first to the last
        characters = torch.tensor([[-1, 0, 2, 4], [-1, 1, 3, 5]])
        document = Document(["a b c"], torch.tensor([0]), characters)
        (found,) = ranked_answers(given, [document], max_answer_length=2)
        assert (found.type, found.text, found.short[0].text) == ("none", "", "a b")
        assert found.margin("short", found.short[0].score) == pytest.approx(7 - 8, abs=1e-5)
        (found,) = ranked_answers(given, [document], max_answer_length=3)
        assert (found.type, found.text) == ("short", "a b c")
        apart = replace(document, texts=["a", "b c"], starts=torch.tensor([0, 2]))
        (found,) = ranked_answers(given, [apart], max_answer_length=3)
        assert found.type == "none"

    def test_files_are_in_the_order_of_margins(self):
        """Not of logits, nor of probabilities in the file."""
        reads = [
            read_of("loud", [9.0, 0.0], [9.0, 0.0], 20.0),
            read_of("short", [1.0], [1.0], 1.0),
            read_of("right", [4.0, 3.9, 3.9], [4.0, 3.9, 3.9], 3.0),
        ]
        ranking = ranked(reads, 9)
        assert [each.file for each in ranking if each.type == "short"][:3] == [
            *("right", "right", "right")
        ]
        firsts = [each for each in ranking if each.type == "short" and each.text == "a"]
        assert [each.file for each in firsts] == ["right", "short", "loud"]
        assert ranking[0].margin == pytest.approx(5, abs=1e-5)
        assert ranking.no_answer == pytest.approx(1 / (1 + math.exp(5)), abs=1e-6)
        margins = [each.margin for each in ranking]
        assert margins == sorted(margins, reverse=True)

    @pytest.mark.parametrize(
        ("none", "least", "verdict"),
        [
            (1.0, 0.0, ""),
            (1.0, 0.99, ""),
            (1.0, 1.01, "No answer here: the best margin is 1.00, and above 1.01 counts."),
            (3.0, 0.0, "Most likely, no answer here (probability 0.731)."),
            (3.0, -0.99, "Most likely, no answer here (probability 0.731)."),
            (3.0, -1.01, ""),
        ],
    )
    def test_the_least_margin(self, none, least, verdict):
        ranking = ranked([read_of("x", [1.0], [1.0], none)], 1, least)
        assert (ranking.verdict, ranking.found) == (verdict, not verdict)

    @pytest.mark.parametrize("text", [".", "(", "|"])
    def test_marks_alone_are_no_answer(self, text):
        read = read_of("x", [9.0], [9.0], 0.0)
        assert ranked([read], 9)[0].text == "a"
        read.section = replace(read.section, source=Source("x", "x", (text,)))
        found = ranked([read], 9)
        assert all(each.type in ("yes", "no") for each in found)

    def test_nothing_found_is_no_answer(self):
        read = read_of("x", [], [], 0.0)
        ranking = ranked([read], 3, least=-math.inf)
        assert all(each.type != "short" for each in ranking)
        assert not Ranking([], 0.0, -5).found


class TestWeights:
    def reads(self) -> list[SectionRead]:
        """By its margin the first is better by 1, by its words the second by 4."""
        margins = [read_of("loud", [3.0], [2.0], 2.0), read_of("right", [2.0], [2.0], 2.0)]
        return [replace(read, words=4.0 * i) for i, read in enumerate(margins)]

    def test_words_count_with_the_margin(self):
        ranking = ranked(self.reads(), 1)
        assert ranking[0].file == "right"
        assert ranking[0].probability == pytest.approx(1 / (1 + math.exp(-2)), abs=1e-6)
        assert ranked(self.reads(), 1, weights=Weights(words=0.2))[0].file == "loud"

    def test_no_answer_in_the_passage_counts(self):
        """As the logarithm of its probability in the passage alone, whatever it is in others."""
        for by_margin in (0.0, None):
            reads = [read_of("loud", [4.0], [2.0], 3.0), read_of("right", [2.0], [2.0], 2.0)]
            for read, none in zip(reads, (0.5, 0.1), strict=True):
                types = read.answers.types | {"none": none}
                read.answers = replace(read.answers, types=types, none=by_margin and 1.0)
            first, plain = (ranked(reads, 9, weights=Weights(none=x)) for x in (-3.0, 0.0))
            first, plain = first[0], plain[0]
            assert (first.file, plain.file) == ("right", "loud")
            assert first.features["none"] == pytest.approx(math.log(0.1))

    @pytest.mark.parametrize(
        ("threshold", "least", "verdict"),
        [
            (0.26, 0.0, ""),
            (0.28, 0.0, "No answer found: of guesses as weak as these, 27% are right."),
            (0.28, -0.2, ""),
        ],
    )
    def test_calibrated(self, threshold, least, verdict):
        """What is shown is the share of right answers; the best passages come anyway."""
        weights = Weights(1.0, 0.2, 2.0, bias=-4.0, threshold=threshold)
        ranking = ranked(self.reads(), 2, least, weights)
        assert ranking[0].file == "loud"
        assert ranking[0].margin == pytest.approx(3 - 4, abs=1e-6)
        assert ranking[0].probability == pytest.approx(1 / (1 + math.e), abs=1e-6)
        assert (ranking.verdict, ranking.found, ranking.note) == (verdict, not verdict, "")

    def test_a_bundle_is_calibrated(self, towns_reader, tmp_path, capsys):
        file, out = tmp_path / "c.json", tmp_path / "bundle"
        line = ["bundle", towns_reader, out, "--calibration", file]
        assert "No such file" in error(capsys, *line)
        weights = {"margin": 0.1, "words": 0.0, "likeness": 0.0, "none": 0.0, "bias": 0.0}
        weights["threshold"] = 2
        file.write_text(json.dumps({"weights": weights}))
        assert "c.json: cannot be read (a threshold outside of 0 to 1" in error(capsys, *line)
        assert not out.exists()
        weights |= {"threshold": 0.9, "passage": 2.5}
        file.write_text(json.dumps({"weights": weights}))
        assert "(passage is 2.5; allowed: a whole number from 1, or null)" in error(capsys, *line)
        weights["passage"] = 20
        file.write_text(json.dumps({"weights": weights}))
        assert run(*line) == 0
        assert run("bundle", out, tmp_path / "again") == 0
        reader = Reader(load_checkpoint(tmp_path / "again"), device="cpu")
        assert reader.weights == Weights(**weights)
        assert reader.window == 20
        (tmp_path / "a.txt").write_text("Otto rules Ulm. Noor rules Bree.")
        asked = ["answer", "--checkpoint", out, "--document", tmp_path / "a.txt", "--question"]
        capsys.readouterr()
        assert run(*asked, ASKED) == 0
        shown = capsys.readouterr().out.splitlines()
        assert re.match(r"No answer found: .* as these, \d\d% are right. The best", shown[0])
        assert shown[1] == "1. Noor"


class TestWindows:
    def test_they_are_as_long_as_in_training(self, towns_reader):
        short = Reader(load_checkpoint(towns_reader, max_positions=50), device="cpu")
        assert short.window == 50
        sections = short.sections(text_source(long_text("Noor"), "x"))
        assert max(len(section.tokens) for section in sections) <= 50
        assert len(sections) > 5
        free = Reader(load_checkpoint(towns_reader, max_positions=0), device="cpu")
        assert len(free.sections(text_source(long_text("Noor"), "x"))) == 1

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
        token, *_ = reader.sections(text_source("Noor", "x"), 100)
        paragraphs = tuple(" ".join(["Noor"] * length) for length in lengths)
        sections = reader.sections(Source("x", "x", paragraphs), 100 * (token.length - 1))
        assert [[piece.number for piece in part.pieces] for part in sections] == expected

    def test_pieces_of_a_long_paragraph_overlap(self, reader):
        """By a quarter: what is no longer lies whole in one of them."""
        source = Source("x", "x", (long_text("Noor").replace("\n\n", " "),))
        sections = reader.sections(source, 51)
        bounds = [section.document.characters[:, 1:] for section in sections]
        whole = reader.sections(source, 10_000)[0].document.characters[:, 1:]
        places = {int(place): token for token, place in enumerate(whole[0])}
        spans = [(places[int(x[0, 0])], places[int(x[0, -1])] + 1) for x in bounds]
        assert (spans[0][0], spans[-1][1]) == (0, whole.size(1))
        assert all(own[1] - own[0] <= 40 for own in spans)
        assert all(before[1] - after[0] == 10 for before, after in pairwise(spans))

    @pytest.mark.parametrize("place", [0, 37, 80])
    def test_the_answer_is_found_in_any_window(self, place, reader):
        text = long_text("Mary-Ann", place, 80 - place)
        sections = reader.sections(text_source(text, "x"), 60)
        assert len(sections) > 10
        ranking = reader.ask(ASKED, reader.passages(sections), 3)
        best, *others = ranking
        assert others
        assert (best.text, best.paragraph) == ("Mary-Ann", place)
        assert ranking.found
        assert all(best.margin > other.margin for other in others)

    def test_together_as_one_by_one(self, reader, monkeypatch):
        """The order and the number of what is read together change nothing."""
        monkeypatch.setattr(reader, "weights", Weights(words=0.0))
        monkeypatch.setattr("fairseq_clusterformer.documents.read.IN_A_BATCH", 200)
        text = long_text("Ida Brun")
        sections = reader.sections(text_source(text, "x"), 60)
        ranking = reader.ask(ASKED, reader.passages(sections), 5)
        alone = sum((reader.read(reader.question(ASKED), [part], 5) for part in sections), [])
        expected = ranked(alone, 5)
        assert [each.text for each in ranking] == [each.text for each in expected]
        for mine, theirs in zip(ranking, expected, strict=True):
            assert mine.margin == pytest.approx(theirs.margin, abs=0.02)  # states are float16


def test_python_answers_as_the_command_does(towns_reader, tmp_path, monkeypatch, capsys):
    """The same passages are read; no file is read for the next question, until one changes."""
    for number, answer in enumerate(["", "", "Noor"]):
        (tmp_path / f"{number}.txt").write_text(long_text(answer).replace("\n\n", "\n\n" * 9))
    line = ["answer", "--checkpoint", towns_reader, "--document", tmp_path, "--cpu", "--top", 2]
    assert run(*line, "--windows", 3, "--tokens-at-once", 60, "--question", ASKED) == 0
    said = capsys.readouterr().out.replace("below 0.001", "0.000")
    shown = re.findall(r"^\d\. (.*)\n   probability ([\d.]+)", said, re.M)
    reader = load(towns_reader, device="cpu")
    reader.windows, reader.window = 3, 60
    read, split = [], reader.sections
    monkeypatch.setattr(reader, "sections", lambda source: read.append(source) or split(source))
    for _ in range(2):
        found = reader.answer(ASKED, tmp_path, top=2)
        assert [each.text for each in found] == [text for text, _ in shown]
        probabilities = [float(probability) for _, probability in shown]  # in three decimals
        assert [each.probability for each in found] == pytest.approx(probabilities, abs=2e-3)
        assert found[0].text == "Noor"
    assert reader.answer(ASKED, reader.index(tmp_path), top=1)[0].text == "Noor"
    assert len(read) == 3
    (tmp_path / "2.txt").write_text("Ida Brun rules Bree.")
    assert reader.answer(ASKED, tmp_path, top=1)[0].text == "Ida Brun"
    assert len(read) == 6


def test_a_text_that_is_the_name_of_a_folder(towns_reader, tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "letters").mkdir()
    load(towns_reader, device="cpu").answer(ASKED, ["letters", "Noor rules Ulm."])
    (said,) = (each.getMessage() for each in caplog.records if each.levelname == "WARNING")
    assert said.startswith("'letters' is read as a text: give Path('letters') for the file or ")


def test_a_qanet_with_clusters(towns_data, tmp_path):
    """The windows that answers are from come with their clusters."""
    line = f"{COMMON} --arch qanet_reader --encoder-embed-dim 16 --encoder-ffn-embed-dim 16"
    line += " --encoder-attention-heads 2 --encoder-layers 2 --attention full,kmeans"
    line += " --num-clusters 3 --attention-window 4 --max-update 2 --disable-validation"
    train(towns_data, line, tmp_path)
    reader = Reader(load_checkpoint(tmp_path / "checkpoint_last.pt"), device="cpu")
    sections = reader.sections(text_source(long_text("Noor"), "x"), 60)
    for answer in reader.ask(ASKED, reader.passages(sections), 2):
        (clusters,) = answer.read.clusters.values()
        assert len(clusters) == len(answer.read.section.tokens)
        assert {0, 1, 2} >= set(clusters.unique().tolist())


@pytest.mark.parametrize(("bias", "answered"), [(0, True), (-100, True), (100, False)])
def test_a_bundle_says_how_sure_its_reader_must_be(bias, answered, towns_reader, tmp_path, capsys):
    """It moves the margin, and so what counts as an answer; the order of answers stays."""
    line = ["bundle", towns_reader, tmp_path / "bundle", "--no-answer-bias", bias]
    assert run(*line) == 0
    plain, biased = (
        Reader(load_checkpoint(path), device="cpu") for path in (towns_reader, tmp_path / "bundle")
    )
    sections = plain.sections(text_source(long_text("Noor"), "x"), 60)
    assert biased.ask(ASKED, biased.passages(sections), 3).found == answered
    expected, found = (
        each.ask(ASKED, each.passages(sections), 3, least=-math.inf) for each in (plain, biased)
    )
    spans = [[each for each in x if each.type == "short"] for x in (expected, found)]
    for before, after in zip(*spans, strict=True):
        assert after.text == before.text
        assert after.margin == pytest.approx(before.margin - bias, abs=1e-3)
    assert run("bundle", tmp_path / "bundle", tmp_path / "again") == 0
    assert load_checkpoint(tmp_path / "again").task.cfg.no_answer_bias == bias


class TestInstalledReader:
    """``clusterformer answer`` without --checkpoint."""

    @pytest.fixture
    def line(self, tmp_path: Path, monkeypatch) -> list:
        monkeypatch.setattr(bundle, "SHIPPED", tmp_path / "trained")
        (tmp_path / "letters").mkdir()
        (tmp_path / "letters" / "a.txt").write_text("Otto rules Ulm. Noor rules Bree.")
        return ["answer", "--document", tmp_path / "letters", "--question", ASKED, "--cpu"]

    @pytest.mark.parametrize(
        ("option", "problem"),
        [("--checkpoint", "no such file"), ("--encoder", "it has no config.json")],
    )
    def test_models_are_looked_for_first(
        self, option, problem, line, tmp_path, monkeypatch, capsys
    ):
        """Before documents are read, which may take long."""
        (tmp_path / "trained" / "a").mkdir(parents=True)
        (tmp_path / "trained" / "a" / bundle.MARK).write_text('{"task": "clusterformer_qa"}')
        monkeypatch.setattr(sources, "read_sources", None)
        said = error(capsys, *line, option, tmp_path / "none")
        assert f"{option} is {tmp_path}/none: {problem}; allowed: a" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--question Who?", "there is no document; allowed: --document PATH, or --serve"),
        ("--document x", "there is no question; allowed: --question TEXT, --interactive or"),
        ("--serve --question Who?", "--serve and --question are given; allowed: one of the two"),
        ("--serve --html a", "--serve and --html a are given; allowed: one of the two"),
        ("--serve --port 70000", "--port is 70000; allowed: a whole number, 1 or more, up"),
        ("--document x --question y --no-answer-margin nan", "is nan; allowed: a finite number"),
    ],
)
def test_options_that_do_not_fit(words, message, capsys):
    assert message in usage_error(capsys, "answer", *words.split())


def test_the_margin_is_an_option(towns_reader, tmp_path, capsys):
    (tmp_path / "a.txt").write_text("Otto rules Ulm. Noor rules Bree.")
    line = ["answer", "--checkpoint", towns_reader, "--document", tmp_path / "a.txt"]
    assert run(*line, "--question", ASKED, "--no-answer-margin", 90) == 0
    out = capsys.readouterr().out
    assert out.startswith("No answer here: the best margin is ")
    assert "and above 90 counts. The best guesses are:\n1. Noor\n" in out
    assert run(*line, "--question", "Who rules Tyre?") == 0
    assert capsys.readouterr().out.startswith("Most likely, no answer here")
