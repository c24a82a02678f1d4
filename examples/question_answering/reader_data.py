"""The questions that ``reader-en`` learns from and is tested on, from files in SQuAD's format.

    python -m examples.question_answering.reader_data DIR data/reader-en
    python -m examples.question_answering.reader_data DIR data/reader-en-long --long
    clusterformer prepare qa text data/reader-en data-bin/reader-en \\
        --tokenizer MINILM/tokenizer.json

DIR has ``squad/``, ``qa/`` and ``longqa/``. The articles of SQuAD 1.1's development set are
divided: every fourth is for tests, every twelfth for validation. Questions of SQuAD 2.0 follow
their article. Each file may have a limit, so that no kind of text outweighs the others. For a
share of the questions, the paragraph is exchanged for the one of the same article, or of another
one, that shares most words with the question and has no answer in it: these have no answer. With
``--again``, the data of a second pass: the questions without an answer that people wrote, which
mislead and are few, come twice, and most of the others are of Wikipedia.

With ``--long``, a document is a run of paragraphs of an article: 4 to 14 in training, 12 else. So
are the parts of FairytaleQA's stories. A question of QED has seven other questions' paragraphs
around its own. For a share of the training questions, paragraphs with an answer are left out.
"""

import json
import random
import re
import sys
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path

from fairseq_clusterformer.cli.common import Parser
from fairseq_clusterformer.cli.main import program
from fairseq_clusterformer.corpora.question_answering.records import json_file

NAME = "python -m examples.question_answering.reader_data"
#: file: most questions, and of the second pass
TRAIN = {
    "squad/train-v1.1.first11articles.json": (None, None),
    "qa/squadshifts/new_wiki_v1.0.json.xz": (None, None),
    "qa/squadshifts/reddit_v1.0.json.xz": (None, 5_000),
    "qa/squadshifts/amazon_reviews_v1.0.json.xz": (None, 5_000),
    "qa/policyqa/dev.json.xz": (None, 2_000),
    "qa/qamr/qamr-dev.squad-v1.1.json.xz": (10_000, 3_000),
}
DIVIDED = ("dev-v1.1.json.gz", "dev-v2.0.16articles.json", "v2.0-test-half-derived.json")
DIVIDED = tuple(f"squad/{name}" for name in DIVIDED)
STORIES = "qa/fairytaleqa/fairytaleqa-train.squad-v1.1.json.xz"
QED = "longqa/qed-dev.first1000.jsonlines"
QED_TRAIN = 800  # the others are for tests
LONG, LONG_TEST = 20_000, 600  # questions over many paragraphs


def records(articles: list[dict]) -> Iterator[dict]:
    """A record for each question, in the format of ``prepare qa text``."""
    for article in articles:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                answers = [
                    {k: a[k] for k in ("text", "answer_start")} for a in question["answers"]
                ]
                if answers or question.get("is_impossible"):
                    record = {"id": str(question["id"]), "title": article.get("title", "")}
                    record |= {"question": question["question"], "context": paragraph["context"]}
                    yield record | {"answers": answers}


def part_of(titles: list[str], title: str) -> str:
    """Which split an article of the development set is in."""
    number = titles.index(title)
    return "test" if number % 4 == 3 else "valid" if number % 12 == 1 else "train"


def lacks(text: str, answers: list[dict]) -> bool:
    return not any(answer["text"].lower() in text.lower() for answer in answers)


def words_of(text: str) -> set[str]:
    return set(re.findall(r"\w{4,}", text.lower()))


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
        if others := [other for other in others if lacks(other, record["answers"])]:
            best = max(others, key=lambda text: len(asked & words[text]))
            yield record | {"id": record["id"] + "-none", "context": best, "answers": []}


def of_run(record: dict, texts: list[str], own: int, length: int, draw: random.Random) -> dict:
    """A question over a run of paragraphs, which its own is among."""
    first = draw.randint(max(0, own - length + 1), own)
    first = max(0, min(first, len(texts) - length))
    answers = [a | {"paragraph": own - first} for a in record["answers"]]
    rest = {name: record[name] for name in ("id", "title", "question")}
    return rest | {"paragraphs": texts[first : first + length], "answers": answers}


def runs(articles: list[dict], lengths: tuple[int, int], draw: random.Random) -> Iterator[dict]:
    """Each question of articles over a run of their paragraphs."""
    for article in articles:
        texts = [paragraph["context"] for paragraph in article["paragraphs"]]
        for own, paragraph in enumerate(article["paragraphs"]):
            for record in records([article | {"paragraphs": [paragraph]}]):
                yield of_run(record, texts, own, draw.randint(*lengths), draw)


