"""Score a reader on a prepared split; write its answers for the corpus's own script.

  clusterformer evaluate qa --checkpoint checkpoint_best.pt --data data-bin/squad --out DIR

The command prints the corpus's scores, and these: nll, the mean of - log of the probability of all
accepted answers together, in nats; nll_one, that of the answer listed last alone; where some
questions have no answer, AvNA: how often the reader is right about whether there is one, in per
cent; and how many documents and questions are cut, or lose answers by that. --out writes
predictions.json and scores.json, for SQuAD 2.0 and for own questions without answers also
no_answer.json (--na-prob-file of SQuAD's script; a question whose probability of no answer is
above --no-answer-threshold has none). Natural Questions is scored with the labels in its own files
(--gold): all answers are written, with scores that can be compared with a threshold. For HotpotQA,
2WikiMultihopQA and bAbI, a reader with --supporting-facts (etc_reader) is also scored by the
sentences that it says support its answers. Several readers answer as one, by the mean of their
probabilities.
"""

import json
from collections.abc import Sequence

from fairseq_clusterformer.data import RECORD
from fairseq_clusterformer.errors import bad_option, check_file, read_json, reading
from fairseq_clusterformer.outputs import write_text
from fairseq_clusterformer.ranges import Range

from ..common import Parser, add_force, add_model, check_files, number

#: of the task
_OPTIONS = "max_positions_inference document_stride max_global_positions max_answer_length".split()


def main(arguments: Sequence[str]) -> int:
    parser = Parser(prog="clusterformer evaluate qa", description=__doc__)
    add = parser.add
    add_model(parser, "a reader's, or a bundle", several=True)
    add("--split SPLIT", "of the folder", default="valid")
    add("--out PATH", "the folder for the files")
    add("--gold PATH", "for natural-questions: its files of the split", nargs="+", default=())
    add("--no-answer-threshold F", "for questions that may have no answer", default=0.5)
    add("--breakdown", "also exact match and F1 by question word, length of question and answer")
    add("--batch-size N", "questions at once", default=8)
    add_force(parser)
    for name in _OPTIONS:
        how = {"type": number(Range(whole=True))}
        add(f"--{name.replace('_', '-')} N", "default: as in training", **how)
    args = parser.parse_args(arguments)
    from fairseq_clusterformer.checkpoints.load import load_checkpoint
    from fairseq_clusterformer.use.evaluate import breakdown, predict, score

    options = {name: vars(args)[name] for name in _OPTIONS if vars(args)[name] is not None}
    how = {"data": args.data, "task": "clusterformer_qa", **options}
    loaded, *others = [load_checkpoint(path, **how) for path in args.checkpoint]
    with reading(loaded.folder / RECORD, "what `clusterformer prepare qa` has written"):
        corpus = read_json(loaded.folder / RECORD)["recipe"]["corpus"]
    is_natural, problem = corpus == "natural-questions", f"the data are {corpus}"
    if args.gold and not is_natural:
        raise bad_option("--gold", "given", "for natural-questions", problem)
    if args.breakdown and is_natural:
        raise bad_option("--breakdown", "given", "for another corpus", problem)
    for path in args.gold:
        check_file("--gold", path, "files of the split")
    paths = [one.path for one in (loaded, *others)]
    how = {"inputs": [*paths, loaded.folder, *args.gold], "force": args.force}
    if args.out:
        check_files(args.out, ("predictions.json", "scores.json", "no_answer.json"), **how)
    how_many = {"batch_size": args.batch_size, "cpu": args.cpu}
    found = predict(loaded, args.split, corpus, others=others, **how_many)
    found.threshold = args.no_answer_threshold
    scores = score(found, args.gold)
    read = {"documents": len(found.texts), **found.cuts}
    tables = breakdown(found) if args.breakdown else {}
    if args.out:
        files = {**found.files(), "scores.json": scores | {"read": read} | tables}
        for name, content in files.items():
            text = json.dumps(content, ensure_ascii=False) + "\n"
            write_text("--out", args.out / name, text, makes_folder=True, **how)
    for name, value in (scores | read).items():
        print(f"{name:>43}  {value:.6g}")
    for title, rows in tables.items():
        print(f"{title:>43}  {'questions':>9}  exact match     F1")
        for row, of in rows.items():
            shown = f"{of['questions']:9,}  {of['exact match']:11.1f}  {of['f1']:5.1f}"
            print(f"{row:>43}  {shown}")
    if not scores:
        print("no scores: " + ("no --gold" if found.gold else "the answers are secret"))
    return 0
