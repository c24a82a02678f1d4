"""etc_reader by fairseq's commands: from bAbI's files to answers with their supporting facts."""

import json
import random
import re
from pathlib import Path

import pytest

from fairseq_clusterformer.checkpoints.load import load_checkpoint
from fairseq_clusterformer.cli.main import main
from fairseq_clusterformer.data.qa import QAData
from fairseq_clusterformer.documents.read import Reader
from fairseq_clusterformer.documents.sources import text_source
from fairseq_clusterformer.errors import UserError
from fairseq_clusterformer.metrics import hotpotqa
from question_answering import prepare
from tests.cli.in_process import Run, train, validate
from tests.cli.tasks import ETC_READER

TASK = "--task clusterformer_qa --valid-subset valid --batch-size 7"
SCORES = ("em", "f1", "answerable_accuracy", "sp_em", "sp_f1", "joint_em", "joint_f1")
NAMES, PLACES = ("Ada", "Bob", "Eve"), ("hall", "park", "shop", "barn")


@pytest.fixture(scope="module")
def learned(stories: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Run]:
    folder = tmp_path_factory.mktemp("learned")
    line = f"{ETC_READER} --supporting-facts --max-update 130 --disable-validation"
    run = train(stories, line, folder)
    return folder / "checkpoint_last.pt", run


def test_it_learns_answers_and_what_supports_them(learned, stories):
    checkpoint, run = learned
    printed = validate(stories, checkpoint, TASK)
    assert {name: printed[name] for name in SCORES} == dict.fromkeys(SCORES, 100)
    for update in run.updates:
        parts = (update[f"{part}_loss"] for part in ("span", "long", "type", "support"))
        assert update["loss"] == pytest.approx(sum(parts) / 5)
        assert update["support_size"] == update["sample_size"]
    assert run.mean_loss(-1) < 0.5 < 1 < run.mean_loss(0)


def test_scores_and_files_of_a_corpus(learned, stories, tmp_path, capsys):
    words = ["evaluate", "qa", "--checkpoint", learned[0], "--data", stories, "--cpu"]
    assert main(list(map(str, [*words, "--out", tmp_path]))) == 0
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert 0 < scores.pop("nll") <= scores.pop("nll_one") < 0.5
    assert scores.pop("read")["documents cut"] == 0
    assert scores["em"] == scores["sp_f1"] == scores["joint_em"] == 1
    assert "joint_f1" in capsys.readouterr().out
    written = json.loads((tmp_path / "predictions.json").read_text())
    data = QAData(stories, "valid")
    facts = {}
    for index in range(len(data)):
        (number,) = data.outline(index).supporting.tolist()
        facts[data.texts(index)["id"]] = [("", number)]  # the story has no title
    found = {id_: [tuple(fact) for fact in of] for id_, of in written["sp"].items()}
    assert found == facts
    gold = {data.texts(index)["id"]: data.texts(index)["texts"] for index in range(len(data))}
    assert hotpotqa.evaluate(gold, written["answer"], facts, found) == pytest.approx(scores)


def test_answers_from_a_text_show_what_supports_them(learned, stories, tmp_path, capsys):
    line = next(
        texts
        for texts in map(QAData(stories, "valid").texts, range(16))
        if texts["question"].startswith("Where")
    )
    (path := tmp_path / "story.txt").write_text(line["paragraphs"][0][1])
    words = ["answer", "--checkpoint", learned[0], "--data", stories, "--document", path, "--cpu"]
    assert main(list(map(str, [*words, "--question", line["question"], "--top", 1]))) == 0
    shown = capsys.readouterr().out
    sentences = line["paragraphs"][0][1].split(". ")
    (fact,) = (sentence for sentence in sentences if line["texts"][0] in sentence)
    assert shown.startswith(f"1. {line['texts'][0]}\n")
    assert shown.count("supported by (") == 1
    assert f": {fact.rstrip('.')}.\n" in shown.split("supported by (")[1]