def stories(articles: list[dict], draw: random.Random) -> Iterator[dict]:
    """Each question of stories, whose sections are lines, over a run of 4 to 14 sections."""
    for record in records(articles):
        texts, inside = record["context"].split("\n"), []
        starts = list(accumulate((len(text) + 1 for text in texts), initial=0))
        places = [bisect_right(starts, answer["answer_start"]) - 1 for answer in record["answers"]]
        for place, answer in zip(places, record["answers"], strict=True):
            if place == places[0]:
                inside.append(answer | {"answer_start": answer["answer_start"] - starts[place]})
        yield of_run(record | {"answers": inside}, texts, places[0], draw.randint(4, 14), draw)


def natural_questions(path: Path, draw: random.Random) -> Iterator[dict]:
    """QED's training questions, each with the paragraphs of seven others of them."""
    lines = path.read_text(encoding="utf-8").splitlines()[:QED_TRAIN]
    found = [json.loads(line) for line in lines]
    texts = list(dict.fromkeys(item["paragraph_text"] for item in found))
    for item in found:
        own = item["paragraph_text"]
        paragraphs = draw.sample([text for text in texts if text != own], 7)
        place = draw.randint(0, 7)
        paragraphs.insert(place, own)
        answers = [
            {"text": part["string"], "answer_start": part["start"], "paragraph": place}
            for part, *more in item["original_nq_answers"]
            if not more
        ]
        if answers:
            named = {"id": str(item["example_id"]), "title": "", "question": item["question_text"]}
            yield named | {"paragraphs": paragraphs, "answers": answers}


def without_answers(record: dict) -> dict:
    """A question with its document, but for all paragraphs that have an answer's text."""
    kept = [text for text in record["paragraphs"] if lacks(text, record["answers"])]
    if not record["answers"] or not kept:
        return record
    return record | {"id": record["id"] + "-none", "paragraphs": kept, "answers": []}


def splits_of(
    folder: Path, share: float, draw: random.Random, *, long: bool, again: bool
) -> dict[str, list[dict]]:
    """The questions of each split; a ``share`` of train's also without an answer."""

    def read(name: str) -> list[dict]:
        return json_file(folder / name)["data"]

    splits: dict[str, list[dict]] = {"train": [], "valid": [], "test": []}
    train, divided = splits["train"], read(DIVIDED[0])
    titles = [article["title"] for article in divided]
    if long:
        for article in divided:
            split = part_of(titles, article["title"])
            splits[split] += runs([article], (4, 14) if split == "train" else (12, 12), draw)
        for name in TRAIN:
            if "squad" in name:
                train += runs(read(name), (4, 14), draw)
        train += stories(read(STORIES), draw)
        train += natural_questions(folder / QED, draw)
        drawn = draw.sample(train, min(LONG, len(train)))
        splits["train"] = [without_answers(r) if draw.random() < share else r for r in drawn]
        splits["test"] = draw.sample(splits["test"], min(LONG_TEST, len(splits["test"])))
        return splits
    for name in DIVIDED:
        for article in read(name):
            # answerable ones of 2.0 are those of 1.1
            more = [r for r in records([article]) if name == DIVIDED[0] or not r["answers"]]
            splits[part_of(titles, article["title"])] += more
    if again:
        written = [record for record in train if not record["answers"]]
        train += [record | {"id": record["id"] + "-again"} for record in written]
    for name, limits in TRAIN.items():
        found, most = list(records(read(name))), limits[again]
        train += found if most is None else draw.sample(found, most)
    train += list(unanswered(train, share, draw))
    return splits


def main(arguments: Sequence[str]) -> int:
    """Write train.jsonl, valid.jsonl and test.jsonl, and say how many questions each has."""
    parser = Parser(prog=NAME, description=__doc__)
    parser.add("dir DIR", "of the files")
    parser.add("out OUT", "the folder to make")
    kinds = parser.add_mutually_exclusive_group()
    Parser.add(kinds, "--long", "many paragraphs a document")
    Parser.add(kinds, "--again", "the data of a second pass")
    parser.add("--none X", "share asked without an answer", type=float, default=0.2)
    args = parser.parse_args(arguments)
    how = {"long": args.long, "again": args.again}
    splits = splits_of(args.dir, args.none, random.Random(1), **how)
    args.out.mkdir(parents=True)
    for split, found in splits.items():
        lines = (json.dumps(record, ensure_ascii=False) for record in found)
        (args.out / f"{split}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        none = sum(not record["answers"] for record in found)
        print(f"{split}: {len(found):,} questions, {none:,} without an answer")
    return 0


if __name__ == "__main__":
    sys.exit(program(NAME, main, sys.argv[1:]))
