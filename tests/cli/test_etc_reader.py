"""etc_reader by fairseq's commands: from bAbI's files to answers with their supporting facts."""

import json
import random
import re
from pathlib import Path

import pytest

from fairseq_clusterformer.checkpoints.load import load_checkpoint
from fairseq_clusterformer.data.qa import QAData
from fairseq_clusterformer.documents.read import Reader
from fairseq_clusterformer.documents.sources import text_source
from fairseq_clusterformer.errors import UserError
from fairseq_clusterformer.metrics.answers import evaluate_hotpotqa
from question_answering import prepare
from tests.cli.in_process import Run, train, validate
from tests.cli.tasks import ETC_READER
from tests.corpora.commands import run

TASK = "--task clusterformer_qa --valid-subset valid --batch-size 7"
SCORES = ("em", "f1", "answerable_accuracy", "sp_em", "sp_f1", "joint_em", "joint_f1")


@pytest.fixture(scope="module")
def learned(stories: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Run]:
    folder = tmp_path_factory.mktemp("learned")
    line = f"{ETC_READER} --supporting-facts --max-update 130 --disable-validation"
    return folder / "checkpoint_last.pt", train(stories, line, folder)


def test_it_learns_answers_and_what_supports_them(learned, stories):
    checkpoint, log = learned
    printed = validate(stories, checkpoint, TASK)
    assert {name: printed[name] for name in SCORES} == dict.fromkeys(SCORES, 100)
    for update in log.updates:
        parts = (update[f"{part}_loss"] for part in ("span", "long", "type", "support"))
        assert update["loss"] == pytest.approx(sum(parts) / 5)
        assert update["support_size"] == update["sample_size"]
    assert log.mean_loss(-1) < 0.5 < 1 < log.mean_loss(0)


def test_scores_and_files_of_a_corpus(learned, stories, tmp_path, capsys):
    words = ("--checkpoint", learned[0], "--data", stories, "--cpu", "--out", tmp_path)
    assert run("evaluate qa", *words) == 0
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert 0 < scores.pop("nll") <= scores.pop("nll_one") < 0.5
    assert scores.pop("read")["documents cut"] == 0
    assert scores["em"] == scores["sp_f1"] == scores["joint_em"] == 1
    assert "joint_f1" in capsys.readouterr().out
    written = json.loads((tmp_path / "predictions.json").read_text())
    data, facts, gold = QAData(stories, "valid"), {}, {}
    for index, texts in enumerate(map(data.texts, range(len(data)))):
        (number,) = data[index].outline.supporting.tolist()
        facts[texts["id"]] = [("", number)]  # the story has no title
        gold[texts["id"]] = texts["texts"]
    found = {id_: [tuple(fact) for fact in of] for id_, of in written["sp"].items()}
    assert found == facts
    assert evaluate_hotpotqa(gold, written["answer"], facts, found) == pytest.approx(scores)


def test_answers_from_a_text_show_what_supports_them(learned, stories, tmp_path, capsys):
    lines = map(QAData(stories, "valid").texts, range(16))
    line = next(texts for texts in lines if texts["question"].startswith("Where"))
    story, answer = line["paragraphs"][0][1], line["texts"][0]
    (path := tmp_path / "story.txt").write_text(story)
    words = ["--checkpoint", learned[0], "--data", stories, "--document", path, "--cpu"]
    assert run("answer --top 1 --question", Path(line["question"]), *words) == 0
    shown = capsys.readouterr().out
    (fact,) = (sentence for sentence in story.split(". ") if answer in sentence)
    assert shown.startswith(f"1. {answer}\n")
    assert shown.count("supported by (") == 1
    assert f": {fact.rstrip('.')}.\n" in shown.split("supported by (")[1]


@pytest.mark.whole
def test_wikihop_from_its_file_to_an_accuracy(tmp_path, capsys):
    """Candidates' words alone decide: no text mentions one; other questions are scored."""
    draw, items = random.Random(1), []
    for number in range(300):
        colours = draw.sample(["red", "green", "blue", "grey", "pink"], 2)
        towns = draw.sample(["Paris", "York", "Bonn", "Rome", "Oslo", "Ulm"], 3)
        names = [f"{c} {t}".lower() for c, t in zip(["royal", *colours], towns, strict=True)]
        item = {"id": f"WH_{number}", "query": "seat_of king", "answer": names[0]}
        supports = ["It is old.", "The king lives there."]
        items.append(item | {"candidates": draw.sample(names, 3), "supports": supports})
    folder, words = tmp_path / "data", []
    for name, part in (("train", items[:252]), ("valid", items[252:])):
        (path := tmp_path / f"{name}.json").write_text(json.dumps(part))
        words += [f"--{name}", str(path)]
    assert prepare.main(["wikihop", str(folder), *words]) == 0
    line = f"{ETC_READER} --max-update 60 --disable-validation --batch-size 12"
    for update in train(folder, line, tmp_path / "out").updates:
        assert (update["candidate_size"], update["span_size"]) == (12, 0)
        assert update["loss"] == pytest.approx(update["candidate_loss"])
    checkpoint = tmp_path / "out" / "checkpoint_last.pt"
    words = ("--checkpoint", checkpoint, "--data", folder)
    assert run("evaluate qa --cpu", *words, "--out", tmp_path / "scores") == 0
    found = json.loads((tmp_path / "scores" / "scores.json").read_text())["exact_match"]
    assert found >= 95  # by chance, 33
    assert validate(folder, checkpoint, TASK)["em"] == pytest.approx(found, abs=0.01)

    reader = Reader(load_checkpoint(checkpoint, data=folder, task="clusterformer_qa"))
    item = items[-1]
    asked, answer = {"candidates": item["candidates"]}, item["answer"]
    for documents in ("\n\n".join(item["supports"]), item["supports"]):
        first, second = reader.answer("seat of king", documents, **asked, top=2)
        assert (first.text, first.paragraph) == (answer, None)
        assert first.probability > 0.5 > second.probability
    text = f"It is {answer} here."
    assert reader.answer("seat of king", text, **asked, top=2)[0].context == text
    for most in range(2, 9):  # passages may end within a mention
        index = reader.passages(list(reader.sections(text_source(text, "a"), most)))
        for place in reader.ask("seat", index, 3, **asked):
            assert place.paragraph is None or place.around()[1] == place.text
    (tmp_path / "a.txt").write_text(f"It is old.\n\nIt is {answer.upper()} here.")
    words += ("--document", tmp_path / "a.txt", "--candidates", *map(Path, item["candidates"]))
    line, page = "answer --cpu --question seat", tmp_path / "page.html"
    assert run(line, *words, "--html", page) == 0
    assert f"1. {answer}\n" in capsys.readouterr().out
    assert answer.upper() in page.read_text()
    assert run(line, *words, *range(5000)) == 1
    error = r"5003 --candidates: \d+ global tokens of .*; allowed: \d+ or fewer"
    assert re.search(error, capsys.readouterr().err)
    assert run(line, *words, "--no-answer-margin 1") == 2
    assert "--candidates and --no-answer-margin 1.0 are given" in capsys.readouterr().err
    with pytest.raises(UserError, match="--candidates is .*; allowed: two different texts"):
        reader.answer("seat", "It is old.", candidates=["one"])
