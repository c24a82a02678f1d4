"""Folders of 30 articles with questions: what a reader finds in them, and its calibration.

    F="python -m examples.question_answering.folders"; MORE="--encoder MINILM --index index"
    $F make DATA folders
    $F ask CHECKPOINT folders/valid-*.json --out valid.jsonl --passage 384 $MORE
    $F fit valid.jsonl --out calibration.json
    clusterformer bundle CHECKPOINT my-reader --calibration calibration.json
    $F ask CHECKPOINT folders/test-*.json --out test.jsonl --passage 384 $MORE
    $F score test.jsonl --calibration calibration.json
    $F whole data/reader-en-long/test.jsonl folders --limit 300
    $F ask CHECKPOINT folders/whole-*.json --out whole.jsonl --passage 384

``make`` divides the articles of SQuAD 1.1's development set (DATA/squad) as ``reader_data`` does,
and writes each to a file of its own. A folder is a list of 30 of them, with 60 questions, of which
15 are about articles that are missing. There are four folders of the test articles, of which each
is missing in one folder, and four of the validation articles. The other files are articles that
readers train on. ``whole`` writes a folder of one article for each that the questions of
``reader_data --long`` are about, ``runs`` one of the paragraphs of each question. ``ask`` keeps
the ten best answers to each question (``--limit``: of so many of a folder), with what they are
ranked by; an index keeps the vectors of articles that several folders have. ``fit`` makes weights
of these, and ``score`` applies them.

An answer is right if it is from the right file, and F1 with one of the gold answers is at least
0.5. Unlike a user, ``score`` sees only the ten answers that are best by the default weights.
"""

import json
import math
import random
import sys
import time
from argparse import Namespace
from pathlib import Path

import numpy as np
from scipy.stats import binom

from examples.question_answering.reader_data import DIVIDED, part_of, read
from fairseq_clusterformer.cli.common import Parser
from fairseq_clusterformer.documents.found import FEATURES, Weights
from fairseq_clusterformer.metrics.answers import exact_match, f1

FILES, QUESTIONS, NONE, FOLDERS, KEPT = 30, 60, 15, 4, 10


def make(data: Path, out: Path) -> None:
    """Write four folders of validation articles and four of test articles."""
    draw = random.Random(3)
    (out / "articles").mkdir(parents=True)
    articles = {article["title"]: article for article in read(data / DIVIDED[0])}
    parts = {title: part_of([*articles], title) for title in articles}
    for title, article in articles.items():
        texts = [title.replace("_", " "), *(each["context"] for each in article["paragraphs"])]
        (out / "articles" / f"{title}.txt").write_text("\n\n".join(texts), encoding="utf-8")
    others = [title for title in articles if parts[title] == "train"]
    for part in ("valid", "test"):
        own = [title for title in articles if parts[title] == part]
        for number in range(FOLDERS):
            missing = own[number::FOLDERS]
            there = [title for title in own if title not in missing]
            titles = there + draw.sample(others, FILES - len(there))
            asked = [(there, QUESTIONS - NONE), (missing, NONE)]
            rows = [row for titles, most in asked for row in _draw(articles, titles, most, draw)]
            for row in rows:
                row["file"] = f"{row['file']}.txt" if row["file"] in there else None
            record = {"documents": [f"{title}.txt" for title in titles], "questions": rows}
            _write(out / f"{part}-{number + 1}.json", record)


def alone(test: Path, out: Path, most: int | None, *, runs: bool) -> None:
    """Write a folder of one file for each article that the first questions of a test are about; of
    ``runs``, for each question, of whose paragraphs an article is made."""
    asked: dict[str, list[dict]] = {}
    for line in test.read_text(encoding="utf-8").splitlines()[:most]:
        record = json.loads(line)
        name = f"run-{record['id']}" if runs else record["title"]
        texts = sorted({answer["text"] for answer in record["answers"]})
        row = {"question": record["question"], "answers": texts, "file": f"{name}.txt"}
        asked.setdefault(name, []).append(row)
        if runs:
            path = out / "articles" / f"{name}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n\n".join(record["paragraphs"]), encoding="utf-8")
    for name, rows in asked.items():
        record = {"documents": [f"{name}.txt"], "questions": rows}
        _write(out / f"{'' if runs else 'whole-'}{name}.json", record)


def _write(path: Path, record: dict) -> None:
    text = json.dumps(record, ensure_ascii=False, indent=1) + "\n"
    path.write_text(text, encoding="utf-8")


def _draw(articles: dict, titles: list[str], most: int, draw: random.Random) -> list[dict]:
    """As many questions of each article."""
    found = []
    for place, title in enumerate(titles):
        own = [q for p in articles[title]["paragraphs"] for q in p["qas"]]
        number = most // len(titles) + (place < most % len(titles))
        for question in draw.sample(own, number):
            texts = sorted({answer["text"] for answer in question["answers"]})
            found.append({"question": question["question"], "answers": texts, "file": title})
    return found


