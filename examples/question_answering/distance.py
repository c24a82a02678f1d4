"""Questions that take two facts, which stand 500 to 8,000 tokens apart in real passages.

A document says where several people went ("Sullivan went to Denmark.") and, many tokens before or
after, "Sullivan won." The question is where the winner went. A reader must find both facts,
because the name that connects them is not in the question.

    python -m examples.question_answering.distance make DEST --passages FILE...
    clusterformer prepare qa text DEST DATA --sentencepiece-model DEST/sentencepiece.model
    python -m scripts.experiments.run GRID.yaml --data DATA --out RESULTS.jsonl
    python -m examples.question_answering.distance score CHECKPOINT --data DATA

`make` writes the questions of train, valid and test, with the sentences that support their answers
(for etc_reader), and the model of the subwords that tokens are counted in. A question's id is the
distance that was asked for, the true one and a number, as in 4000-4013-27. Test documents consist
of passages that no training document has. In the order of their lengths (fairseq's --curriculum 1
--no-shuffle), the training documents are a lesson plan: from facts 60 tokens apart to 2,000.

`score` prints how many questions a reader answers exactly at each distance, in percent.
"""

import json
import random
import re
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import accumulate, chain, repeat
from pathlib import Path

from fairseq_clusterformer.cli.common import Parser, add_dest, prepare_folder
from fairseq_clusterformer.cli.main import program
from fairseq_clusterformer.corpora.lines import raw_lines
from fairseq_clusterformer.errors import UserError, bad_option
from fairseq_clusterformer.outputs import make_folder, write_aside

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


def sentences(passage: str) -> list[str]:
    """Split where a capital follows the end of a sentence."""
    return re.split(r"(?<=[.!?]) (?=[A-Z])", passage)


def make_document(
    distances: tuple[int, int], filler: Iterator[Sentence], tokens: Tokens, draw: random.Random
) -> tuple[dict, int]:
    """A question and its document, as `clusterformer prepare qa text` reads it, and the tokens
    between the two places where the winner's name stands; their number is drawn from the range of
    distances, logarithmically."""
    names, places = (draw.sample(words, PEOPLE) for words in (NAMES, PLACES))
    low, high = distances
    distance = low * (high / low) ** draw.random()
    zone = ZONE * distance
    facts = [f"{name} went to {place}" for name, place in zip(names, places, strict=True)]
    draw.randint(0, 0)  # changes nothing but the numbers drawn after it, as the results have them
    fact_at = [draw.uniform(0, zone) for _ in facts]
    away = draw.choice([-distance, distance])  # the result comes first, or all facts
    # where it is due, in tokens; of whom; the winner is the first
    due = [(at, i, facts[i] + ".") for i, at in enumerate(fact_at)]
    due = sorted([*due, (fact_at[0] + away, 0, f"{names[0]} won.")])
    begin = due[0][0] - draw.uniform(0, zone)

    parts: list[str] = []
    length = answer_at = 0
    name_at: list[int] = []
    supporting: list[int] = []
    for at, i, text in due:
        while length < at - begin:
            sentence, number = next(filler)
            parts.append(sentence)
            length += number
        if i == 0:
            name_at.append(length)
            supporting.append(len(parts))
            if text.startswith(facts[0]):
                answer_at = sum(len(part) + 1 for part in parts)
        parts.append(text)
        length += tokens(text)
    begins = accumulate((len(part) + 1 for part in parts), initial=0)
    question = {
        "context": " ".join(parts),
        "sentences": [[0, at, at + len(part)] for at, part in zip(begins, parts, strict=False)],
        "supporting": supporting,
        "question": "Where did the winner go?",
        "answers": [{"text": facts[0], "answer_start": answer_at}],
    }
    return question, name_at[1] - name_at[0]


def make(*, dest: Path, passages: list[Path], **options) -> dict | None:
    """Make the documents, with the options of ``make --help``; returns the content of
    ``prepared.json``, or None if `dest` has been made before."""
    sizes = {path.name: path.stat().st_size if path.is_file() else 0 for path in passages}
    recipe = {**options, "passages": sizes, "lessons": LESSONS}
    return make_folder(dest, recipe, partial(_build, paths=passages, options=options))


