"""Find the keyphrases of a prepared split's pages, and score them where they are known.

  python examples/etc/openkp/evaluate.py --checkpoint checkpoint_best.pt --data data-bin/openkp

The command prints precision, recall and F1 of the best 1, 3 and 5 phrases in per cent, means over
the pages whose keyphrases are known, and how many pages are cut. --out writes predictions.jsonl,
the url and the best five phrases of each page, as OpenKP's script reads them, and scores.json.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from fairseq_clusterformer.cli.common import Parser, add_force, add_model, check_files, load_model
from fairseq_clusterformer.cli.main import program
from fairseq_clusterformer.outputs import write_text

NAME = "python examples/etc/openkp/evaluate.py"
#: files in the folder of --out
WRITTEN = ("predictions.jsonl", "scores.json")


def main(arguments: Sequence[str]) -> int:
    parser = Parser(prog=NAME, description=__doc__)
    add_model(parser, "a model's of keyphrases, or a bundle")
    parser.add("--split SPLIT", "of the folder", default="valid")
    parser.add("--out PATH", "the folder for the files")
    add_force(parser)
    args = parser.parse_args(arguments)
    import torch
    from fairseq.utils import apply_to_sample

    from fairseq_clusterformer.checkpoints.load import dataset_of
    from openkp.task import SCORES, found_in, keyphrase_scores

    used, rows = load_model(args, "etc_keyphrases"), {}
    how = {"inputs": [used.loaded.path, used.loaded.folder], "force": args.force}
    if args.out:
        check_files(args.out, WRITTEN, **how)
    dataset = dataset_of(used.loaded, args.split, "--split")
    batches = used.loaded.task.get_batch_iterator(dataset, max_sentences=8)
    with torch.no_grad():
        for batch in batches.next_epoch_itr(shuffle=False):
            given = apply_to_sample(lambda x: x.to(used.device), batch["net_input"])
            found = found_in(dataset.data, batch["id"].tolist(), used.model(**given)[0])
            rows |= zip(batch["id"].tolist(), found, strict=True)
    found = [rows[number] for number in sorted(rows)]
    known = [keyphrase_scores(best, right) for _, best, right in found if right]
    scores = {name: mean(row[name] for row in known) for name in SCORES if known}
    scores |= {"pages": len(found), "pages scored": len(known)}
    scores |= {"pages cut": dataset.cut, "nodes left out": dataset.nodes_left_out}
    if args.out:
        pages = [{"url": url, "KeyPhrases": [p.split() for p in best]} for url, best, _ in found]
        for name, lines in zip(WRITTEN, (pages, [scores]), strict=True):
            text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
            write_text("--out", args.out / name, text, makes_folder=True, **how)
    for name, value in scores.items():
        print(f"{name:>40}  {value:.6g}")
    if not known:
        print("no scores: the keyphrases are unknown")
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # as --user-dir does
    sys.exit(program(NAME, main, sys.argv[1:]))
