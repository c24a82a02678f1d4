"""clusterformer evaluate qa: scores that are the data sets' own, and the files that these read."""

import json
import math
import shutil
from pathlib import Path

import pytest
import torch

from fairseq_clusterformer.cli.main import main
from fairseq_clusterformer.data.qa import QAData
from fairseq_clusterformer.metrics.answers import evaluate, evaluate_v2
from fairseq_clusterformer.use.evaluate import Predictions, breakdown
from tests.cli.in_process import QUESTIONS, train, validate
from tests.cli.qa_data import TYPES, write_questions
from tests.conftest import sampled

# of a machine without an accelerator
pytestmark = pytest.mark.filterwarnings("ignore:'pin_memory' argument is set")

BY_HEART = "--max-update 100 --lr 0.006 --dropout 0 --attention-dropout 0 --disable-validation"
ANSWERED = [name for name in TYPES if name in ("short", "yes", "no")]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Data of every type, and a reader that knows it by heart."""
    folder = tmp_path_factory.mktemp("qa")
    train(write_questions(folder / "data"), f"{QUESTIONS} {BY_HEART}", folder)
    return folder / "data", folder / "checkpoint_last.pt"


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Data that has short answers, yes or no alone, and a reader that has begun to know it."""
    folder = tmp_path_factory.mktemp("answered")
    line = f"{QUESTIONS} {BY_HEART} --max-update 25"
    train(write_questions(folder / "data", ANSWERED), line, folder)
    return folder / "data", folder / "checkpoint_last.pt"


def run(trained: tuple[Path, Path], corpus: str, *more: object) -> int:
    data, checkpoint = trained
    (data / "prepared.json").write_text(json.dumps({"recipe": {"corpus": corpus}}))
    words = ["--checkpoint", checkpoint, "--data", data, "--cpu", *more]
    return main(["evaluate", "qa", *map(str, words)])


def read(folder: Path, name: str):
    return json.loads((folder / name).read_text())


@pytest.mark.parametrize("corpus", sampled(["text", "2wiki"], ["text"]))
def test_answers(corpus, answered, tmp_path, capsys):
    assert run(answered, corpus, "--out", tmp_path / "new" / "out", "--batch-size", 5) == 0
    out = tmp_path / "new" / "out"
    files = [".clusterformer", "predictions.json", "scores.json"]
    assert sorted(path.name for path in out.iterdir()) == files
    predictions, scores = read(out, "predictions.json"), read(out, "scores.json")
    if corpus == "2wiki":  # what their scripts look for
        assert predictions.keys() == {"answer", "sp", "evidence"}
        predictions = predictions["answer"]
    data = QAData(answered[0], "valid")
    gold = {line["id"]: line["texts"] for line in map(data.texts, range(len(data)))}
    assert predictions.keys() == gold.keys()
    expected = evaluate(gold, predictions)
    assert 5 < expected["f1"] < 95
    nll, nll_one = scores.pop("nll"), scores.pop("nll_one")
    assert nll_one > nll > 0
    assert scores.pop("read")["documents cut"] == 0
    if corpus == "2wiki":  # from 0 to 1
        assert 100 * scores["em"] == pytest.approx(expected["exact_match"])
    else:
        assert scores == pytest.approx(expected)
        assert f"{scores['f1']:.6g}" in capsys.readouterr().out
    # what fairseq-validate says of the same, where the likeliest type has an answer
    printed = validate(*answered, "--task clusterformer_qa", "--batch-size", 4)
    assert printed["em"] == pytest.approx(expected["exact_match"], abs=0.01)
    assert printed["f1"] == pytest.approx(expected["f1"], abs=0.01)
    bits = (
        printed["span_loss"] * ANSWERED.count("short") + printed["type_loss"] * len(data)
    ) / len(data)
    assert nll == pytest.approx(bits * math.log(2), abs=2e-3)


def test_what_is_cut_is_said(answered, tmp_path, capsys):
    """With the scores, on the screen and in the file; a document in windows is one, and whole."""
    data = QAData(answered[0], "valid")
    for more, cut in ((["--max-positions-inference", 30], sum(data.sizes > 30)), ([], 0)):
        more = more or ["--max-positions-inference", 30, "--document-stride", 15]
        out = tmp_path / str(cut)
        assert run(answered, "text", "--out", out, *more) == 0
        read_ = read(out, "scores.json")["read"]
        assert (read_["documents"], read_["documents cut"]) == (len(data), cut)
        assert f"documents cut  {cut}\n" in capsys.readouterr().out