def ask(args: Namespace) -> None:
    """Keep the best answers to each question of some folders."""
    from fairseq_clusterformer.checkpoints.load import load_checkpoint
    from fairseq_clusterformer.documents.read import Reader

    more = {"index": args.index, "encoder": args.encoder, "device": "cpu", "dtype": args.dtype}
    reader = Reader(load_checkpoint(args.checkpoint, data=args.data), **more)
    reader.weights = Weights()
    reader.window = args.passage or reader.window
    with args.out.open("w", encoding="utf-8") as file:
        for folder in args.folders:
            record = json.loads(folder.read_text(encoding="utf-8"))
            begun = time.perf_counter()
            articles = folder.parent / "articles"
            passages = reader.index([articles / name for name in record["documents"]])
            took = time.perf_counter() - begun
            print(f"{folder}: {len(passages)} passages in {took:.1f} s", flush=True)
            rows = spread(record["questions"], args.limit)
            for row in rows:
                begun = time.perf_counter()
                how = {"windows": args.windows, "least": -math.inf}  # weak answers, too
                found = reader.ask(row["question"], passages, KEPT, **how)
                row["passage"] = args.passage
                row["seconds"] = time.perf_counter() - begun
                row["found"] = [
                    {"file": Path(each.file).name, "text": each.text, **each.features}
                    | scores(each.text, row["answers"])
                    for each in found
                    if each.type == "short"
                ]
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
                file.flush()
            took = sum(row["seconds"] for row in rows)
            print(f"{folder}: {len(rows)} questions in {took:.1f} s", flush=True)


