"""Folders of articles: how they are made, and what is fitted and scored."""

import gzip
import json
import random
import re

import numpy as np
import pytest

from examples.question_answering import folders
from examples.question_answering.reader_data import DIVIDED, part_of
from fairseq_clusterformer.documents.found import FEATURES, Weights
from fairseq_clusterformer.documents.read import Reader
from tests.cli.towns import towns_data, towns_reader  # noqa: F401  fixtures


def test_questions_of_missing_articles(tmp_path):
    """No article is asked of two parts, and each of a part's is missing once."""
    titles = [f"A {number}" for number in range(48)]
    asked = [
        {"question": f"{i}?", "answers": [{"text": "x"}, {"text": "x"}, {"text": "y"}]}
        for i in range(60)
    ]
    articles = [{"title": t, "paragraphs": [{"context": t, "qas": asked}]} for t in titles]
    path = tmp_path / DIVIDED[0]
    path.parent.mkdir()
    path.write_bytes(gzip.compress(json.dumps({"data": articles}).encode()))
    assert folders.main(["make", str(tmp_path), str(tmp_path / "out")]) == 0
    assert len(list((tmp_path / "out" / "articles").iterdir())) == 48
    for part in ("valid", "test"):
        there = []
        for number in range(4):
            record = json.loads((tmp_path / "out" / f"{part}-{number + 1}.json").read_text())
            files = record["documents"]
            assert len(set(files)) == folders.FILES
            assert {part_of(titles, file.removesuffix(".txt")) for file in files} == {
                part,
                "train",
            }
            there += [file for file in files if part_of(titles, file.removesuffix(".txt")) == part]
            questions = record["questions"]
            assert len(questions) == 60
            assert sum(row["file"] is None for row in questions) == 15
            assert {row["file"] for row in questions} <= {None, *files}
            assert questions[0]["answers"] == ["x", "y"]
        assert {there.count(file) for file in there} == {3}


def test_folders_of_one_article(tmp_path):
    """The first questions of a test, by their articles."""
    lines = [
        {"title": title, "question": f"{title}?", "answers": [{"text": "y"}, {"text": "x"}] * 2}
        for title in ("A", "B", "A", "C")
    ]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    args = [str(tmp_path / "test.jsonl"), str(tmp_path), "--limit", "3"]
    assert folders.main(["whole", *args]) == 0
    made = {path.name: json.loads(path.read_text()) for path in tmp_path.glob("*.json")}
    row = {"question": "A?", "answers": ["x", "y"], "file": "A.txt"}
    assert made["whole-A.json"] == {"documents": ["A.txt"], "questions": [row, row]}
    assert made.keys() == {"whole-A.json", "whole-B.json"}


def test_folders_of_the_paragraphs_of_a_question(tmp_path):
    line = {"id": "7", "question": "Who?", "paragraphs": ["Ada.", "Ben."]}
    line["answers"] = [{"text": "Ben", "answer_start": 0, "paragraph": 1}]
    (tmp_path / "test.jsonl").write_text(json.dumps(line) + "\n")
    assert folders.main(["runs", str(tmp_path / "test.jsonl"), str(tmp_path)]) == 0
    row = {"question": "Who?", "answers": ["Ben"], "file": "run-7.txt"}
    made = json.loads((tmp_path / "run-7.json").read_text())
    assert made == {"documents": ["run-7.txt"], "questions": [row]}
    assert (tmp_path / "articles" / "run-7.txt").read_text() == "Ada.\n\nBen."


@pytest.fixture(scope="module")
def rows() -> list[dict]:
    """Each with a right answer, whose relevance tells it, and two wrong ones; or wrong ones alone
    with lower margins."""
    draw, found = random.Random(1), []
    for number in range(600):
        file = None if number % 4 == 0 else "a.txt"
        answers = []
        for place in range(3):
            right = file is not None and place == 1
            answers.append({"file": "a.txt", "right": right, "f1": float(right), "exact": right})
            answers[-1]["margin"] = draw.gauss(2 if file else 0, 1)
            answers[-1]["words"] = draw.gauss(4 if right else 0, 1)
            answers[-1]["likeness"] = 0.0
            answers[-1]["none"] = draw.gauss(-2 if right else 0, 1)
        found.append({"file": file, "found": answers, "seconds": 0.1, "passage": 384})
    return found


def test_questions_for_which_nothing_was_found(rows):
    """They teach no weights, and count as refused and as not right."""
    nothing = [{"file": file, "found": [], "seconds": 0.1} for file in ("a.txt", None)]
    weights = folders.fit([*rows[:300], *nothing])
    assert weights == folders.fit(rows[:300])
    scores, bins = folders.score(nothing, weights)
    assert scores["calibrated: refused of those without an answer"] == 100
    assert bins == [(0, 0.2, 2, pytest.approx(0), 0)]
    assert scores["right file first"] == scores["right answer first"] == scores["F1"] == 0


