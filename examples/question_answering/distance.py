"""Questions that take two facts, which stand 500 to 8,000 tokens apart in real passages.

A document says where several people went ("Sullivan went to Denmark.") and, many tokens before or
after, "Sullivan won." The question is where the winner went.

    python -m examples.question_answering.distance make DEST --passages FILE...
    clusterformer prepare qa text DEST DATA --sentencepiece-model DEST/sentencepiece.model
    python -m scripts.experiments.run GRID.yaml --data DATA --out RESULTS.jsonl
    python -m examples.question_answering.distance score CHECKPOINT --data DATA

`make` writes the questions of train, valid and test, with the sentences that support the answers,
and the model of the subwords that tokens are counted in. A question's id is the distance that was
asked for, the true one and a number, as in 4000-4013-27. In the order of their lengths (fairseq's
--curriculum 1 --no-shuffle), the training documents are a lesson plan.
"""

import json
import random
import re
import statistics
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import accumulate

from fairseq_clusterformer.cli.common import Parser
from fairseq_clusterformer.cli.main import program
from fairseq_clusterformer.corpora.files import raw_lines
from fairseq_clusterformer.errors import UserError, bad_option
from fairseq_clusterformer.outputs import whole_folder, write_aside

NAME = "python -m examples.question_answering.distance"
DISTANCES = (500, 1000, 2000, 4000, 8000)
#: documents of train, and the tokens between their facts
LESSONS = ((15_000, (60, 100)), (4_000, (100, 200)), (3_000, (200, 400)))
LESSONS += ((2_400, (400, 800)), (1_400, (800, 2000)))
PASSAGE_WORDS = range(30, 201)  # shorter ones are headings
MODEL_PASSAGES = 10_000  # of which the subwords are made
HELD_OUT = 0.1  # share of the passages for valid and test
LONG, SHORT = 64, 16  # tokens of a sentence, at most: SHORT in documents of two windows or so
NAMES = """Sullivan Smith Johnson Jones Jackson Brooks Russell Wilson Robinson Morris Brown Turner
Marshall Jordan Green Lincoln""".split()
PLACES = """Denmark Norway Sweden Egypt Mexico Brazil Chicago Korea Vietnam Moscow Spain Italy
Pakistan Israel Iran Wales""".split()
PEOPLE = 8  # who went somewhere; chance is one in so many
ZONE = 0.5  # people are scattered over this share of the distance

Tokens = Callable[[str], int]
Sentence = tuple[str, int]  # with its number of tokens


def make_document(
    distances: tuple[int, int], filler: Iterator[Sentence], tokens: Tokens, draw: random.Random
) -> tuple[dict, int]:
    """A question and its document, as `clusterformer prepare qa text` reads it, and the tokens
    between the two places where the winner's name stands; their number is drawn from the range of
    distances, logarithmically."""
    names, places = (draw.sample(words, PEOPLE) for words in (NAMES, PLACES))
    distance = distances[0] * (distances[1] / distances[0]) ** draw.random()
    facts = [f"{name} went to {place}." for name, place in zip(names, places, strict=True)]
    draw.randint(0, 0)  # changes nothing but the numbers drawn after it, as the results have them
    fact_at = [draw.uniform(0, ZONE * distance) for _ in facts]
    away = draw.choice([-distance, distance])  # the result comes first, or all facts
    # where it is due, in tokens; of whom; the winner is the first
    due = [*zip(fact_at, range(PEOPLE), facts, strict=True)]
    due = sorted([*due, (fact_at[0] + away, 0, f"{names[0]} won.")])
    begin = due[0][0] - draw.uniform(0, ZONE * distance)

    parts: list[Sentence] = []
    supporting: list[int] = []
    length = 0
    for at, who, text in due:
        while length < at - begin:
            parts.append(next(filler))
            length += parts[-1][1]
        if who == 0:
            supporting.append(len(parts))
        parts.append((text, tokens(text)))
        length += parts[-1][1]
    texts, sizes = zip(*parts, strict=True)
    begins = list(accumulate((len(text) + 1 for text in texts), initial=0))
    answer_at = next(begins[n] for n in supporting if texts[n] == facts[0])
    question = {
        "context": " ".join(texts),
        "sentences": [[0, at, at + len(t)] for at, t in zip(begins, texts, strict=False)],
        "supporting": supporting,
        "question": "Where did the winner go?",
        "answers": [{"text": facts[0][:-1], "answer_start": answer_at}],
    }
    return question, sum(sizes[slice(*supporting)])


