#!/usr/bin/env python3
"""Score a reader on a prepared split; write its answers as the data set's own script reads them.

    python scripts/evaluate_qa.py --checkpoint checkpoint_best.pt --data data-bin/squad --out DIR

Prints the scores of the data set; --out writes predictions.json and scores.json, of SQuAD 2.0
also no_answer.json (its script's --na-prob-file; what is likelier than --no-answer-threshold to
have no answer counts as such). The answers to Natural Questions are scored by the labels of its
own files (--gold); all of them are written, with scores to be compared with a threshold. The
supporting facts of HotpotQA and 2WikiMultihopQA are not predicted: their scripts read the files,
and score the answers alone.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fairseq_clusterformer.cli.common import Parser, fraction, whole_number
from fairseq_clusterformer.corpora.folder import RECORD
from fairseq_clusterformer.errors import UserError, write_aside

# supporting facts, and triples of entities and relations
HOPS = {"hotpotqa": ("sp",), "2wiki": ("sp", "evidence")}


@dataclass
class Predictions:
    """What was answered, and what is right, in the order of the split.

    Args:
        texts: the short answer to each question's id.
        no_answer: how likely each has none.
        natural: entries of Natural Questions' predictions.
        gold: the accepted answers, of questions whose answers are told.
    """

    texts: dict[str, str]
    no_answer: dict[str, float]
    natural: list[dict[str, Any]]
    gold: dict[str, list[str]]

    def files(self, corpus: str) -> dict[str, Any]:
        """The content of each file, by its name."""
        if corpus == "natural-questions":
            return {"predictions.json": {"predictions": self.natural}}
        if corpus in HOPS:  # their scripts read more, which the model says nothing of
            return {"predictions.json": {"answer": self.texts, **dict.fromkeys(HOPS[corpus], {})}}
        more = {"no_answer.json": self.no_answer} if corpus == "squad2" else {}
        return {"predictions.json": self.texts, **more}


def predict(model, task, args: argparse.Namespace) -> Predictions:
    """Answer all questions of ``--split``."""
    import torch
    from fairseq import utils
    from tqdm import tqdm

    from fairseq_clusterformer.answers import natural_question, ranked_answers

    dataset = task.dataset(args.split)
    data, is_natural = dataset.data, args.corpus == "natural-questions"
    batches = task.get_batch_iterator(dataset, max_sentences=args.batch_size)
    rows: list[tuple] = [()] * len(data)
    with tqdm(total=len(data), unit=" questions", disable=None) as progress, torch.no_grad():
        for batch in batches.next_epoch_itr(shuffle=False):
            inputs = batch["net_input"]
            logits, _ = model(**(utils.move_to_cuda(inputs) if args.cuda else inputs))
            numbers = batch["id"].tolist()
            found = ranked_answers(
                logits,
                [data.document(number) for number in numbers],
                max_answer_length=task.cfg.max_answer_length,
                within_long=is_natural,
            )
            for number, answers in zip(numbers, found, strict=True):
                line = data.texts(number)
                entry = None
                if is_natural:
                    entry = natural_question(line["id"], answers, line["paragraphs"])
                gold = None if data[number].answerable is None else line["texts"]
                text = answers.short[0].text  # though there may likelier be none
                rows[number] = (line["id"], text, answers.no_short, entry, gold)
            progress.update(len(numbers))
    return Predictions(
        texts={id_: text for id_, text, *_ in rows},
        no_answer={id_: probability for id_, _, probability, *_ in rows},
        natural=[entry for *_, entry, _ in rows],
        gold={id_: gold for id_, *_, gold in rows if gold is not None},
    )


def score(found: Predictions, args: argparse.Namespace) -> dict[str, float]:
    """The scores of ``--data``'s corpus, by their own names; none where answers are secret."""
    from fairseq_clusterformer.metrics import answers, hotpotqa, squad

    if args.corpus == "natural-questions":
        return _score_natural(found.natural, args.gold) if args.gold else {}
    if not found.gold:
        return {}
    if args.corpus == "squad2":
        evaluate = partial(squad.evaluate_v2, threshold=args.no_answer_threshold)
        return evaluate(found.gold, found.texts, found.no_answer)
    if args.corpus in HOPS:
        return hotpotqa.evaluate(found.gold, found.texts)
    normalise = answers.normalise
    if args.corpus.startswith("triviaqa"):
        normalise = answers.normalise_triviaqa
    return answers.evaluate(found.gold, found.texts, normalise=normalise)


