"""The questions that ``reader-en`` learns from and is tested on, from files in SQuAD's format.

    python -m scripts.experiments.reader_data DIR data/reader-en
    clusterformer prepare qa text data/reader-en data-bin/reader-en \\
        --tokenizer MINILM/tokenizer.json

DIR has ``squad/`` and ``qa/``. The articles of SQuAD 1.1's development set are divided: every
fourth is for tests, every twelfth for validation. Questions of SQuAD 2.0 follow their article.
Each file may have a limit, so that no kind of text outweighs the others. For a share of the
questions, the paragraph is exchanged for the one of the same article, or of another one, that
shares most words with the question and has no answer in it: these have no answer.
"""

import argparse
import gzip
import json
import lzma
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path

TRAIN = {  # file: most questions
    "squad/train-v1.1.first11articles.json": None,
    "qa/squadshifts/new_wiki_v1.0.json.xz": None,
    "qa/squadshifts/reddit_v1.0.json.xz": None,
    "qa/squadshifts/amazon_reviews_v1.0.json.xz": None,
    "qa/policyqa/dev.json.xz": None,
    "qa/qamr/qamr-dev.squad-v1.1.json.xz": 10_000,
}
DIVIDED = (
    "squad/dev-v1.1.json.gz",
    "squad/dev-v2.0.16articles.json",
    "squad/v2.0-test-half-derived.json",
)
OPENERS = {".gz": gzip.open, ".xz": lzma.open}


def read(path: Path) -> list[dict]:
    """The articles of a file."""
    with OPENERS.get(path.suffix, open)(path, "rt", encoding="utf-8") as file:
        return list(json.load(file)["data"])


def records(articles: list[dict]) -> Iterator[dict]:
    """A record for each question, in the format of ``prepare qa text``."""
    for article in articles:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                answers = question["answers"]
                if not answers and not question.get("is_impossible"):
                    continue
                yield {
                    "id": str(question["id"]),
                    "title": article.get("title", ""),
                    "question": question["question"],
                    "context": paragraph["context"],
                    "answers": [
                        {"text": a["text"], "answer_start": a["answer_start"]} for a in answers
                    ],
                }


def part_of(titles: list[str], title: str) -> str:
    """Which split an article of the development set is in."""
    number = titles.index(title)
    return "test" if number % 4 == 3 else "valid" if number % 12 == 1 else "train"


def unanswered(found: list[dict], share: float, draw: random.Random) -> Iterator[dict]:
    """Some of the questions, each with the likeliest paragraph that does not answer it."""
    by_title: dict[str, set[str]] = {}
    for record in found:
        by_title.setdefault(record["title"], set()).add(record["context"])
    words = {text: words_of(text) for texts in by_title.values() for text in texts}
    contexts = sorted(words)
    for record in found:
        if not record["answers"] or draw.random() >= share:
            continue
        asked = words_of(record["question"])
        own = sorted(by_title[record["title"]] - {record["context"]})
        others = draw.sample(own, min(len(own), 40)) or draw.sample(contexts, 40)
        texts = [a["text"].lower() for a in record["answers"]]
        others = [o for o in others if not any(text in o.lower() for text in texts)]
        if others:
            best = max(others, key=lambda text: len(asked & words[text]))
            yield record | {"id": record["id"] + "-none", "context": best, "answers": []}


def words_of(text: str) -> set[str]:
    """Words of more than three letters."""
    return set(re.findall(r"\w{4,}", text.lower()))


def main(argv: list[str] | None = None) -> int:
    """Write train.jsonl, valid.jsonl and test.jsonl, and say how many questions each has."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.experiments.reader_data",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("dir", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--none", type=float, default=0.2, help="share asked without an answer")
    args = parser.parse_args(argv)
    draw = random.Random(1)
    splits: dict[str, list[dict]] = {"train": [], "valid": [], "test": []}
    titles = [article["title"] for article in read(args.dir / DIVIDED[0])]
    for name in DIVIDED:
        for article in read(args.dir / name):
            split = part_of(titles, article["title"])
            # answerable ones of 2.0 are those of 1.1
            more = [r for r in records([article]) if name == DIVIDED[0] or not r["answers"]]
            splits[split] += more
    for name, most in TRAIN.items():
        found = list(records(read(args.dir / name)))
        splits["train"] += found if most is None else draw.sample(found, most)
    splits["train"] += list(unanswered(splits["train"], args.none, draw))
    args.out.mkdir(parents=True)
    for split, found in splits.items():
        lines = (json.dumps(record, ensure_ascii=False) for record in found)
        (args.out / f"{split}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        none = sum(not record["answers"] for record in found)
        print(f"{split}: {len(found):,} questions, {none:,} without an answer")
    return 0


if __name__ == "__main__":
    sys.exit(main())
