"""Folders of 30 articles with questions: what a reader finds in them, and its calibration.

    F="python -m examples.question_answering.folders"; MORE="--encoder MINILM --index index"
    $F make DATA folders
    $F ask READER folders/valid-*.json --out valid.jsonl --passage 384 $MORE
    $F fit valid.jsonl --out calibration.json
    clusterformer bundle CHECKPOINT my-reader --calibration calibration.json
    $F ask READER folders/test-*.json --out test.jsonl --passage 384 $MORE
    $F score test.jsonl --calibration calibration.json

``make`` divides the articles of SQuAD 1.1's development set (DATA/squad/dev-v1.1.json.gz): every
fourth is for tests, every twelfth for validation. A folder is a list of 30 of them, with 60
questions, of which 15 are about articles that are missing. There are four folders of the test
articles, of which each is missing in one folder, and four of the validation articles. The other
files are articles that readers train on. ``ask`` keeps the ten best answers to each question, with
what they are ranked by; ``fit`` makes weights of these, and ``score`` applies them.

An answer is right if it is from the right file, with an F1 of 0.5 or more with a gold answer.
"""

import json
import math
import random
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.special import expit
from scipy.stats import binom

from fairseq_clusterformer.cli.common import Parser
from fairseq_clusterformer.cli.main import program
from fairseq_clusterformer.corpora.question_answering.records import json_file
from fairseq_clusterformer.documents.found import FEATURES, Weights
from fairseq_clusterformer.errors import UserError
from fairseq_clusterformer.metrics.answers import exact_match, f1

NAME = "python -m examples.question_answering.folders"
FILES, QUESTIONS, NONE, FOLDERS, KEPT = 30, 60, 15, 4, 10
#: in the place of an answer, where none was found
NOTHING = {"file": "", "right": False, "exact": 0.0, "f1": 0.0}


def part_of(number: int) -> str:
    """Which split an article of the development set is in."""
    return "test" if number % 4 == 3 else "valid" if number % 12 == 1 else "train"


def write(path: Path, record: dict) -> None:
    text = json.dumps(record, ensure_ascii=False, indent=1) + "\n"
    path.write_text(text, encoding="utf-8")


def make(args: Namespace) -> None:
    draw, content = random.Random(3), json_file(args.data / "squad" / "dev-v1.1.json.gz")
    (args.out / "articles").mkdir(parents=True)
    articles = {article["title"]: article for article in content["data"]}
    parts = {title: part_of(number) for number, title in enumerate(articles)}
    for title, article in articles.items():
        texts = [title.replace("_", " "), *(each["context"] for each in article["paragraphs"])]
        (args.out / "articles" / f"{title}.txt").write_text("\n\n".join(texts), encoding="utf-8")
    others = [title for title in articles if parts[title] == "train"]
    for part in ("valid", "test"):
        own = [title for title in articles if parts[title] == part]
        for number in range(FOLDERS):
            missing = own[number::FOLDERS]
            there = [title for title in own if title not in missing]
            titles, rows = there + draw.sample(others, FILES - len(there)), []
            for asked, most in ((there, QUESTIONS - NONE), (missing, NONE)):
                for place, title in enumerate(asked):  # as many questions of each article
                    known = [q for p in articles[title]["paragraphs"] for q in p["qas"]]
                    share = most // len(asked) + (place < most % len(asked))
                    file = f"{title}.txt" if title in there else None
                    for q in draw.sample(known, share):
                        answers = sorted({answer["text"] for answer in q["answers"]})
                        rows.append({"question": q["question"], "answers": answers, "file": file})
            record = {"documents": [f"{title}.txt" for title in titles], "questions": rows}
            write(args.out / f"{part}-{number + 1}.json", record)


def ask(args: Namespace) -> None:
    from fairseq_clusterformer.checkpoints.load import load_checkpoint
    from fairseq_clusterformer.documents.read import Reader

    more = {"index": args.index, "encoder": args.encoder, "device": "cpu"}
    reader = Reader(load_checkpoint(args.checkpoint, data=args.data), **more)
    reader.weights = Weights()
    reader.window = args.passage or reader.window
    with args.out.open("w", encoding="utf-8") as file:
        for folder in args.folders:
            record = json.loads(folder.read_text(encoding="utf-8"))
            articles = folder.parent / "articles"
            passages = reader.index([articles / name for name in record["documents"]])
            for row in (rows := record["questions"]):
                begun = time.perf_counter()
                # weak answers, too
                found = reader.ask(row["question"], passages, KEPT, least=-math.inf)
                row |= {"passage": args.passage, "seconds": time.perf_counter() - begun}
                row["found"] = []
                for each in (each for each in found if each.type == "short"):
                    kept = {"file": Path(each.file).name, "text": each.text, **each.features}
                    # by the gold answer that it is most like
                    both = ((exact_match(each.text, x), f1(each.text, x)) for x in row["answers"])
                    kept["exact"], kept["f1"] = max(both, default=(0.0, 0.0))
                    row["found"].append(kept)
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
                file.flush()
            took = sum(row["seconds"] for row in rows)
            print(f"{folder}: {len(rows)} questions, {len(passages)} passages, {took:.1f} s")


