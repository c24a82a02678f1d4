#!/usr/bin/env python3
"""Train every kind of attention on recall from further away than a window reaches.

    python scripts/recall_task.py
    python scripts/recall_task.py --kinds near+neural --seeds 1 2 3 --out results.json

A row holds 8 pairs of a key and a value, scattered over its first 40 tokens, then noise, and at
its end the 8 keys again, shuffled: at each, the model names the value of its pair. What can be
learned without seeing the pairs is 1 in 16; a model that sees which values there are, but not
which key each belongs to, gets 2 in 16.

A SPEC of ``--kinds`` is an attention spec as ``--attention`` takes it. ``near`` is a kind of this
task alone: a window of 8, for local heads beside clustered ones. Kinds that learn clusters by
losses are trained once for each combination of ``--cluster-normalizer`` and ``--loss-weights``.
Model size, steps and rows are the same for all. With ``--out``, what has a result there is not
trained again, so the command can be stopped and given again.
"""

import argparse
import json
import math
import shlex
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, fields
from itertools import product
from pathlib import Path

import torch

from fairseq_clusterformer.attention import (
    Full,
    Lsh,
    RoutingAttention,
    Strided,
    Window,
    parse_attention,
)
from fairseq_clusterformer.attention.base import NORMALIZERS, SIMILARITIES
from fairseq_clusterformer.errors import write_aside
from scripts.experiments.grid import machine
from scripts.experiments.recall.model import GAP, HEADS, LAYERS, LENGTH, Model, Setting, train

WITHOUT_LOSSES = (Full, Lsh, RoutingAttention, Strided)
KINDS = ("full", "window", "near", "neural", "near+neural")


def settings(args: argparse.Namespace) -> list[Setting]:
    """What the command line asks for, in its order.

    Raises:
        ValueError: an option's value is not allowed, with the option and what is.
    """
    shared = {f.name: getattr(args, f.name) for f in fields(Setting)[3:]}
    wanted = []
    for kind in dict.fromkeys(args.kinds):
        parse_attention(kind, num_layers=LAYERS, num_heads=HEADS, option="--kinds")
        model = Model(Setting(kind, **shared))
        routers = [list(layer.attention.routers) for layer in model.layers]
        if not all(isinstance(r, WITHOUT_LOSSES) for of_layer in routers for r in of_layer):
            choices = product(args.cluster_normalizer, args.loss_weights)
            wanted += [Setting(kind, *choice, **shared) for choice in choices]
            continue
        wanted.append(Setting(kind, **shared))
        reach = sum(max(r.window or LENGTH for r in of_layer) - 1 for of_layer in routers)
        local = all(isinstance(router, Window) for of_layer in routers for router in of_layer)
        if local and reach > GAP:
            raise ValueError(
                f"--attention-window is {args.attention_window}: with --kinds {kind} a query is "
                f"reached from {reach} tokens away; allowed: {GAP // LAYERS + 1} or less"
            )
    return wanted


def command(setting: Setting, seed: int) -> str:
    """The command line of one run; options of their default value are left out."""
    words = ["python", "scripts/recall_task.py", "--kinds", setting.kind, "--seeds", seed]
    words += ["--cluster-normalizer", setting.cluster_normalizer]
    words += ["--loss-weights", setting.loss_weight]
    for field in fields(Setting)[3:]:
        value = getattr(setting, field.name)
        if value != field.default:
            words.append("--" + field.name.replace("_", "-"))
            words += [] if value is True else [value]
    return shlex.join(map(str, words))