def test_what_is_shown_is_the_share_of_right_answers(rows):
    weights = folders.fit(rows[:300])
    assert weights.words > weights.margin > 0 == weights.likeness > weights.none
    scores, bins = folders.score(rows[300:], weights)
    before, _ = folders.score(rows[300:], Weights())
    assert scores["right file first"] == scores["right answer among three"] == 100
    assert scores["right answer first"] > 90 > before["right answer first"]
    for name, least, most in (("calibrated", 1, 15), ("a tenth lost", 9, 10)):
        assert least < scores[f"{name}: refused of the right answers"] <= most
        assert scores[f"{name}: refused of those without an answer"] > 60
    assert sum(number for _, _, number, *_ in bins) == 300
    large = [(low, high, shown, share) for low, high, n, shown, share in bins if n >= 20]
    assert len(large) > 1
    for low, high, shown, share in large:
        assert low <= shown <= high
        assert abs(shown - share) < 0.15


@pytest.mark.parametrize(("number", "below"), [(1, 0), (21, 0), (22, 0), (38, 1), (135, 8)])
def test_a_threshold_that_loses_a_tenth_of_others_as_well(number, below):
    """Nine times in ten, whatever sample it was chosen by."""
    draw = np.random.default_rng(number)
    values = draw.permutation(number) / number
    assert (values < folders.threshold(values)).sum() == below
    if number < 22:  # too few for such confidence: none of them is lost
        return
    samples = draw.random((2000, number))  # of those below x, a share of x is lost
    held = np.mean([folders.threshold(sample) <= 0.1 for sample in samples])
    assert held > 0.88


def test_a_folder_is_encoded_once_for_all_its_questions(
    towns_reader,  # noqa: F811
    tmp_path,
    monkeypatch,
):
    """`--limit` asks some of all kinds; each answer comes with what it is ranked by."""
    (tmp_path / "articles").mkdir()
    for name, text in (("a", "Otto rules Ulm."), ("b", "Noor rules Bree.")):
        (tmp_path / "articles" / f"{name}.txt").write_text(text)
    towns = ["Ulm", "Bree", "Ulm", "Bree", "Pisa", "Tyre"]
    rows = [{"question": f"Who rules {town}?", "answers": [], "file": None} for town in towns]
    folder, encoded = tmp_path / "valid-1.json", []
    folder.write_text(json.dumps({"documents": ["a.txt", "b.txt"], "questions": rows}))
    encode = Reader._encode_sections

    def count(reader: Reader, sections: list) -> list:
        encoded.extend(sections)
        return encode(reader, sections)

    monkeypatch.setattr(Reader, "_encode_sections", count)
    line = ["ask", towns_reader, folder, "--out", tmp_path / "out.jsonl", "--limit", 3]
    line += ["--passage", 30]
    assert folders.main([*map(str, line)]) == 0
    found = folders.rows_of(tmp_path / "out.jsonl")
    assert [row["question"] for row in found] == [rows[i]["question"] for i in (1, 3, 5)]
    assert len(encoded) == 2
    assert {row["passage"] for row in found} == {30}
    assert all(each.keys() >= set(FEATURES) for row in found for each in row["found"])
    assert folders.spread(rows, 9) == rows


def test_a_calibration_is_a_file(rows, tmp_path, capsys):
    answers, out = tmp_path / "valid.jsonl", tmp_path / "calibration.json"
    answers.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert folders.main(["fit", str(answers), "--out", str(out)]) == 0
    assert json.loads(out.read_text())["questions"] == 600
    assert 0 < Weights.from_file(out).threshold < 1
    assert Weights.from_file(out).passage == 384
    capsys.readouterr()
    assert folders.main(["score", str(answers), "--calibration", str(out)]) == 0
    out = capsys.readouterr().out
    assert "right answer first" in out
    assert re.search(r"^0\.8 to 1\.0 +\d+ +0\.9\d +(0\.9\d|1\.00)$", out, re.MULTILINE)
    rows = [rows[0] | {"passage": 20}, *rows]
    answers.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(SystemExit, match=r"passages of \[20, 384\] tokens"):
        folders.main(["fit", str(answers), "--out", str(tmp_path / "other")])
    answers.write_text("".join(json.dumps(row) + "\n" for row in rows if row["file"] is None))
    with pytest.raises(SystemExit, match="none of 151 questions"):
        folders.main(["fit", str(answers), "--out", str(out)])