def rows_of(path: Path) -> list[dict]:
    """Questions and their answers, with whether each of these is right."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for row in rows:
        for each in row["found"]:
            each["right"] = each["file"] == row["file"] and each["f1"] >= 0.5
    return rows


def ranked(row: dict, weights: Weights) -> list[tuple[float, dict]]:
    """The answers to a question with what they are ranked by, best first."""
    of = vars(weights)
    found = [(of["bias"] + sum(of[x] * each[x] for x in FEATURES), each) for each in row["found"]]
    return sorted(found, key=lambda pair: -pair[0])


def regression(values: list[list[float]], right: list[bool]) -> np.ndarray:
    """Logistic regression: a weight for each column, and the bias."""
    from sklearn.linear_model import LogisticRegression

    spread = np.std(values, axis=0) + 1e-9
    found = LogisticRegression(tol=1e-8, max_iter=1000).fit(values / spread, right)
    return np.append(found.coef_[0] / spread, found.intercept_)


def fit(rows: list[dict]) -> Weights:
    """Weights that tell right answers from wrong ones; then, of the answer that comes first by
    them, the log-odds that it is right; a threshold of this; and the passages' length."""
    given, rows = len(rows), [row for row in rows if row["found"]]
    answers = [each for row in rows for each in row["found"]]
    right = [each["right"] for each in answers]
    if len({*right}) < 2:
        raise UserError(f"none of {given} questions got a right answer; allowed: some, and wrong")
    passages = {row["passage"] for row in rows}
    if len(passages) > 1:
        raise UserError(f"passages of {sorted(passages, key=str)} tokens; allowed: of one length")
    ranking = regression([[each[name] for name in FEATURES] for each in answers], right)[:-1]
    first = [ranked(row, Weights(*ranking))[0] for row in rows]
    best, right = np.array([x for x, _ in first]), np.array([y["right"] for _, y in first])
    scale, bias = regression(best[:, None], right)
    least = threshold(expit(scale * best + bias)[right])
    return Weights(*map(float, (*(scale * ranking), bias, least)), *passages)


def threshold(of_right: np.ndarray, lost: float = 0.1, confidence: float = 0.9) -> float:
    """The largest threshold that loses at most a share ``lost`` of all right answers, with this
    confidence, by a sample of their probabilities; its least value where it is too small for such
    confidence. By order statistics: more than that share lies below the j-th smallest, counted
    from 0, if at most j of a binomial's n draws do."""
    below = int(binom.ppf(1 - confidence, len(of_right), lost))
    return float(np.sort(of_right)[max(below - 1, 0)])


def score(rows: list[dict], weights: Weights) -> tuple[dict[str, float], list[tuple]]:
    """Percentages, and of five bins of the probability that is shown for a question's first answer
    the bounds, number of questions, mean of what is shown, share of right answers."""
    orders = [ranked(row, weights) or [(-700.0, NOTHING)] for row in rows]
    shown = expit([order[0][0] for order in orders])
    right = np.array([order[0][1]["right"] for order in orders])
    none = np.array([row["file"] is None for row in rows])
    both = zip(rows, orders, strict=True)
    asked = [(row["file"], order[0][1], order) for row, order in both if row["file"]]
    least = weights.threshold or 0.5
    found = {
        "right file first": [first["file"] == file for file, first, _ in asked],
        "right answer first": right[~none],
        "right answer among three": [any(x["right"] for _, x in of[:3]) for *_, of in asked],
        "exact match": [first["exact"] * first["right"] for _, first, _ in asked],
        "F1": [first["f1"] * (first["file"] == file) for file, first, _ in asked],
        "refused of those without an answer": shown[none] < least,
        "refused of the right answers": shown[right] < least,
    }
    shares = {name: 100 * float(np.mean(each)) for name, each in found.items() if len(each)}
    places = np.minimum(5 * shown, 4).astype(int)
    bins = [
        (place / 5, place / 5 + 0.2, int(own.sum()), float(shown[own].mean()), right[own].mean())
        for place in range(5)
        if (own := places == place).any()
    ]
    return shares, bins


def run_fit(args: Namespace) -> None:
    rows = rows_of(args.answers)
    write(args.out, {"weights": vars(fit(rows)), "questions": len(rows)})
    print(args.out.read_text(encoding="utf-8"), end="")


def run_score(args: Namespace) -> None:
    rows, path = rows_of(args.answers), args.calibration
    shares, bins = score(rows, Weights.from_file(path) if path else Weights())
    for name, value in shares.items():
        print(f"{value:6.1f} %  {name}")
    print(f"{np.mean([row['seconds'] for row in rows]):6.2f} s  a question, of {len(rows)}")
    print("shown       questions  mean shown  right")
    for low, high, number, mean, right in bins:
        print(f"{low:.1f} to {high:.1f} {number:10} {mean:11.2f} {right:6.2f}")


def main(arguments: Sequence[str]) -> int:
    parser = Parser(prog=NAME, description=__doc__)
    commands = parser.add_subparsers(required=True)
    for name, run in {"make": make, "ask": ask, "fit": run_fit, "score": run_score}.items():
        commands.add_parser(name).set_defaults(run=run)
    making, asking, fitting, scoring = commands.choices.values()
    making.add("data FOLDER", "with squad/")
    making.add("out OUT", "the folder to write to")
    asking.add("checkpoint READER", "a reader's checkpoint or folder")
    asking.add("folders FILE", "what make wrote", nargs="+")
    asking.add("--data FOLDER", "of the training")
    asking.add("--encoder FOLDER", "of sentences")
    asking.add("--index FOLDER", "to keep vectors in")
    asking.add("--passage N", "tokens of a passage")
    for added in (fitting, scoring):
        added.add("answers FILE", "that ask wrote")
    for added in (asking, fitting):
        added.add("--out FILE", "to write", required=True)
    scoring.add("--calibration FILE", "that fit wrote")
    args = parser.parse_args(arguments)
    args.run(args)
    return 0


if __name__ == "__main__":
    sys.exit(program(NAME, main, sys.argv[1:]))