def test_breakdown(trained, tmp_path, capsys):
    """Every question is in one row of each table, with the scores of its row's questions alone."""
    assert run(trained, "squad2", "--out", tmp_path, "--breakdown") == 0
    scores, predictions = read(tmp_path, "scores.json"), read(tmp_path, "predictions.json")
    none, printed = read(tmp_path, "no_answer.json"), capsys.readouterr().out
    data = QAData(trained[0], "valid")
    gold = {line["id"]: line["texts"] for line in map(data.texts, range(len(data)))}
    tables = {title: scores[title] for title in scores if title.startswith("by ")}
    assert len(tables) == 3
    for rows in tables.values():
        assert sum(row["questions"] for row in rows.values()) == 20
    lengths = scores["by words of the answer"]
    assert list(lengths) == ["none", "1", "2", "3 to 4"]
    for name, wanted in (("none", {0}), ("1", {1}), ("2", {2}), ("3 to 4", {3, 4})):
        ids = [i for i, texts in gold.items() if len((texts or [""])[0].split()) in wanted]
        expected = evaluate_v2({i: gold[i] for i in ids}, predictions, none, threshold=0.5)
        assert lengths[name] == pytest.approx(
            {"questions": len(ids), "exact match": expected["exact"], "f1": expected["f1"]}
        )
        assert f"{name:>43}  {len(ids):9,}" in printed
    assert scores["by words of the question"].keys() == {"1 to 5"}
    assert scores["by question word"].keys() == {"other"}
    least = min(none.values())
    assert run(trained, "squad2", "--out", tmp_path, "--no-answer-threshold", least) == 0
    expected = evaluate_v2(gold, predictions, none, threshold=least)
    assert expected["exact"] != scores["exact"]
    assert read(tmp_path, "scores.json").items() >= expected.items()


@pytest.mark.parametrize(
    ("question", "word", "length"),
    [
        ("Who won?", "who", "1 to 5"),
        ("In the end, WHOSE was it, and who saw it?", "whose", "9 to 11"),
        ("Name a town of the very far north whowever you can find it today", "other", "12 to 15"),
        (" ".join(["How", *["very"] * 15]), "how", "16 or more"),
    ],
)
def test_rows_of_the_breakdown(question, word, length):
    one = Predictions("squad1", {"0": "x"}, gold={"0": ["x"]}, questions={"0": question})
    found = breakdown(one)
    assert list(found["by question word"]) == [word]
    assert list(found["by words of the question"]) == [length]


@pytest.mark.parametrize("corpus", ["squad2", "text"])
def test_some_have_no_answer(corpus, trained, tmp_path):
    assert run(trained, corpus, "--out", tmp_path) == 0
    predictions, none = read(tmp_path, "predictions.json"), read(tmp_path, "no_answer.json")
    scores = read(tmp_path, "scores.json")
    for number, name in enumerate(TYPES):
        assert (none[str(number)] > 0.5) is (name in ("long", "none"))
        assert predictions[str(number)]  # what it would be, were there one
    assert scores["exact"] == scores["HasAns_exact"] == scores["NoAns_exact"] == 100
    assert (scores["total"], scores["NoAns_total"], scores["best_f1"]) == (20, 4, 100)
    assert scores["AvNA"] == 100


