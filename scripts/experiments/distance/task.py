#!/usr/bin/env python3
"""Ask for what two facts decide that stand 500 to 8,000 tokens apart, of every kind of attention.

    python scripts/distance_task.py make DEST --passages FILE...
    python scripts/prepare_qa.py squad1 DATA --train DEST/train.json --valid DEST/valid.json \\
        --test DEST/test.json --sentencepiece-model DEST/sentencepiece.model
    python scripts/distance_task.py run GRID.yaml --data DATA --out RESULTS

DEST holds train, valid and test as SQuAD 1.1 has its files, and the model of the subwords that
tokens are counted in; ``distance_documents.py`` tells what the documents say. A question's id is
the distance asked for, the true one and a number, as in ``4000-4013-27``. Training documents begin
with facts 60 tokens apart, and end with 2,000; test documents are of passages that no training
document has, and who won and went where is drawn anew for each. In the order of their lengths
(fairseq's ``--curriculum 1 --no-shuffle``) training documents are a lesson plan.
"""

import json
import random
import re
import sys
from argparse import ArgumentTypeError
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import cache, partial
from itertools import count
from pathlib import Path

from fairseq_clusterformer.cli.common import Parser, fraction, prepare_folder, whole_number
from fairseq_clusterformer.corpora.folder import make_folder
from fairseq_clusterformer.corpora.language_modelling.text import read_lines
from fairseq_clusterformer.corpora.question_answering.corpora import squad
from fairseq_clusterformer.corpora.question_answering.records import Drops
from fairseq_clusterformer.errors import UserError
from scripts.experiments.distance.documents import (
    Sentence,
    Stage,
    choose_words,
    make_document,
    sentences,
)

DISTANCES = (500, 1000, 2000, 4000, 8000)
TESTED = Stage(100, distance=(500, 500))  # and other distances
STAGES = (
    Stage(15_000, distance=(60, 100)),
    Stage(4_000, distance=(100, 200)),
    Stage(3_000, distance=(200, 400)),
    Stage(2_400, distance=(400, 800)),
    Stage(1_400, distance=(800, 2000)),
)
PASSAGE_WORDS = range(30, 201)  # shorter ones are headings
MODEL_PASSAGES = 10_000  # of which the subwords are made
LONG, SHORT = 64, 16  # tokens of a sentence, at most: SHORT in documents of two windows or so


def make(*, dest: Path, **options) -> dict | None:
    """Make the documents; see ``distance_task.py make --help``.

    Returns:
        the content of ``prepared.json``, or None if `dest` has been made before.

    Raises:
        UserError: if an option or a file is not as it must be.
    """
    paths = options.pop("passages")
    recipe = {
        **options,
        "passages": {path.name: path.stat().st_size if path.is_file() else 0 for path in paths},
        "stages": [asdict(stage) for stage in (*STAGES, TESTED)],
    }
    return make_folder(dest, recipe, partial(_build, paths=paths, **options))


def _build(
    work: Path,
    out: Path,
    *,
    paths: list[Path],
    words: int,
    pieces: int,
    distances: list[int],
    questions: int,
    held_out: float,
    scale: float,
    losers: int,
    seed: int,
) -> dict:
    if words < (most := max(stage.people for stage in (*STAGES, TESTED))):
        raise UserError(f"--words is {words}; allowed: {most} or more, as many as people")
    try:
        chosen = choose_words(words)
    except ValueError as error:
        raise UserError(f"--words is {error}") from None
    passages = sorted({passage for path in paths for passage in read_passages(path)})
    random.Random(seed).shuffle(passages)
    (work / "passages.txt").write_text("\n".join(passages[:MODEL_PASSAGES]) + "\n")

    from fairseq_clusterformer.corpora.binarize import train_sentencepiece
    from fairseq_clusterformer.data.subwords import MODEL, load

    words_of_model = sorted(word for of in chosen for word in of)
    train_sentencepiece([work / "passages.txt"], pieces, out / MODEL, "--pieces", words_of_model)
    model = load(out / MODEL)
    tokens = cache(lambda text: len(model.encode(text)))
    # a name stands where a fact states it, and nowhere else
    free = [p for p in passages if set(words_of_model).isdisjoint(re.findall(r"\w+", p))]
    apart = round(held_out * len(free))
    if not 0 < apart < len(free):
        raise UserError(
            f"--passages: {len(free)} without these words; allowed: enough to hold some out"
        )
    lessons = [
        replace(stage, documents=max(1, round(scale * stage.documents)), losers=(0, losers))
        for stage in STAGES
    ]
    tested = replace(TESTED, documents=questions, losers=(losers, losers))
    asked = [replace(tested, distance=(d, d)) for d in distances]
    splits = {}
    for split, stages in (("train", lessons), ("valid", [tested]), ("test", asked)):
        draw = random.Random(f"{seed} {split}")
        pool = free[apart:] if split == "train" else free[:apart]
        fillers = [
            _filler(pool, tokens, most=LONG if stage.distance[0] >= 100 else SHORT, draw=draw)
            for stage in stages
        ]
        path = out / f"{split}.json"
        splits[split] = _write(path, stages, fillers, chosen, tokens, draw)
    return {"splits": splits, "names": chosen[0], "places": chosen[1]}


