"""Average the parameters of several fairseq checkpoints into one.

  clusterformer average --inputs $(ls -v saved/checkpoint[0-9]*.pt | tail -5) --output average.pt

Everything but the parameters and the floating-point buffers is the newest checkpoint's: its
configuration and whole numbers. --ema takes the moving average that fairseq-train --store-ema
kept, also of one file. Half precision is averaged in float32 and written in half again. The
optimizer's state is left out, because it belongs to no average. fairseq-generate and
--restore-file take the result as they take any checkpoint. Of a bundle, or of an installed model's
name such as reader-en, it makes the checkpoint that fairseq-train --finetune-from-model starts
from.
"""

from collections.abc import Sequence

from fairseq_clusterformer.outputs import check_output, whole_file

from .common import Parser, add_force


def main(arguments: Sequence[str]) -> int:
    parser = Parser(prog="clusterformer average", description=__doc__)
    parser.add("--inputs PATH", "files or bundles", nargs="+", required=True)
    parser.add("--output PATH", "the file to write", required=True)
    parser.add("--ema", "of each file take the average of --store-ema")
    add_force(parser)
    args = parser.parse_args(arguments)
    how = {"inputs": args.inputs, "force": args.force, "makes_folder": True}
    check_output("--output", args.output, **how)
    import torch

    from fairseq_clusterformer.checkpoints.load import average

    state = average(args.inputs, ema=args.ema)
    with whole_file("--output", args.output, **how) as new:
        torch.save(state, new)
    print(f"{args.output}: the average of {', '.join(path.name for path in args.inputs)}")
    return 0