def _score_natural(entries: Sequence[dict], paths: Sequence[Path]) -> dict[str, float]:
    """Natural Questions' scores; a question that is in its files alone has no answer.

    Raises:
        UserError: if a file is something else, or lacks a question.
    """
    from fairseq_clusterformer.corpora.question_answering.records import Drops, json_lines
    from fairseq_clusterformer.metrics.natural_questions import Label, evaluate

    predictions = {str(entry["example_id"]): Label.from_json(entry) for entry in entries}
    gold, drops = {}, Drops()
    for path in paths:
        for place, item in json_lines(path, drops):
            try:
                labels = [Label.from_json(annotation) for annotation in item["annotations"]]
                gold[str(item["example_id"])] = labels
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                raise UserError(
                    f"--gold is {path}: {place}: {error!r}; allowed: Natural Questions' .jsonl"
                ) from None
    broken = [example for of_reason in drops.examples.values() for example in of_reason]
    missing = [f"question {id_} is not there" for id_ in predictions if id_ not in gold]
    if what := broken + missing:
        raise UserError(
            f"--gold is {' '.join(map(str, paths))}: {what[0]}; allowed: the files that the "
            "split was prepared from"
        )
    return evaluate(gold, dict.fromkeys(gold, Label()) | predictions)


def _corpus(folder: Path) -> str:
    try:
        return json.loads((folder / RECORD).read_text())["recipe"]["corpus"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise UserError(
            f"--data is {folder}: {RECORD}: {error!r}; allowed: a folder that "
            "scripts/prepare_qa.py has prepared"
        ) from None


def _parser() -> Parser:
    parser = Parser(prog="evaluate_qa.py", description=__doc__)
    add = parser.add_argument
    add("--checkpoint", required=True, metavar="FILE", help="a reader's")
    add("--data", required=True, type=Path, metavar="FOLDER", help="prepared by prepare_qa.py")
    add("--split", default="valid", help="default: %(default)s")
    add("--out", type=Path, metavar="DIR", help="folder for the files")
    add(
        "--gold",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="of natural-questions: its files of the split",
    )
    add(
        "--no-answer-threshold",
        type=fraction,
        default=0.5,
        metavar="P",
        help="of squad2 (default: %(default)s)",
    )
    add("--batch-size", type=whole_number, default=8, help="default: %(default)s")
    add("--max-positions-inference", type=int, metavar="N", help="default: as in training")
    add("--max-answer-length", type=int, metavar="N", help="default: as in training")
    add("--cpu", action="store_true", help="even if there is an accelerator")
    return parser


def evaluate(args: argparse.Namespace) -> None:
    """Do what the command line asks for.

    Raises:
        UserError: if a file or an option is not as it must be.
    """
    args.corpus = _corpus(args.data)
    if args.gold and args.corpus != "natural-questions":
        raise UserError(f"--gold: is no option of {args.corpus}")
    if missing := [path for path in args.gold or () if not path.is_file()]:
        raise UserError(f"--gold is {missing[0]}: no such file")
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)

    import torch  # and fairseq: they take seconds

    from fairseq_clusterformer.inference.load import load_reader

    names = ("max_positions_inference", "max_answer_length")
    options = {name: vars(args)[name] for name in names if vars(args)[name] is not None}
    model, task = load_reader(args.checkpoint, args.data, **options)
    args.cuda = torch.cuda.is_available() and not args.cpu
    if args.cuda:
        model.cuda()
    try:
        task.load_dataset(args.split)
    except (FileNotFoundError, ValueError) as error:
        raise UserError(f"--split is {args.split}: {error}") from None
    found = predict(model, task, args)
    scores = score(found, args)
    if args.out:
        for name, content in {**found.files(args.corpus), "scores.json": scores}.items():
            write_aside(args.out / name, json.dumps(content, ensure_ascii=False) + "\n")
    for name, value in scores.items():
        print(f"{name:>40}  {value:.6g}")
    if not scores:
        print("no scores: " + ("no --gold" if found.gold else "the answers are kept secret"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status; a user's mistake is one line on stderr and status 1."""
    parser = _parser()
    args = parser.parse_args(arguments)
    try:
        evaluate(args)
    except (UserError, OSError) as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130  # the shell's status for a run ended by SIGINT
    return 0


if __name__ == "__main__":
    import logging

    logging.getLogger("fairseq").setLevel(logging.WARNING)
    sys.exit(main())