@pytest.mark.whole
def test_a_long_page_is_read_in_windows(tmp_path, capsys, caplog):
    """Pages of 20 sentences, about 7 windows: answers are found in the last tenth as well, by
    training and scoring in windows; pages that are cut do not have them."""
    draw, split = random.Random(1), {"train": 60, "valid": 20}
    for name, number in split.items():
        lines = []
        for i in range(number):
            people = draw.choices(NAMES, k=20)
            places = draw.choices(PLACES, k=20)
            asked = draw.randrange(20) if name == "train" else 19 - i % 2
            people[asked] = "Key"
            texts = [f"{who} is in the {of}." for who, of in zip(people, places, strict=True)]
            before = len(" ".join(texts[10 * (asked // 10) : asked])) + (asked % 10 > 0)
            start = before + texts[asked].index(places[asked])
            lines.append(
                {
                    "id": f"{name}-{i}",
                    "question": "Where is Key?",
                    "paragraphs": [" ".join(texts[:10]), " ".join(texts[10:])],
                    "answers": [
                        {"text": places[asked], "answer_start": start, "paragraph": asked // 10}
                    ],
                }
            )
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    folder = tmp_path / "data"
    words = ["prepare", "qa", "text", tmp_path / "train.jsonl", folder]
    words += ["--valid", tmp_path / "valid.jsonl"]
    assert main(list(map(str, words))) == 0
    line = f"{ETC_READER} --structure text --max-positions 40 --max-positions-inference 40"
    line += (
        " --document-stride 20 --null-windows 0.5 --batch-size 16 --radius 16 --disable-validation"
    )
    with caplog.at_level("INFO", "fairseq_clusterformer"):
        train(folder, f"{line} --max-update 180", tmp_path / "out")
    assert "60 of 60 documents are read in windows of 40 tokens (--document-str" in caplog.text
    checkpoint = tmp_path / "out" / "checkpoint_last.pt"
    words = ["evaluate", "qa", "--checkpoint", checkpoint, "--data", folder, "--cpu"]
    found = {}
    for stride in (20, 0):
        capsys.readouterr()
        assert main(list(map(str, [*words, "--document-stride", stride]))) == 0
        shown = dict(line.strip().split("  ") for line in capsys.readouterr().out.splitlines())
        found[stride] = float(shown["exact_match"])
    assert found[20] >= 90 > 60 > found[0]
    printed = validate(folder, checkpoint, TASK)
    assert printed["em"] == pytest.approx(found[20], abs=0.01)


@pytest.mark.whole
def test_wikihop_from_its_file_to_an_accuracy(tmp_path, capsys):
    """Candidates' words alone decide: no text mentions one; other questions are scored."""
    draw, items = random.Random(1), []
    for number in range(300):
        colours = draw.sample(["red", "green", "blue", "grey", "pink"], 2)
        towns = draw.sample(["Paris", "York", "Bonn", "Rome", "Oslo", "Ulm"], 3)
        names = [f"{c} {t}".lower() for c, t in zip(["royal", *colours], towns, strict=True)]
        items.append(
            {
                "id": f"WH_{number}",
                "query": "seat_of king",
                "candidates": draw.sample(names, 3),
                "answer": names[0],
                "supports": ["It is old.", "The king lives there."],
            }
        )
    for name, part in (("train", items[:252]), ("valid", items[252:])):
        (tmp_path / f"{name}.json").write_text(json.dumps(part))
    folder = tmp_path / "data"
    words = ["wikihop", folder]
    words += ["--train", tmp_path / "train.json", "--valid", tmp_path / "valid.json"]
    assert prepare.main(list(map(str, words))) == 0
    line = f"{ETC_READER} --max-update 60 --disable-validation --batch-size 12"
    run = train(folder, line, tmp_path / "out")
    for update in run.updates:
        assert (update["candidate_size"], update["span_size"]) == (12, 0)
        assert update["loss"] == pytest.approx(update["candidate_loss"])
    checkpoint = tmp_path / "out" / "checkpoint_last.pt"
    words = ["evaluate", "qa", "--checkpoint", checkpoint, "--data", folder, "--cpu"]
    capsys.readouterr()
    assert main(list(map(str, words))) == 0
    shown = dict(line.strip().split("  ") for line in capsys.readouterr().out.splitlines())
    assert float(shown["exact_match"]) >= 95  # by chance, 33
    printed = validate(folder, checkpoint, TASK)
    assert printed["em"] == pytest.approx(float(shown["exact_match"]), abs=0.01)

    reader = Reader(load_checkpoint(checkpoint, data=folder, task="clusterformer_qa"))
    item = items[-1]
    asked = {"candidates": item["candidates"], "top": 2}
    for documents in ("\n\n".join(item["supports"]), item["supports"]):
        found = reader.answer("seat of king", documents, **asked)
        assert found[0].text == item["answer"]
        assert found[0].paragraph is None
        assert found[0].probability > 0.5 > found[1].probability
    place = reader.answer("seat of king", f"It is {item['answer']} here.", **asked)[0]
    assert place.context == f"It is {item['answer']} here."
    for most in range(2, 9):  # passages may end within a mention
        text = text_source(f"It is {item['answer']} here.", "a")
        index = reader.passages(list(reader.sections(text, most)))
        for place in reader.ask("seat", index, 3, candidates=item["candidates"]):
            assert place.paragraph is None or place.around()[1] == place.text
    (tmp_path / "a.txt").write_text(f"It is old.\n\nIt is {item['answer'].upper()} here.")
    words = ["answer", "--checkpoint", checkpoint, "--data", folder, "--cpu", "--question", "seat"]
    words += ["--document", tmp_path / "a.txt", "--candidates", *item["candidates"]]
    assert main([*map(str, words), "--html", str(tmp_path / "page.html")]) == 0
    assert f"1. {item['answer']}\n" in capsys.readouterr().out
    assert item["answer"].upper() in (tmp_path / "page.html").read_text()
    assert main([*map(str, words), *map(str, range(5000))]) == 1
    error = r"5003 --candidates: \d+ global tokens of .*; allowed: \d+ or fewer"
    assert re.search(error, capsys.readouterr().err)
    with pytest.raises(SystemExit):
        main([*map(str, words), "--no-answer-margin", "1"])
    assert "--candidates and --no-answer-margin 1.0 are given" in capsys.readouterr().err
    with pytest.raises(UserError, match="--candidates is .*; allowed: two different texts"):
        reader.answer("seat", "It is old.", candidates=["one"])