def _build(work: Path, out: Path, paths: list[Path], options: dict) -> dict:
    from fairseq_clusterformer.corpora.binarize import train_sentencepiece
    from fairseq_clusterformer.data.subwords import MODEL, load

    passages = sorted({passage for path in paths for passage in read_passages(path)})
    random.Random(options["seed"]).shuffle(passages)
    source, pieces = work / "passages.txt", options["pieces"]
    source.write_text("\n".join(passages[:MODEL_PASSAGES]) + "\n")
    words = sorted(NAMES + PLACES)
    train_sentencepiece([source], pieces, out / MODEL, "--pieces", words)
    model = load(out / MODEL)
    tokens = cache(lambda text: len(model.encode(text)))
    # a name stands where a fact states it, and nowhere else
    free = [p for p in passages if set(words).isdisjoint(re.findall(r"\w+", p))]
    apart = round(HELD_OUT * len(free))
    if not 0 < apart < len(free):
        problem = f"{len(free)} passages without these words"
        raise bad_option("--passages", paths[0], "enough of them to hold some out", problem)
    scale, asked = options["scale"], options["questions"]
    splits = {
        "train": [(max(1, round(scale * number)), between) for number, between in LESSONS],
        "valid": [(asked, (500, 500))],
        "test": [(asked, (distance, distance)) for distance in options["distances"]],
    }
    for split, stages in splits.items():
        draw = random.Random(f"{options['seed']} {split}")
        pool = free[apart:] if split == "train" else free[:apart]
        splits[split] = _write(out / f"{split}.jsonl", stages, pool, tokens, draw)
    return {"splits": splits, "names": NAMES, "places": PLACES}


def read_passages(path: Path) -> Iterator[str]:
    """Yield the paragraphs of a text, each line one; it may be packed."""
    for line in raw_lines(path):
        passage = " ".join(line.decode().split())
        if passage.count(" ") + 1 in PASSAGE_WORDS:
            yield passage


def _write(
    path: Path,
    stages: Sequence[tuple[int, tuple[int, int]]],
    pool: Sequence[str],
    tokens: Tokens,
    draw: random.Random,
) -> dict[str, int]:
    lines, characters = [], 0
    split = [[(text, tokens(text)) for text in sentences(passage)] for passage in pool]
    for number, distances in stages:
        most = LONG if distances[0] >= 100 else SHORT
        kept = [[one for one in passage if one[1] <= most] for passage in split]
        if not (kept := [passage for passage in kept if passage]):
            raise UserError(f"--passages: no sentence of {most} tokens or fewer")
        filler = chain.from_iterable(draw.choice(chosen) for chosen in repeat(kept))
        for _ in range(number):
            document, apart = make_document(distances, filler, tokens, draw)
            id_ = f"{distances[1]}-{apart}-{len(lines)}"
            lines.append(json.dumps({"id": id_, **document}, ensure_ascii=False))
            characters += len(document["context"])
    path.write_text("".join(line + "\n" for line in lines))
    return {"questions": len(lines), "characters": characters}


def exact_match(checkpoint: Path, data: Path) -> dict[str, float]:
    """Percent of test's questions that are answered exactly, by the distance in their ids."""
    from fairseq_clusterformer.checkpoints.load import load_checkpoint
    from fairseq_clusterformer.metrics import answers
    from fairseq_clusterformer.use.evaluate import predict

    options = {"data": data, "task": "clusterformer_qa", "max_positions_inference": 0}
    loaded = load_checkpoint(checkpoint, option="CHECKPOINT", **options)
    found = predict(loaded, "test", "squad1", batch_size=1, cpu=True)
    right: dict[str, list[float]] = {}
    for id_, text in found.texts.items():
        score = answers.evaluate({id_: found.gold[id_]}, {id_: text})["exact_match"]
        right.setdefault(id_.split("-")[0], []).append(score)
    return {distance: statistics.mean(right[distance]) for distance in sorted(right, key=int)}


def _run(arguments: Sequence[str]) -> int:
    parser = Parser(prog=NAME, description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    scoring = commands.add_parser("score", help="exact match of a reader by distance")
    scoring.add("checkpoint CHECKPOINT", "a reader's")
    scoring.add("--data FOLDER", "prepared from make's files", required=True)
    scoring.add("--json FILE", "also write the scores here")
    making = commands.add_parser("make", help="make the documents")
    add_dest(making)
    add = making.add
    add("--passages FILE", "text with a paragraph per line", nargs="+", required=True)
    add("--pieces N", "subwords of the model", default=4000)
    add("--distances N", "tokens between test's facts", nargs="+", default=DISTANCES)
    add("--questions N", "of test at each distance", default=100)
    add("--scale X", "times the documents of train", type=float, default=1.0)
    add("--seed N", "of everything that is drawn", default=1)
    options = vars(parser.parse_args(arguments))
    if options.pop("command") == "make":
        return prepare_folder({"prepare": make, **options})
    scores = exact_match(options["checkpoint"], options["data"])
    if options["json"]:
        write_aside(options["json"], json.dumps(scores) + "\n")
    for distance, score in scores.items():
        print(f"{int(distance):>10,} {score:6.1f}")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; a user's mistake is one line on stderr and status 1."""
    return program(NAME, _run, sys.argv[1:] if arguments is None else arguments)


if __name__ == "__main__":
    sys.exit(main())
