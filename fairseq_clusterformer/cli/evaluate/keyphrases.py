"""Find the keyphrases of a prepared split's pages, and score them where they are known.

  clusterformer evaluate keyphrases --checkpoint checkpoint_best.pt --data data-bin/openkp

The command prints precision, recall and F1 of the best 1, 3 and 5 phrases in per cent, means over
the pages whose keyphrases are known. --out writes predictions.jsonl, a line for each page of the
split, as OpenKP's script reads it: its url, and its best five phrases as KeyPhrases.
"""

import json
from collections.abc import Sequence

from fairseq_clusterformer.outputs import write_text

from ..common import Parser, add_force, add_model, check_files

#: the file in the folder of --out
WRITTEN = "predictions.jsonl"


def main(arguments: Sequence[str]) -> int:
    parser = Parser(prog="clusterformer evaluate keyphrases", description=__doc__)
    add_model(parser, "a model's of keyphrases, or a bundle")
    parser.add("--split SPLIT", "of the folder", default="valid")
    parser.add("--out PATH", "the folder for the file")
    parser.add("--batch-size N", "pages at once", default=8)
    add_force(parser)
    args = parser.parse_args(arguments)
    from fairseq_clusterformer.checkpoints.load import load_checkpoint
    from fairseq_clusterformer.etc.keyphrases import mean_scores, split_keyphrases

    loaded = load_checkpoint(args.checkpoint, data=args.data, task="etc_keyphrases")
    how = {"inputs": [loaded.path, loaded.folder], "force": args.force}
    if args.out:
        check_files(args.out, [WRITTEN], **how)
    found = split_keyphrases(loaded, args.split, batch_size=args.batch_size, cpu=args.cpu)
    if args.out:
        pages = ({"url": url, "KeyPhrases": [p.split() for p in best]} for url, best, _ in found)
        lines = "".join(json.dumps(page, ensure_ascii=False) + "\n" for page in pages)
        write_text("--out", args.out / WRITTEN, lines, makes_folder=True, **how)
    known = [(best, right) for _, best, right in found if right]
    for name, value in mean_scores(known).items():
        print(f"{name:>40}  {value:.6g}")
    if not known:
        print("no scores: the keyphrases are unknown")
    return 0