def read_passages(path: Path) -> Iterator[str]:
    """Yield the paragraphs of a file: SQuAD's JSON, or a text, each line one; packed or not.

    Raises:
        UserError: if it cannot be read or is something else.
    """
    if ".json" in path.suffixes:
        lines = (record.paragraphs[0].text for record in squad(path, Drops()))
    else:
        lines = (line.decode() for line in read_lines(path))
    for line in lines:
        passage = " ".join(line.split())
        if passage.count(" ") + 1 in PASSAGE_WORDS:
            yield passage


def _filler(pool: Sequence[str], tokens, *, most: int, draw: random.Random) -> Iterator[Sentence]:
    """The sentences of passages drawn at random, without those of more tokens than `most`.

    Raises:
        UserError: if there are none.
    """
    split = [[(text, tokens(text)) for text in sentences(passage)] for passage in pool]
    kept = [[one for one in passage if one[1] <= most] for passage in split]
    if not (kept := [passage for passage in kept if passage]):
        raise UserError(f"--passages: no sentence of {most} tokens or fewer")
    return (sentence for _ in count() for sentence in draw.choice(kept))


def _write(
    path: Path,
    stages: Sequence[Stage],
    fillers: Sequence[Iterator[Sentence]],
    words: tuple[list[str], list[str]],
    tokens,
    draw: random.Random,
) -> dict[str, int]:
    """Write a split as SQuAD's JSON, an article a document."""
    articles, characters = [], 0
    for stage, filler in zip(stages, fillers, strict=True):
        for _ in range(stage.documents):
            document, apart = make_document(stage, words, filler, tokens, draw)
            context = document.pop("context")
            question = {"id": f"{stage.distance[1]}-{apart}-{len(articles)}", **document}
            articles.append({"title": "", "paragraphs": [{"context": context, "qas": [question]}]})
            characters += len(context)
    path.write_text(json.dumps({"version": "1.1", "data": articles}, ensure_ascii=False))
    return {"questions": len(articles), "characters": characters}


def _parser() -> Parser:
    parser = Parser(prog="distance_task.py make", description=__doc__)
    add = parser.add_argument
    add("dest", metavar="DEST", type=Path, help="the folder to make")
    add(
        "--passages",
        metavar="FILE",
        type=Path,
        nargs="+",
        required=True,
        help="SQuAD's JSON, or text with a paragraph a line; .gz, .bz2 and .xz too",
    )
    count, share = {"metavar": "N", "type": whole_number}, {"metavar": "SHARE", "type": fraction}
    add("--words", **count, default=16, help="names, and places, of each (default: 16)")
    add("--pieces", **count, default=4000, help="subwords of the model (default: 4,000)")
    add(
        "--distances",
        **count,
        nargs="+",
        default=DISTANCES,
        help=f"tokens between the facts of test (default: {' '.join(map(str, DISTANCES))})",
    )
    add("--questions", **count, default=100, help="test, of each distance (default: 100)")
    add("--held-out", **share, default=0.1, help="of the passages, for valid and test")
    add("--scale", type=positive, default=1.0, help="times the documents of train (default: 1)")
    add(
        "--losers",
        metavar="N",
        type=int,
        choices=range(TESTED.people),
        default=0,
        help='people of whom "lost" is told; up to so many in train (default: 0)',
    )
    add("--seed", **count, default=1, help="of all that is drawn (default: 1)")
    return parser


def positive(text: str) -> float:
    """Return an option's value, a number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ArgumentTypeError(f"{text!r}; allowed is a number above 0")
    return value


def main(arguments: Sequence[str]) -> int:
    """Run ``distance_task.py``; a user's mistake is one line on stderr and status 1."""
    command, *rest = arguments or [""]
    if command == "make":
        parser = _parser()
        return prepare_folder({"prepare": make, **vars(parser.parse_args(rest))})
    if command == "run":
        from scripts.experiments.distance.run import main as run

        return run(rest)
    print(__doc__, file=sys.stderr if command not in ("-h", "--help") else sys.stdout)
    return 0 if command in ("-h", "--help") else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