def table(results: list[dict]) -> str:
    """Markdown: a row for each setting, over its seeds; options that never vary have no column."""
    groups: dict[Setting, list[dict]] = {}
    for result in results:
        groups.setdefault(Setting(**result["setting"]), []).append(result)
    options = [
        f.name
        for f in fields(Setting)[3:]
        if any(getattr(setting, f.name) != f.default for setting in groups)
    ]
    head = ["kind", "normaliser", "mu = nu", *options, "seeds", "accuracy", "effective clusters"]
    head += [f"sees its pair, layer {i + 1} (another)" for i in range(LAYERS)]
    lines = ["| " + " | ".join(name.replace("_", " ") for name in head) + " |"]
    lines.append("| --- |" + " ---: |" * (len(head) - 1))
    for setting, group in groups.items():
        clustered = bool(group[0]["effective clusters"])
        cells = [setting.kind]
        cells += [setting.cluster_normalizer, setting.loss_weight] if clustered else ["-", "-"]
        cells += [getattr(setting, name) for name in options]
        cells += [len(group), spread([r["accuracy"] for r in group])]
        uses = [statistics.mean(r["effective clusters"]) for r in group if clustered]
        cells.append(f"{statistics.mean(uses):.1f}" if clustered else "-")
        for i in range(LAYERS):
            own = statistics.mean(r["sees its pair"][i] for r in group)
            other = statistics.mean(r["sees another pair"][i] for r in group)
            cells.append(f"{own:.2f} ({other:.2f})")
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def spread(values: list[float]) -> str:
    """Mean, and the range where there are several."""
    if len(values) == 1:
        return f"{values[0]:.3f}"
    return f"{statistics.mean(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def load(path: Path | None) -> dict[tuple[Setting, int], dict]:
    """Results of earlier runs, by setting and seed.

    Raises:
        ValueError: the folder is missing, or the file is not one that this script wrote.
    """
    if path is None or (path.parent.is_dir() and not path.exists()):
        return {}
    try:
        results = json.loads(path.read_text())
        if not isinstance(results, list):
            raise TypeError(type(results))
        for result in results:  # older than the option: of runs without
            result["setting"].setdefault("cluster_exploration", 0.0)
        table(results)
        return {(Setting(**result["setting"]), result["seed"]): result for result in results}
    except (OSError, ValueError, TypeError, LookupError):
        raise ValueError(
            f"--out is {path}; allowed: a new file in a folder that exists, or results of this "
            "script"
        ) from None


def save(path: Path | None, results: list[dict]) -> None:
    """Write the whole file or none of it."""
    if path is not None:
        write_aside(path, json.dumps(results, indent=1) + "\n")


def number(kind: type, low: float) -> Callable[[str], float]:
    """An argparse type: a finite number that is ``low`` or more."""
    name = {int: "a whole number", float: "a number"}[kind]

    def parse(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not low <= value < math.inf:
            raise argparse.ArgumentTypeError(f"it is {text!r}; allowed: {name}, {low} or more")
        return value

    return parse


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    count, weight = number(int, 1), number(float, 0)

    def add(name: str, help: str, **options) -> None:
        options.setdefault("default", getattr(Setting, name[2:].replace("-", "_"), None))
        parser.add_argument(name, help=help + " (default: %(default)s)", **options)

    add("--kinds", "attention specs", nargs="+", default=KINDS, metavar="SPEC")
    add("--seeds", "of weights and rows", nargs="+", type=count, default=(1, 2))
    add("--steps", "updates of a run", type=count)
    add("--cluster-normalizer", "", nargs="+", choices=NORMALIZERS, default=NORMALIZERS)
    add("--loss-weights", "mu = nu", nargs="+", type=weight, default=(0.1, 0.0), metavar="MU")
    add("--attention-window", "of kinds other than near", type=count, metavar="W")
    add("--num-clusters", "clusters of a layer", type=count, metavar="K")
    add("--cluster-similarity", "phi of CF22 eq. 2", choices=SIMILARITIES)
    add("--cluster-temperature", "divides phi", type=weight, metavar="T")
    add(
        "--cluster-exploration",
        "share of gated keys that training puts in a drawn cluster",
        type=weight,
        metavar="SHARE",
    )
    add("--value-first", "a pair is value, key", action="store_true")
    add("--out", "JSON file that keeps results", type=Path, metavar="FILE")
    return parser


def main(arguments: list[str]) -> int:
    """Run the command; a user's mistake is one line on stderr and a status other than 0."""
    args = make_parser().parse_args(arguments)
    try:
        wanted = list(product(settings(args), dict.fromkeys(args.seeds)))
        done = load(args.out)
    except ValueError as error:
        print(f"recall_task.py: error: {error}", file=sys.stderr)
        return 1
    for i, (setting, seed) in enumerate(wanted, start=1):
        if (setting, seed) in done:
            continue
        print(f"run {i} of {len(wanted)}: {command(setting, seed)}", file=sys.stderr, flush=True)
        done[setting, seed] = {
            "setting": asdict(setting),
            "seed": seed,
            **train(setting, seed),
            "command": command(setting, seed),
            **machine(torch.get_num_threads()),
        }
        save(args.out, list(done.values()))
    print(table([done[run] for run in wanted]))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)  # the shell's status for a run ended by SIGINT
