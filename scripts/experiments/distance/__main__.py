"""Questions that take two facts, which stand 500 to 8,000 tokens apart.

    python -m scripts.experiments.distance make DEST --passages FILE...
    clusterformer prepare qa squad1 DATA --train DEST/train.json --valid DEST/valid.json \\
        --test DEST/test.json --sentencepiece-model DEST/sentencepiece.model
    python -m scripts.experiments.run GRID.yaml --data DATA --out RESULTS
    python -m scripts.experiments.distance score CHECKPOINT --data DATA

`make` writes train, valid and test as SQuAD 1.1 has its files, and the model of the subwords that
tokens are counted in; documents.py explains what the documents say. A question's id is the
distance that was asked for, the true one and a number, as in 4000-4013-27. Training documents
begin with facts 60 tokens apart, and end with 2,000. Test documents consist of passages that no
training document has, and who won and went where is drawn anew for each. In the order of their
lengths (fairseq's --curriculum 1 --no-shuffle) the training documents are a lesson plan.

`score` prints how many questions a reader answers exactly at each distance, in percent.
"""

import json
import random
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import cache, partial
from itertools import count
from pathlib import Path

from fairseq_clusterformer.cli.common import (
    Parser,
    add_dest,
    prepare_folder,
    whole_number,
)
from fairseq_clusterformer.corpora.folder import make_folder
from fairseq_clusterformer.corpora.lines import raw_lines
from fairseq_clusterformer.corpora.question_answering.corpora import squad
from fairseq_clusterformer.corpora.question_answering.records import Drops
from fairseq_clusterformer.errors import UserError, bad_option, write_aside
from scripts.experiments.distance.documents import (
    NAMES,
    PLACES,
    Sentence,
    Stage,
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
WORDS = 16  # names, and places
HELD_OUT = 0.1  # share of the passages for valid and test
LONG, SHORT = 64, 16  # tokens of a sentence, at most: SHORT in documents of two windows or so


def make(*, dest: Path, **options) -> dict | None:
    """Make the documents, with the options of ``make --help``.

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
    pieces: int,
    distances: list[int],
    questions: int,
    scale: float,
    seed: int,
) -> dict:
    chosen = NAMES[:WORDS], PLACES[:WORDS]
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
    apart = round(HELD_OUT * len(free))
    if not 0 < apart < len(free):
        problem = f"{len(free)} passages without these words"
        raise bad_option("--passages", paths[0], "enough of them to hold some out", problem)
    lessons = [replace(s, documents=max(1, round(scale * s.documents))) for s in STAGES]
    tested = replace(TESTED, documents=questions)
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
        lines = (line.decode() for line in raw_lines(path))
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


def exact_match(checkpoint: Path, data: Path, split: str = "test") -> dict[str, float]:
    """Percent of the questions that are answered as SQuAD asks, by the distance in their ids."""
    import torch

    from fairseq_clusterformer.answers import ranked_answers
    from fairseq_clusterformer.inference.load import load_checkpoint
    from fairseq_clusterformer.metrics.squad import evaluate_v2

    options = {"data": data, "task": "clusterformer_qa", "max_positions_inference": 0}
    loaded = load_checkpoint(checkpoint, option="CHECKPOINT", **options)
    dataset = loaded.task.load_dataset(split)
    right: dict[str, list[float]] = defaultdict(list)
    with torch.no_grad():
        for number in range(len(dataset)):
            sample = dataset.collater([dataset[number]])
            logits, _ = loaded.model(**sample["net_input"])
            (answers,) = ranked_answers(logits, [dataset.data.document(number)])
            texts = dataset.data.texts(number)
            score = evaluate_v2({0: texts["texts"]}, {0: answers.text})["exact"]
            right[texts["id"].split("-")[0]].append(score)
    return {
        distance: sum(right[distance]) / len(right[distance])
        for distance in sorted(right, key=int)
    }


def _parser() -> Parser:
    parser = Parser(prog="python -m scripts.experiments.distance", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    scoring = commands.add_parser("score", help="exact match of a reader by distance")
    scoring.add_argument("checkpoint", metavar="CHECKPOINT", type=Path)
    scoring.add_argument("--data", type=Path, required=True, help="prepared from make's files")
    scoring.add_argument("--json", type=Path, metavar="FILE", help="also write the scores here")
    making = commands.add_parser("make", help="make the documents")
    add_dest(making)
    add, whole = making.add_argument, {"metavar": "N", "type": whole_number}
    files = {"metavar": "FILE", "type": Path, "nargs": "+", "required": True}
    add("--passages", **files, help="SQuAD's JSON, or text with a paragraph per line")
    add("--pieces", **whole, default=4000, help="subwords of the model (default: 4000)")
    add("--distances", **whole, nargs="+", default=DISTANCES, help="tokens between test's facts")
    add("--questions", **whole, default=100, help="of test at each distance (default: 100)")
    add("--scale", type=float, default=1.0, help="times the documents of train (default: 1)")
    add("--seed", **whole, default=1, help="of everything that is drawn (default: 1)")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; a user's mistake is one line on stderr and status 1."""
    parser = _parser()
    args = parser.parse_args(arguments)
    options = {key: value for key, value in vars(args).items() if key != "command"}
    try:
        if args.command == "make":
            return prepare_folder({"prepare": make, **options})
        scores = exact_match(args.checkpoint, args.data)
    except UserError as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 1
    if args.json:
        write_aside(args.json, json.dumps(scores) + "\n")
    for distance, score in scores.items():
        print(f"{int(distance):>10,} {score:6.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