def sentences(pool: list, most: int, tokens: Tokens, draw: random.Random) -> Iterator[Sentence]:
    """The sentences of up to ``most`` tokens of passages, drawn without end."""
    texts = (re.split(r"(?<=[.!?]) (?=[A-Z])", passage) for passage in pool)
    told = ([(text, n) for text in of if (n := tokens(text)) <= most] for of in texts)
    if not (kept := [of_passage for of_passage in told if of_passage]):
        raise UserError(f"--passages: no sentence of {most} tokens or fewer")
    while True:
        yield from draw.choice(kept)


def make(args: Namespace) -> None:
    from fairseq_clusterformer.corpora.binarize import train_sentencepiece
    from fairseq_clusterformer.data.subwords import MODEL, load

    with whole_folder(args.dest) as out:
        lines = (" ".join(line.decode().split()) for p in args.passages for line in raw_lines(p))
        passages = sorted({line for line in lines if line.count(" ") + 1 in PASSAGE_WORDS})
        random.Random(args.seed).shuffle(passages)
        source, words = out.with_name("passages.txt"), sorted(NAMES + PLACES)
        source.write_text("\n".join(passages[:MODEL_PASSAGES]) + "\n")
        train_sentencepiece([source], args.pieces, out / MODEL, "--pieces", words)
        model = load(out / MODEL)
        tokens = cache(lambda text: len(model.encode(text)))
        # a name stands where a fact states it, and nowhere else
        free = [p for p in passages if set(words).isdisjoint(re.findall(r"\w+", p))]
        apart = round(HELD_OUT * len(free))
        if not 0 < apart < len(free):
            allowed, problem = "enough to hold some out", f"{len(free)} without these words"
            raise bad_option("--passages", args.passages[0], allowed, problem)
        stages = {
            "train": [(max(1, round(args.scale * number)), range_) for number, range_ in LESSONS],
            "valid": [(args.questions, (500, 500))],
            "test": [(args.questions, (distance, distance)) for distance in args.distances],
        }
        for split, of_split in stages.items():
            draw, rows = random.Random(f"{args.seed} {split}"), []
            pool = free[apart:] if split == "train" else free[:apart]
            for number, distances in of_split:
                filler = sentences(pool, LONG if distances[0] >= 100 else SHORT, tokens, draw)
                for _ in range(number):
                    document, true = make_document(distances, filler, tokens, draw)
                    row = {"id": f"{distances[1]}-{true}-{len(rows)}", **document}
                    rows.append(json.dumps(row, ensure_ascii=False) + "\n")
            (out / f"{split}.jsonl").write_text("".join(rows))
            print(f"{split:5}{len(rows):>13,} questions")


def score(args: Namespace) -> None:
    """Print the percent of test's questions that are answered exactly at each distance."""
    from fairseq_clusterformer.checkpoints.load import load_checkpoint
    from fairseq_clusterformer.metrics import answers
    from fairseq_clusterformer.use.evaluate import predict

    options = {"data": args.data, "task": "clusterformer_qa", "max_positions_inference": 0}
    loaded = load_checkpoint(args.checkpoint, option="CHECKPOINT", **options)
    found = predict(loaded, "test", "squad1", batch_size=1, cpu=True)
    right: dict[str, list[float]] = {}
    for id_, text in found.texts.items():
        exact = answers.evaluate({id_: found.gold[id_]}, {id_: text})["exact_match"]
        right.setdefault(id_.split("-")[0], []).append(exact)
    scores = {distance: statistics.mean(right[distance]) for distance in sorted(right, key=int)}
    if args.json:
        write_aside(args.json, json.dumps(scores) + "\n")
    for distance, exact in scores.items():
        print(f"{int(distance):>10,} {exact:6.1f}")


def main(arguments: Sequence[str]) -> int:
    parser = Parser(prog=NAME, description=__doc__)
    commands = parser.add_subparsers(required=True)
    scoring = commands.add_parser("score", help="exact match of a reader by distance")
    scoring.set_defaults(run=score)
    scoring.add("checkpoint CHECKPOINT", "a reader's")
    scoring.add("--data FOLDER", "prepared from make's files", required=True)
    scoring.add("--json FILE", "also write the scores here")
    making = commands.add_parser("make", help="make the documents")
    making.set_defaults(run=make)
    add = making.add
    add("dest DEST", "the folder to make")
    add("--passages FILE", "text with a paragraph per line", nargs="+", required=True)
    add("--pieces N", "subwords of the model", default=4000)
    add("--distances N", "tokens between test's facts", nargs="+", default=DISTANCES)
    add("--questions N", "of test at each distance", default=100)
    add("--scale X", "times the documents of train", type=float, default=1.0)
    add("--seed N", "of everything that is drawn", default=1)
    args = parser.parse_args(arguments)
    args.run(args)
    return 0


if __name__ == "__main__":
    sys.exit(program(NAME, main, sys.argv[1:]))