def spread(rows: list[dict], most: int | None) -> list[dict]:
    """At most so many of a list, from all of it: questions without an answer are its last."""
    most = len(rows) if most is None else min(most, len(rows))
    return [rows[(2 * i + 1) * len(rows) // (2 * most)] for i in range(most)]


def scores(text: str, answers: list[str]) -> dict[str, float]:
    """Of an answer, against the gold answer that it is most like."""
    pairs = [(exact_match(text, gold), f1(text, gold)) for gold in answers]
    exact, most = max(pairs, default=(0.0, 0.0))
    return {"exact": exact, "f1": most}


def rows_of(path: Path) -> list[dict]:
    """Questions and their answers, with whether each of these is right."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for row in rows:
        for each in row["found"]:
            each["right"] = each["file"] == row["file"] and each["f1"] >= 0.5
    return rows


#: in the place of an answer, where none was found
NOTHING = {"file": "", "right": False, "exact": 0.0, "f1": 0.0}


def sums(row: dict, weights: Weights) -> np.ndarray:
    """What each answer to a question is ranked by."""
    values = [[each[name] for name in FEATURES] for each in row["found"]]
    own = [getattr(weights, name) for name in FEATURES]
    return np.array(values).reshape(-1, len(own)) @ own + weights.bias


def regression(values: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Logistic regression by Newton's steps: a weight for each column, and the bias."""
    spread = values.std(0) + 1e-9
    x = np.column_stack([values / spread, np.ones(len(values))])
    penalty = np.diag([1.0] * values.shape[1] + [1e-3])
    found = np.zeros(x.shape[1])
    for _ in range(50):
        p = 1 / (1 + np.exp(-np.clip(x @ found, -30, 30)))
        slope = x.T @ (p - right) + penalty @ found
        found -= np.linalg.solve((x.T * (p * (1 - p))) @ x + penalty, slope)
    return found / np.append(spread, 1)


def fit(rows: list[dict]) -> Weights:
    """Weights that tell right answers from wrong ones; then, of the answer that comes first by
    them, the log-odds that it is right; a threshold of this; and the passages' length."""
    given, rows = len(rows), [row for row in rows if row["found"]]
    answers = [each for row in rows for each in row["found"]]
    values = np.array([[each[name] for name in FEATURES] for each in answers])
    ranking = regression(values, np.array([each["right"] for each in answers], float))
    weights = Weights(*ranking[:-1])
    best = np.array([sums(row, weights).max() for row in rows])
    right = np.array([ordered(row, weights)[0]["right"] for row in rows])
    if not right.any():
        raise SystemExit(f"none of {given} questions got a right answer; allowed: some")
    scale, bias = regression(best[:, None], right.astype(float))
    probability = 1 / (1 + np.exp(-(scale * best + bias)))
    least = threshold(probability[right])
    passages = {row["passage"] for row in rows}
    if len(passages) > 1:
        raise SystemExit(f"passages of {sorted(passages, key=str)} tokens; allowed: of one length")
    return Weights(*map(float, (*(scale * ranking[:-1]), bias, least)), *passages)


def threshold(of_right: np.ndarray, lost: float = 0.1, confidence: float = 0.9) -> float:
    """The largest threshold that loses at most a share ``lost`` of all right answers, with this
    confidence. ``of_right`` is a sample of their probabilities, one or more. A sample that is too
    small for such confidence has its least value as the threshold.

    By order statistics: more than that share lies below the j-th smallest, counted from 0, if at
    most j of a binomial's n draws do. Questions must be independent, which those of one folder are
    not quite.
    """
    number = len(of_right)
    chances = binom.cdf(np.arange(number), number, lost)
    below = int(np.searchsorted(chances, 1 - confidence, side="right"))
    return float(np.sort(of_right)[max(below - 1, 0)])


def ordered(row: dict, weights: Weights) -> list[dict]:
    """The answers to a question, best first."""
    return [row["found"][place] for place in np.argsort(-sums(row, weights), kind="stable")]


def score(rows: list[dict], weights: Weights) -> tuple[dict[str, float], list[tuple]]:
    """Percentages, and of five bins of the probability that is shown for a question's first answer
    the bounds, number of questions, mean of what is shown, share of right answers.

    Where there is an answer: the right file first, the right answer first or among three. Where
    there is none: refused by a threshold, beside the right answers that are lost by it; once by
    that of the calibration, once by the largest that loses a tenth of these right answers.
    """
    orders = [ordered(row, weights) or [NOTHING] for row in rows]
    shown = 1 / (1 + np.exp([-sums(row, weights).max(initial=-700) for row in rows]))
    right = np.array([order[0]["right"] for order in orders])
    none = np.array([row["file"] is None for row in rows])
    asked = [(row["file"], order) for row, order in zip(rows, orders, strict=True) if row["file"]]
    found = {
        "right file first": [order[0]["file"] == file for file, order in asked],
        "right answer first": right[~none],
        "right answer among three": [any(e["right"] for e in order[:3]) for _, order in asked],
        "exact match": [order[0]["exact"] * order[0]["right"] for _, order in asked],
        "F1": [order[0]["f1"] * (order[0]["file"] == file) for file, order in asked],
    }
    # the tenth percentile, rounded down to one of these numbers
    tenth = float(np.quantile(shown[right], 0.1, method="lower")) if right.any() else 1.0
    thresholds = {"calibrated": weights.threshold or 0.5, "a tenth lost": tenth}
    for name, least in thresholds.items():
        found[f"{name}: refused of those without an answer"] = shown[none] < least
        found[f"{name}: refused of the right answers"] = shown[right] < least
    shares = {name: 100 * float(np.mean(each)) for name, each in found.items() if len(each)}
    shares |= {f"{name}: threshold": 100 * least for name, least in thresholds.items()}
    places = np.minimum(5 * shown, 4).astype(int)
    bins = [
        (place / 5, place / 5 + 0.2, int(own.sum()), float(shown[own].mean()), right[own].mean())
        for place in range(5)
        if (own := places == place).any()
    ]
    return shares, bins


def main(argv: list[str] | None = None) -> int:
    """Make folders of many articles or of one, ask, fit or score."""
    parser = Parser(prog="python -m examples.question_answering.folders", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    names = ("make", "whole", "runs", "ask", "fit", "score")
    made, whole, run, asked, fitted, scored = map(commands.add_parser, names)
    made.add("data FOLDER", "with squad/")
    for command in (whole, run):
        command.add("test FILE", "of reader_data --long")
    for command in (made, whole, run):
        command.add("out OUT", "the folder to write to")
    asked.add("checkpoint CHECKPOINT", "a reader's", type=str)
    asked.add("folders FILE", "what make, whole and runs wrote", nargs="+")
    asked.add("--dtype NAME", "of the weights", default="float32")
    asked.add("--data FOLDER", "of the training")
    asked.add("--encoder FOLDER", "of sentences")
    asked.add("--index FOLDER", "to keep vectors in")
    asked.add("--windows N", "of the reader")
    asked.add("--passage N", "tokens of a passage")
    for command in (whole, run, asked):
        command.add("--limit N", "questions")
    for command in (fitted, scored):
        command.add("answers FILE", "that ask wrote")
    for command in (asked, fitted):
        command.add("--out FILE", "to write", required=True)
    scored.add("--calibration FILE", "that fit wrote")
    args = parser.parse_args(argv)
    if args.command == "make":
        make(args.data, args.out)
    elif args.command in ("whole", "runs"):
        alone(args.test, args.out, args.limit, runs=args.command == "runs")
    elif args.command == "ask":
        ask(args)
    elif args.command == "fit":
        rows = rows_of(args.answers)
        record = {"weights": vars(fit(rows)), "questions": len(rows)}
        args.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        print(args.out.read_text(encoding="utf-8"), end="")
    else:
        rows, path = rows_of(args.answers), args.calibration
        shares, bins = score(rows, Weights.from_file(path) if path else Weights())
        for name, value in shares.items():
            print(f"{value:6.1f} %  {name}")
        print(f"{np.mean([row['seconds'] for row in rows]):6.2f} s  a question, of {len(rows)}")
        print("shown       questions  mean shown  right")
        for low, high, number, mean, right in bins:
            print(f"{low:.1f} to {high:.1f} {number:10} {mean:11.2f} {right:6.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
