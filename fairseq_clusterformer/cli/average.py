#!/usr/bin/env python3
"""Average the parameters of several fairseq checkpoints into one.

    python scripts/average_checkpoints.py --inputs checkpoints --num-epoch-checkpoints 5 \\
        --output checkpoints/average5.pt

--inputs names the files, or one folder whose latest epochs (checkpoint7.pt) or updates
(checkpoint_2_9000.pt) are taken. Everything but the parameters and the floating-point buffers is
the newest checkpoint's: its configuration and whole numbers. Half precision is averaged in float32
and written in half again. The optimizer's state is left out, for it belongs to no average. What
fairseq-generate and --restore-file load, they load from the result too.
"""

import argparse
import os
import re
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

import fairseq_clusterformer.plugin  # noqa: F401  allows the types that fairseq writes
from fairseq_clusterformer.cli.common import whole_number
from fairseq_clusterformer.errors import LOADING, UserError

EPOCH = re.compile(r"checkpoint(\d+)\.pt")
UPDATE = re.compile(r"checkpoint_\d+_(\d+)\.pt")


def average(paths: Sequence[Path]) -> dict:
    """The checkpoint that holds the average of the checkpoints' parameters.

    A tensor that two names share in every checkpoint is shared in the result too. The mean of
    minus infinity, which a log-sum-exp starts from, is minus infinity.

    Raises:
        UserError: a file that is no checkpoint, or parameters that differ in name or shape.
    """
    sums: dict[str, Tensor] = {}
    shared: dict[str, tuple] = defaultdict(tuple)  # name: where it lies in each checkpoint
    newest: dict = {}
    shapes: dict[str, list[int]] = {}
    for path in paths:
        state = _load(path)
        # what is no tensor, such as a memory bank, is taken from the newest
        model = {n: t for n, t in state["model"].items() if isinstance(t, Tensor)}
        if shapes:
            _check_same({n: list(t.shape) for n, t in model.items()}, path, shapes, paths[0])
        else:
            shapes = {name: list(tensor.shape) for name, tensor in model.items()}
        for name, tensor in model.items():
            place = tensor.data_ptr(), tensor.stride(), tensor.shape, tensor.dtype
            shared[name] += (place,)
            if tensor.is_floating_point():
                wide = tensor.to(torch.promote_types(tensor.dtype, torch.float32), copy=True)
                sums[name] = sums[name] + wide if name in sums else wide
        if not newest or _updates(state) >= _updates(newest):
            newest = state
    means: dict[tuple, Tensor] = {}
    for name, tensor in newest["model"].items():
        if name not in sums:
            continue
        if shared[name] not in means:
            means[shared[name]] = (sums[name] / len(paths)).to(tensor.dtype)
        newest["model"][name] = means[shared[name]]
    newest["last_optimizer_state"] = None
    return newest


def _load(path: Path) -> dict:
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(state, dict) or not isinstance(state.get("model"), dict):
            raise ValueError("holds no model")
    except LOADING as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise UserError(
            f"--inputs: {path} cannot be read ({reason}); allowed: checkpoints of fairseq"
        ) from None
    state.pop("last_optimizer_state", None)
    return state


def _updates(state: dict) -> int:
    """How many updates a checkpoint has seen; 0 if it does not tell."""
    history = state.get("optimizer_history") or [{}]
    return history[-1].get("num_updates", 0)


def _check_same(
    given: dict[str, list[int]], path: Path, wanted: dict[str, list[int]], first: Path
) -> None:
    for name in [*wanted, *given]:
        here, there = given.get(name, "missing"), wanted.get(name, "missing")
        if here != there:
            raise UserError(
                f"--inputs: {name} is {there} in {first}, {here} in {path}; "
                "allowed: checkpoints of one model"
            )


def latest(folder: Path, count: int, by_update: bool, upper_bound: int | None) -> list[Path]:
    """The `count` latest checkpoints of a folder by epoch or by update, the newest first.

    Args:
        upper_bound: the latest epoch or update to take.

    Raises:
        UserError: if there are fewer.
    """
    pattern = UPDATE if by_update else EPOCH
    found = {
        int(match[1]): path for path in folder.iterdir() if (match := pattern.fullmatch(path.name))
    }
    allowed = [n for n in sorted(found, reverse=True) if upper_bound is None or n <= upper_bound]
    if len(allowed) < count:
        option = "--num-update-checkpoints" if by_update else "--num-epoch-checkpoints"
        there = ", ".join(found[n].name for n in sorted(found)) or "none"
        bound = "" if upper_bound is None else f" up to --checkpoint-upper-bound {upper_bound}"
        raise UserError(
            f"{option} is {count}, but {folder} has {len(allowed)}{bound}; there are: {there}"
        )
    return [found[n] for n in allowed[:count]]


def _inputs(args: argparse.Namespace) -> list[Path]:
    """The files to average."""
    count = args.num_epoch_checkpoints or args.num_update_checkpoints
    if count is None:
        if args.checkpoint_upper_bound is not None:
            raise UserError(
                "--checkpoint-upper-bound is given; allowed: together with "
                "--num-epoch-checkpoints or --num-update-checkpoints"
            )
        for path in args.inputs:
            if not path.is_file():
                raise UserError(
                    f"--inputs: {path} is {'a folder' if path.is_dir() else 'not there'}; allowed:"
                    " files, or one folder with --num-epoch-checkpoints or"
                    " --num-update-checkpoints"
                )
        return args.inputs
    if len(args.inputs) != 1 or not args.inputs[0].is_dir():
        raise UserError(
            f"--inputs is {' '.join(map(str, args.inputs))}; allowed: one folder that exists, with"
            " --num-epoch-checkpoints or --num-update-checkpoints"
        )
    by_update = args.num_update_checkpoints is not None
    return latest(args.inputs[0], count, by_update, args.checkpoint_upper_bound)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--inputs", type=Path, nargs="+", required=True, help="files, or one folder")
    add("--output", type=Path, required=True, help="the file to write; replaced if it is there")
    number = parser.add_mutually_exclusive_group()
    number.add_argument(
        "--num-epoch-checkpoints", type=whole_number, metavar="N", help="the last N epochs' files"
    )
    number.add_argument(
        "--num-update-checkpoints",
        type=whole_number,
        metavar="N",
        help="the last N files written at an update (--save-interval-updates)",
    )
    add(
        "--checkpoint-upper-bound",
        type=whole_number,
        metavar="K",
        help="leave out what is later than epoch or update K",
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status; a user's mistake is one line on stderr and status 1."""
    args = _parser().parse_args(arguments)
    partial = args.output.with_name(args.output.name + ".partial")
    try:
        paths = _inputs(args)
        if args.output.resolve() in {path.resolve() for path in paths}:
            raise UserError(
                f"--output is {args.output}, one of the inputs; allowed: any other file"
            )
        state = average(paths)
        args.output.parent.mkdir(parents=True, exist_ok=True)
        try:
            torch.save(state, partial)
            os.replace(partial, args.output)
        finally:
            partial.unlink(missing_ok=True)
    except (UserError, OSError) as error:
        print(f"average_checkpoints.py: error: {error}", file=sys.stderr)
        return 1
    print(f"{args.output}: the average of {', '.join(path.name for path in paths)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