def gold_file(folder: Path, path: Path, annotators: int) -> Path:
    """Natural Questions' labels of the questions that a folder was prepared from, and one more."""
    data, lines = QAData(folder, "valid"), []
    nothing = {"start_token": -1, "end_token": -1}
    for index, example in enumerate(data):
        line, long, short = data.texts(index), nothing, []
        for number in example.long_answers.tolist():
            start, end = line["paragraphs"][number][2]
            long = {"start_token": start, "end_token": end}
        for number, start, end in line["answers"]:
            _, text, _, words = line["paragraphs"][number]
            first, last = (words[text[:place].count(" ")] for place in (start, end))
            short.append({"start_token": first, "end_token": last + 1})
        yes_no = (example.yes_no or "none").upper()
        labels = [
            {"long_answer": long, "short_answers": [span], "yes_no_answer": yes_no}
            for span in short or [nothing]
        ]
        labels = (labels * annotators)[: max(annotators, len(labels))]
        lines.append({"example_id": int(line["id"]), "annotations": labels})
    empty = {"long_answer": nothing, "short_answers": [], "yes_no_answer": "NONE"}
    lines.append({"example_id": 1000, "annotations": [empty] * 5})  # was dropped
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.parametrize("annotators", [1, 5])  # of the training data, and of the development set
def test_natural_questions(annotators, trained, tmp_path, capsys, caplog):
    """What the files have besides the split, such as the rest of train, is not scored."""
    gold = gold_file(trained[0], tmp_path / "dev.jsonl", annotators)
    assert run(trained, "natural-questions", "--out", tmp_path, "--gold", gold) == 0
    (entries,) = read(tmp_path, "predictions.json").values()
    assert [entry["example_id"] for entry in entries] == list(range(20))
    scores = read(tmp_path, "scores.json")
    assert scores["long-answer-n"] == 20
    assert "1 of the 21 questions of --gold are not in the split" in caplog.text
    assert scores["long-best-threshold-f1"] == scores["short-best-threshold-f1"] == 1
    # where nothing is answered, something is predicted, with a lower score
    assert scores["long-answer-precision"] == 18 / 20
    capsys.readouterr()
    assert run(trained, "natural-questions", "--out", tmp_path) == 0
    assert "no scores: no --gold" in capsys.readouterr().out
    assert read(tmp_path, "scores.json").keys() == {"read"}
    gold.write_text("".join(gold.read_text().splitlines(keepends=True)[3:]))
    assert run(trained, "natural-questions", "--gold", gold) == 1
    assert "question 0 is not there; allowed: the files" in capsys.readouterr().err


def test_answers_that_are_kept_secret(trained, tmp_path, capsys):
    assert run(trained, "squad1", "--out", tmp_path, "--split", "test", "--breakdown") == 0
    assert len(read(tmp_path, "predictions.json")) == 20
    printed = capsys.readouterr().out
    assert "no scores: the answers are secret" in printed
    assert "by question word" not in printed


def test_other_lengths(trained, tmp_path):
    lengths = ("--max-answer-length", 1, "--max-positions-inference", 12)
    assert run(trained, "squad2", "--out", tmp_path, *lengths) == 0
    data = QAData(trained[0], "valid")
    for number, text in enumerate(read(tmp_path, "predictions.json").values()):
        # <s>, a title and words, of which an answer is one
        words = [
            word for p in data.texts(number)["paragraphs"] for word in ("", "", *p[1].split())
        ]
        assert text in ["yes", "no", *words[2:12]]


def test_several_readers_answer_as_one(answered, tmp_path, capsys):
    """One twice answers as alone; another's doubt counts; they are of one kind."""
    alone, twice, both = (tmp_path / name for name in ("alone", "twice", "both"))
    other = shutil.copy(answered[1], tmp_path / "other.pt")
    state = torch.load(other, weights_only=False)
    state["model"]["heads.span.weight"] *= 0.1
    torch.save(state, other)
    assert run(answered, "text", "--out", alone) == 0
    assert run(answered, "text", "--checkpoint", answered[1], "--out", twice) == 0
    assert run(answered, "text", "--checkpoint", other, "--out", both) == 0
    assert read(alone, "predictions.json") == read(twice, "predictions.json")
    nll = [read(folder, "scores.json")["nll"] for folder in (alone, twice, both)]
    assert nll[0] == pytest.approx(nll[1], abs=1e-5)
    assert abs(nll[2] - nll[0]) > 0.01
    state["cfg"]["model"]["shared_softmax"] = True
    torch.save(state, other)
    capsys.readouterr()
    assert run(answered, "text", "--checkpoint", other) == 1
    message = f"--checkpoint is {other}; allowed: readers of one kind, dictionary and structure"
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("corpus", "options", "message"),
    [
        ("squad1", ("--split", "dev"), "--split is dev: "),
        ("natural-questions", ("--breakdown",), "--breakdown is given: the data are natural-"),
        ("squad1", ("--gold", "x"), "--gold is given: the data are squad1; allowed: for natural"),
        ("natural-questions", ("--gold", "no.jsonl"), "--gold is no.jsonl: no such file"),
        ("natural-questions", ("--gold", __file__), "test_evaluate_qa.py: line "),
        ("squad1", ("--max-positions-inference", 1), "--max-positions-inference is 1; allowed"),
    ],
)
def test_mistakes(corpus, options, message, trained, tmp_path, capsys):
    assert run(trained, corpus, *options, "--out", tmp_path / "out") == 1
    assert not (tmp_path / "out").exists()
    told = capsys.readouterr().err.strip().splitlines()
    assert message in told[-1]
    assert "allowed" in told[-1]
