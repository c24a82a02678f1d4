"""Average the parameters of several fairseq checkpoints into one.

  clusterformer average --inputs checkpoints --num-epoch-checkpoints 5 --output average5.pt

--inputs names the files, or one folder whose latest epochs (checkpoint7.pt) or updates
(checkpoint_2_9000.pt) are taken. Everything but the parameters and the floating-point buffers is
the newest checkpoint's: its configuration and whole numbers. --ema takes the moving average that
fairseq-train --store-ema kept, also of one file. Half precision is averaged in float32
and written in half again. The optimizer's state is left out, because it belongs to no average.
fairseq-generate and --restore-file take the result as they take any checkpoint. Of a bundle, or of
an installed model's name such as reader-en, it makes the checkpoint that fairseq-train
--finetune-from-model starts from.
"""

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from zipfile import is_zipfile

from fairseq_clusterformer.errors import UserError, bad_option
from fairseq_clusterformer.outputs import check_output, whole_file

from . import common
from .common import Parser


def main(arguments: Sequence[str]) -> int:
    parser = Parser(prog="clusterformer average", description=__doc__)
    add = parser.add
    add("--inputs PATH", "files or bundles, or one folder", nargs="+", required=True)
    add("--output PATH", "the file to write", required=True)
    add("--ema", "of each file take the average of --store-ema")
    add("--force", "replace --output if it is there")
    either = partial(common.add, parser.add_mutually_exclusive_group())
    either("--num-epoch-checkpoints N", "the last N epochs' files")
    about = "the last N files written at an update (--save-interval-updates)"
    either("--num-update-checkpoints N", about)
    add("--checkpoint-upper-bound N", "leave out what is later than epoch or update N")
    args = parser.parse_args(arguments)
    how = {"force": args.force, "makes_folder": True}
    check_output("--output", args.output, **how | {"force": True})
    done = is_zipfile(args.output) and not args.force  # or refused, when the average is known
    import torch

    from fairseq_clusterformer.checkpoints.average import average

    paths = _inputs(args)
    check_output("--output", args.output, inputs=paths, **how | {"force": args.force or done})
    state = average(paths, ema=args.ema)
    with whole_file("--output", args.output, inputs=paths, keep=True, **how) as new:
        torch.save(state, new)
    names = ", ".join(path.name for path in paths)
    print(f"{args.output} is already done" if done else f"{args.output}: the average of {names}")
    return 0


def _inputs(args: argparse.Namespace) -> list[Path]:
    from fairseq_clusterformer.checkpoints.average import latest
    from fairseq_clusterformer.checkpoints.bundle import is_bundle, located

    numbered = "--num-epoch-checkpoints or --num-update-checkpoints"
    by_update = args.num_update_checkpoints is not None
    count = args.num_update_checkpoints if by_update else args.num_epoch_checkpoints
    args.inputs = [located(path) for path in args.inputs]
    folders = [path for path in args.inputs if path.is_dir() and not is_bundle(path)]
    if count is not None:
        if len(folders) != 1 or len(args.inputs) != 1:
            given = " ".join(map(str, args.inputs))
            raise bad_option("--inputs", given, f"one folder that exists, with {numbered}")
        return latest(folders[0], count, by_update, args.checkpoint_upper_bound)
    if folders:
        allowed = f"files or bundles, or one folder with {numbered}"
        raise bad_option("--inputs", folders[0], allowed)
    if args.checkpoint_upper_bound is not None:
        raise UserError(f"--checkpoint-upper-bound is given; allowed: with {numbered}")
    return args.inputs
