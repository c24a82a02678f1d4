"""Questions that reader-en learns from; folders of articles, and what is fitted and scored."""

import gzip
import json
import lzma
import random
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from examples.question_answering import folders, reader_data
from fairseq_clusterformer.documents.found import FEATURES, Weights
from fairseq_clusterformer.documents.read import Reader
from fairseq_clusterformer.errors import UserError
from tests.cli.towns import towns_data, towns_reader  # noqa: F401  fixtures

WRITERS = {".gz": gzip.open, ".xz": lzma.open}


def write_squad(path: Path, articles: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with WRITERS.get(path.suffix, open)(path, "wt", encoding="utf-8") as file:
        json.dump({"data": articles}, file)


def main(program, *words: object) -> int:
    return program.main([*map(str, words)])


# reader_data.py


@pytest.fixture(scope="module")
def squad(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of each name. Its titles say where they are from; of development articles, the first
    file has the questions with an answer and the second those without."""
    folder = tmp_path_factory.mktemp("squad")
    for name in (*reader_data.TRAIN, *reader_data.DIVIDED):
        own, divided = Path(name).name.split(".json")[0], name in reader_data.DIVIDED
        number = max(each or 3 for each in reader_data.TRAIN.get(name, (3,)))
        question = {"question": "Who?", "answers": [{"text": "ox", "answer_start": 3}]}
        if divided and "dev-v1.1" not in name:
            question |= {"answers": [], "is_impossible": True}
        articles = []
        for i in range(4 if divided else 1):
            asked = [question | {"id": f"{own} {i} {n}"} for n in range(number)]
            title = f"Article {i}" if divided else own.removesuffix(".first11articles")
            paragraphs = [{"context": f"An ox. {i}", "qas": asked}, {"context": "Else", "qas": []}]
            articles.append({"title": title, "paragraphs": paragraphs})
        write_squad(folder / name, articles)
    return folder


def test_each_pass_has_its_files(squad, tmp_path):
    found = []
    for options in ((), ("--again",), ("--again", "--last")):
        out = tmp_path / f"{len(options)}"
        assert main(reader_data, squad, out, "--none", 0, *options) == 0
        counts: tuple[Counter, Counter] = Counter(), Counter()
        for line in (out / "train.jsonl").read_text().splitlines():
            record = json.loads(line)
            title = re.sub(r"^Article .*", "Article", record["title"])
            counts[not record["answers"]][title] += 1
        found.append(counts)
    first, again, last = found
    assert len(first[0]) == 1 + len(reader_data.TRAIN)
    assert again[0].keys() == first[0].keys()
    assert again[0]["reddit_v1.0"] == 5_000
    assert last[1]["Article"] == again[1]["Article"] == 2 * first[1]["Article"] > 0
    of_wikipedia = ("Article", "train-v1.1", "new_wiki_v1.0")
    assert last[0] == {name: again[0][name] for name in of_wikipedia}


@pytest.mark.parametrize("options", [["--long", "--again"], ["--last"], ["--long", "--last"]])
def test_passes_that_do_not_go_together(options, squad, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(reader_data, squad, tmp_path / "out", *options)
    assert "allowed: --long, --again, or --again --last" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


# folders.py


def test_questions_of_missing_articles(tmp_path):
    """No article is asked of two parts, and each of a part's is missing once."""
    titles = [f"A {number}" for number in range(48)]
    answers = [{"text": "x"}, {"text": "x"}, {"text": "y"}]
    asked = [{"question": f"{i}?", "answers": answers} for i in range(60)]
    articles = [{"title": t, "paragraphs": [{"context": t, "qas": asked}]} for t in titles]
    write_squad(tmp_path / reader_data.DIVIDED[0], articles)
    assert main(folders, "make", tmp_path, tmp_path / "out") == 0
    assert len(list((tmp_path / "out" / "articles").iterdir())) == 48
    for part in ("valid", "test"):
        there = Counter()
        for number in range(4):
            record = json.loads((tmp_path / "out" / f"{part}-{number + 1}.json").read_text())
            files, questions = record["documents"], record["questions"]
            parts = {f: reader_data.part_of(titles, f.removesuffix(".txt")) for f in files}
            assert len(parts) == folders.FILES
            assert {*parts.values()} == {part, "train"}
            there.update(file for file in files if parts[file] == part)
            assert Counter(row["file"] is None for row in questions) == {True: 15, False: 45}
            assert {row["file"] for row in questions} <= {None, *files}
            assert questions[0]["answers"] == ["x", "y"]
        assert {*there.values()} == {3}


def test_folders_of_one_article_or_of_a_questions_paragraphs(tmp_path):
    """Of the first questions of a test."""
    answers = [{"text": "y"}, {"text": "x"}] * 2
    lines = [
        {"id": i, "title": title, "question": f"{title}?", "answers": answers}
        | {"paragraphs": ["Ada.", "Ben."]}
        for i, title in enumerate("ABAC")
    ]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for command in ("whole", "runs"):
        assert main(folders, command, tmp_path / "test.jsonl", tmp_path, "--limit", 3) == 0
    made = {path.name: json.loads(path.read_text()) for path in tmp_path.glob("*.json")}
    row = {"question": "A?", "answers": ["x", "y"], "file": "A.txt"}
    assert made["whole-A.json"] == {"documents": ["A.txt"], "questions": [row, row]}
    row["file"] = "run-2.txt"
    assert made["run-2.json"] == {"documents": ["run-2.txt"], "questions": [row]}
    assert (tmp_path / "articles" / "run-2.txt").read_text() == "Ada.\n\nBen."
    assert len(made) == 2 + 3


@pytest.fixture(scope="module")
def rows() -> list[dict]:
    """Each with a right answer, whose relevance tells it, and two wrong ones; or wrong ones alone
    with lower margins."""
    draw, found = random.Random(1), []
    for number in range(600):
        file, answers = None if number % 4 == 0 else "a.txt", []
        for place in range(3):
            right = file is not None and place == 1
            answer = {"file": "a.txt", "right": right, "f1": float(right), "exact": right}
            answer["margin"] = draw.gauss(2 if file else 0, 1)
            answer["words"] = draw.gauss(4 if right else 0, 1)
            answer["likeness"] = 0.0
            answer["none"] = draw.gauss(-2 if right else 0, 1)
            answers.append(answer)
        found.append({"file": file, "found": answers, "seconds": 0.1, "passage": 384})
    return found


def test_what_is_shown_is_the_share_of_right_answers(rows):
    """Questions for which nothing was found teach no weights, and count as refused and as not
    right."""
    nothing = [{"file": file, "found": [], "seconds": 0.1} for file in ("a.txt", None)]
    weights = folders.fit([*rows[:300], *nothing])
    assert weights == folders.fit(rows[:300])
    assert weights.words > weights.margin > 0 == weights.likeness > weights.none
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


def test_a_folder_is_encoded_once_for_all_its_questions(
    towns_reader,  # noqa: F811
    tmp_path,
    monkeypatch,
):
    """Each answer comes with what it is ranked by."""
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
    line = ["--out", tmp_path / "out.jsonl", "--passage", 30]
    assert main(folders, "ask", towns_reader, folder, *line) == 0
    found = folders.rows_of(tmp_path / "out.jsonl")
    assert [row["question"] for row in found] == [row["question"] for row in rows]
    assert len(encoded) == 2
    assert {row["passage"] for row in found} == {30}
    assert all(each.keys() >= set(FEATURES) for row in found for each in row["found"])


def test_a_calibration_is_a_file(rows, tmp_path, capsys):
    answers, out = tmp_path / "valid.jsonl", tmp_path / "calibration.json"

    def fit(given: list[dict]) -> int:
        answers.write_text("".join(json.dumps(row) + "\n" for row in given))
        return main(folders, "fit", answers, "--out", out)

    assert fit(rows) == 0
    assert json.loads(out.read_text())["questions"] == 600
    assert 0 < Weights.from_file(out).threshold < 1
    assert Weights.from_file(out).passage == 384
    capsys.readouterr()
    assert main(folders, "score", answers, "--calibration", out) == 0
    printed = capsys.readouterr().out
    assert "right answer first" in printed
    assert re.search(r"^0\.8 to 1\.0 +\d+ +0\.9\d +(0\.9\d|1\.00)$", printed, re.MULTILINE)
    with pytest.raises(UserError, match=r"passages of \[20, 384\] tokens"):
        fit([rows[0] | {"passage": 20}, *rows])
    with pytest.raises(UserError, match="none of 150 questions"):
        fit([row for row in rows if row["file"] is None])
