"""Folders of articles with questions: what is asked, fitted and scored."""

import json
import random
import re
from collections import Counter

import numpy as np
import pytest

from examples.question_answering import folders
from fairseq_clusterformer.documents.found import FEATURES, Weights
from fairseq_clusterformer.errors import UserError
from tests.corpora.records import write


def main(*words: object) -> int:
    return folders.main([*map(str, words)])


def test_questions_of_missing_articles(tmp_path):
    """No article is asked of two parts, and each of a part's is missing once."""
    titles = [f"A {number}" for number in range(48)]
    answers = [{"text": text, "answer_start": "xy".index(text)} for text in "xxy"]
    asked = [{"question": f"{i}?", "answers": answers} for i in range(60)]
    articles = [{"title": t, "paragraphs": [{"context": t, "qas": asked}]} for t in titles]
    write(tmp_path / "squad/dev-v1.1.json.gz", json.dumps({"data": articles}).encode())
    assert main("make", tmp_path, tmp_path / "out") == 0
    assert len(list((tmp_path / "out" / "articles").iterdir())) == 48
    for part in ("valid", "test"):
        there = Counter()
        for number in range(4):
            record = json.loads((tmp_path / "out" / f"{part}-{number + 1}.json").read_text())
            files, questions = record["documents"], record["questions"]
            parts = {f: folders.part_of(titles.index(f.removesuffix(".txt"))) for f in files}
            assert len(parts) == folders.FILES
            assert {*parts.values()} == {part, "train"}
            there.update(file for file in files if parts[file] == part)
            assert Counter(row["file"] is None for row in questions) == {True: 15, False: 45}
            assert {row["file"] for row in questions} <= {None, *files}
            assert questions[0]["answers"] == ["x", "y"]
        assert {*there.values()} == {3}


@pytest.fixture(scope="module")
def rows() -> list[dict]:
    """Each with a right answer, whose relevance tells it, or wrong ones with lower margins."""
    draw, found = random.Random(1).gauss, []
    for number in range(600):
        file, answers = None if number % 4 == 0 else "a.txt", []
        for place in range(3):
            right = file is not None and place == 1
            answer = {"file": "a.txt", "right": right, "f1": float(right), "exact": right}
            answer |= {"margin": draw(2 if file else 0, 1), "words": draw(4 if right else 0, 1)}
            answers.append(dict.fromkeys(FEATURES, 0.0) | answer | {"none": draw(-2 * right, 1)})
        found.append({"file": file, "found": answers, "seconds": 0.1, "passage": 384})
    return found


def test_what_is_shown_is_the_share_of_right_answers(rows):
    """Where nothing was found, no weight is learned, and nothing is right."""
    nothing = [{"file": file, "found": [], "seconds": 0.1} for file in ("a.txt", None)]
    weights = folders.fit([*rows[:300], *nothing])
    assert weights == folders.fit(rows[:300])
    assert weights.words > weights.margin > 0 == weights.likeness == weights.lead > weights.none
    scores, bins = folders.score(rows[300:], weights)
    before, _ = folders.score(rows[300:], Weights())
    assert scores["right file first"] == scores["right answer among three"] == 100
    assert scores["right answer first"] > 90 > before["right answer first"]
    assert 1 < scores["refused of the right answers"] <= 15
    assert scores["refused of those without an answer"] > 60
    assert sum(number for _, _, number, *_ in bins) == 300
    large = [(low, high, shown, share) for low, high, n, shown, share in bins if n >= 20]
    assert len(large) > 1
    for low, high, shown, share in large:
        assert low <= shown <= high
        assert abs(shown - share) < 0.15
    scores, bins = folders.score(nothing, weights)
    assert scores["refused of those without an answer"] == 100
    assert scores["right file first"] == scores["right answer first"] == scores["F1"] == 0
    assert bins == [(0, 0.2, 2, pytest.approx(0), 0)]


@pytest.mark.parametrize(("number", "below"), [(1, 0), (21, 0), (22, 0), (38, 1), (135, 8)])
def test_a_threshold_that_loses_a_tenth_of_others_as_well(number, below):
    """Nine times in ten, whatever sample it was chosen by."""
    draw = np.random.default_rng(number)
    values = draw.permutation(number) / number
    assert (values < folders.threshold(values)).sum() == below
    if number >= 22:  # else too few for such confidence: none of them is lost
        samples = draw.random((2000, number))  # of those below x, a share of x is lost
        held = np.mean([folders.threshold(sample) <= 0.1 for sample in samples])
        assert held > 0.88


def test_from_a_reader_to_a_calibration(towns_reader, rows, tmp_path, capsys):
    """Each answer comes with what it is ranked by; a calibration is a file."""
    for name, text in (("a", "Otto rules Ulm."), ("b", "Noor rules Bree.")):
        write(tmp_path / "articles" / f"{name}.txt", text.encode())
    asked = {"Ulm": ["Otto"], "Bree": ["x", "old Noor"], "Pisa": []}
    asked = [{"question": f"Who rules {t}?", "answers": a, "file": None} for t, a in asked.items()]
    asked[0]["file"] = "a.txt"
    folder = {"documents": ["a.txt", "b.txt"], "questions": asked}
    path = write(tmp_path / "valid-1.json", json.dumps(folder).encode())
    answers, out = tmp_path / "out.jsonl", tmp_path / "calibration.json"
    assert main("ask", towns_reader, path, "--out", answers, "--passage", 30) == 0
    found = folders.rows_of(answers)
    assert [row["question"] for row in found] == [row["question"] for row in asked]
    assert {row["passage"] for row in found} == {30}
    assert all(each.keys() >= set(FEATURES) for row in found for each in row["found"])
    best = [row["found"][0] for row in found[:2]]
    assert [(each["exact"], each["right"]) for each in best] == [(1, True), (0, False)]
    assert best[1]["f1"] == pytest.approx(2 / 3)

    def fit(given: list[dict]) -> int:
        answers.write_text("".join(json.dumps(row) + "\n" for row in given))
        return main("fit", answers, "--out", out)

    assert fit(rows) == 0
    assert json.loads(out.read_text())["questions"] == 600
    assert 0 < Weights.from_file(out).threshold < 1
    assert Weights.from_file(out).passage == 384
    capsys.readouterr()
    assert main("score", answers, "--calibration", out) == 0
    printed = capsys.readouterr().out
    assert "right answer first" in printed
    assert re.search(r"^0\.8 to 1\.0 +\d+ +0\.9\d +(0\.9\d|1\.00)$", printed, re.MULTILINE)
    with pytest.raises(UserError, match=r"passages of \[20, 384\] tokens"):
        fit([rows[0] | {"passage": 20}, *rows])
    with pytest.raises(UserError, match="none of 150 questions"):
        fit([row for row in rows if row["file"] is None])
