"""Neural clustering of any matrix, compared with K-Means and a self-organising map (CF22
appendix A).

python -m fairseq_clusterformer.clustering fit X.npy --num-clusters 100 --out clusters.npz
python -m fairseq_clusterformer.clustering assign clusters.npz X.npy --out assigned.npy
"""

import argparse
import json
import logging
import os
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import IO

import numpy as np
import torch
from torch import Tensor

from fairseq_clusterformer.errors import UserError
from fairseq_clusterformer.outputs import check_output, whole_file

from .fit import METHODS, W_C, Options, check, fit
from .fitted import load_clusters
from .fuzzy import SIMILARITIES
from .matrices import FORMATS, InputError, read_labels, read_matrix
from .statistics import cluster_use, majority_accuracy

PROGRAM = "python -m fairseq_clusterformer.clustering"


def parser() -> argparse.ArgumentParser:
    """Of both commands; an option of a method is named as the field of its options."""
    described = {"description": __doc__, "formatter_class": argparse.RawDescriptionHelpFormatter}
    main_parser = argparse.ArgumentParser(prog=PROGRAM, allow_abbrev=False, **described)
    commands = main_parser.add_subparsers(dest="command", required=True)

    fitting = commands.add_parser("fit", allow_abbrev=False, help="fit centroids to a matrix")
    add = fitting.add_argument
    add("input", type=Path, metavar="INPUT", help=f"vectors, one per row: {FORMATS}")
    add("--num-clusters", type=int, nargs="+", required=True, metavar="K", help="one or several")
    methods = [*METHODS, "all"]
    add("--method", "--methods", nargs="+", choices=methods, default=["neural"], dest="methods")
    add("--seed", type=int, nargs="+", default=[1], help="one or several (default: 1)")
    add("--labels", type=Path, metavar="FILE", help="of INPUT: report the accuracy of clusters")
    add("--test", type=Path, metavar="FILE", help="vectors to measure the accuracy on")
    add("--test-labels", type=Path, metavar="FILE", help="of --test")
    add("--out", type=Path, metavar="NPZ", help="the centroids and all else that assigning needs")
    add("--json", type=Path, metavar="FILE", help="every run, written after each")
    settings = {
        "neural": (
            ("epochs", int, "passes over INPUT"),
            ("batch_size", int, "vectors over which eq. 2 is normalised in learning"),
            ("learning_rate", float, "of Adam, relative to the numbers of the first centroids"),
            ("similarity", SIMILARITIES, "phi; dot is the paper's"),
            ("temperature", float, "divides phi inside the exponent of eq. 2"),
            ("w_c", W_C, "W_c of eq. 2; learned is the paper's"),
            ("sorting_weight", float, "nu: weight of the centroid sorting loss (eq. 11)"),
        ),
        "kmeans": (
            ("iterations", int, "of each run, spherical-kmeans too"),
            ("redos", int, "runs, of which the best by its loss is kept, spherical-kmeans too"),
        ),
        "som": (
            ("epochs", int, "vectors seen, in multiples of N"),
            ("learning_rate", float, "the first; it falls to 0"),
            ("sigma", float, "first width of the neighbourhood; it falls to a third"),
        ),
    }
    for method, options in settings.items():
        default = METHODS[method][0]()
        for name, kind, meaning in options:
            value = getattr(default, name)
            fitting.add_argument(
                f"--{method}-{name.replace('_', '-')}",
                type=str if isinstance(kind, tuple) else kind,
                choices=kind if isinstance(kind, tuple) else None,
                metavar=None if isinstance(kind, tuple) else "N" if kind is int else "X",
                default=value,
                help=f"{meaning} (default: {value})",
            )

    assigning = commands.add_parser(
        "assign", allow_abbrev=False, help="assign with what fit wrote"
    )
    assigning.add_argument("clusters", type=Path, metavar="NPZ", help="what fit --out wrote")
    assigning.add_argument("input", type=Path, metavar="INPUT", help="as of fit")
    assigning.add_argument("--out", type=Path, required=True, metavar="NPY", help="int64 [N]")
    for command in (fitting, assigning):
        about = "replace files that this program did not write, but no input"
        command.add_argument("--force", action="store_true", help=about)
    return main_parser


def run_fit(args: argparse.Namespace) -> None:
    """Fit every method, K and seed asked for; print a table of means over seeds.

    Raises:
        InputError: before any fitting, for what is not allowed.
    """
    methods = list(METHODS) if "all" in args.methods else list(dict.fromkeys(args.methods))
    plan = [(m, k, s) for m in methods for k in args.num_clusters for s in args.seed]
    x, labels, test, test_labels = _data(args)
    _check(args, plan, len(x))
    rows: list[dict] = []
    for method, num_clusters, seed in plan:
        start = time.perf_counter()
        options = _options(args, method)
        clusters = fit(method, x, num_clusters, seed=seed, options=options)
        seconds = time.perf_counter() - start
        assigned = clusters.assign(x)
        use = cluster_use(torch.bincount(assigned, minlength=num_clusters))
        row = {"method": method, "k": num_clusters, "seed": seed, "seconds": round(seconds, 1)}
        row |= {"options": asdict(options), "effective": round(float(use.effective), 2)}
        row["empty"] = int(use.empty)
        if labels is not None:
            row["train accuracy"] = majority_accuracy(assigned, labels, assigned, labels)
        if test_labels is not None:
            row["accuracy"] = majority_accuracy(
                assigned, labels, clusters.assign(test), test_labels
            )
        rows.append(row)
        if args.out is not None:
            _write(args, "out", clusters.save)
        if args.json is not None:
            record = json.dumps(_record(args, x, rows), indent=1) + "\n"
            _write(args, "json", lambda file, text=record: file.write(text.encode()))
    print(table(rows))


def _data(
    args: argparse.Namespace,
) -> tuple[np.ndarray, Tensor | None, np.ndarray | None, Tensor | None]:
    names = ("labels", "test", "test_labels")
    given = [f"--{name.replace('_', '-')}" for name in names if getattr(args, name) is not None]
    if given not in ([], ["--labels"], ["--labels", "--test", "--test-labels"]):
        raise InputError(
            f"given are {' and '.join(given)}; allowed: --labels, or it with --test and "
            "--test-labels, or none"
        )
    x = read_matrix(args.input)
    labels = test = test_labels = None
    if args.labels is not None:
        labels = torch.from_numpy(read_labels(args.labels, len(x), args.input))
    if args.test is not None:
        test = read_matrix(args.test)
        if test.shape[1] != x.shape[1]:
            raise InputError(
                f"--test {args.test} has {test.shape[1]} columns; "
                f"allowed: {x.shape[1]}, as {args.input}"
            )
        test_labels = torch.from_numpy(read_labels(args.test_labels, len(test), args.test))
    return x, labels, test, test_labels


def _check(args: argparse.Namespace, plan: list[tuple[str, int, int]], length: int) -> None:
    for method, num_clusters, _ in plan:
        check(method, num_clusters, length, _options(args, method))
    for seed in args.seed:
        if not 0 <= seed < 2**31:
            raise InputError(f"--seed is {seed}; allowed: 0 to 2147483647")
    if args.out is not None and len(plan) > 1:
        raise InputError(f"--out keeps one fit, and {len(plan)} are asked for; allowed: one")
    if args.out is not None and args.out.suffix != ".npz":
        raise InputError(f"--out is {args.out}; allowed: a name that ends in .npz")
    for name in ("out", "json"):
        path = getattr(args, name)
        if path is not None:
            check_output(f"--{name}", path, **_how(args))


def _options(args: argparse.Namespace, method: str) -> Options:
    kind = METHODS[method][0]
    prefix = method.removeprefix("spherical-")
    return kind(**{f.name: getattr(args, f"{prefix}_{f.name}") for f in fields(kind)})


def _record(args: argparse.Namespace, x: np.ndarray, rows: list[dict]) -> dict:
    threads = os.environ.get("OMP_NUM_THREADS", "all")
    return {
        "command": f"{PROGRAM} {shlex.join(args.words)}",
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {threads} threads, "
        f"torch {torch.__version__}",
        "date": time.strftime("%Y-%m-%d"),
        "shape": list(x.shape),
        "rows": rows,
    }


def table(rows: list[dict]) -> str:
    """One line per method and K: means over seeds, and ± their standard deviation."""
    known = [name for name in ("accuracy", "train accuracy") if name in rows[0]]
    head = ["method", "k", *(f"{name} (%)" for name in known)]
    head += ["effective clusters", "empty", "seconds"]
    lines = [head]
    for key in dict.fromkeys((row["method"], row["k"]) for row in rows):
        of_key = [row for row in rows if (row["method"], row["k"]) == key]
        cells = [key[0], str(key[1])]
        for name in known:
            values = [100 * row[name] for row in of_key]
            spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
            cells.append(f"{statistics.mean(values):.2f}{spread}")
        for name in ("effective", "empty", "seconds"):
            cells.append(f"{statistics.mean(row[name] for row in of_key):.1f}")
        lines.append(cells)
    lines.insert(1, ["---"] * len(head))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _write(args: argparse.Namespace, name: str, write: Callable[[IO[bytes]], object]) -> None:
    """A whole file or none of it."""
    with (
        whole_file(f"--{name}", getattr(args, name), **_how(args)) as new,
        open(new, "wb") as file,
    ):
        write(file)


def _how(args: argparse.Namespace) -> dict:
    """What an output must not replace."""
    names = ("input", "labels", "test", "test_labels", "clusters")
    inputs = [path for name in names if (path := getattr(args, name, None)) is not None]
    return {"inputs": inputs, "force": args.force}


def run_assign(args: argparse.Namespace) -> None:
    """Write the cluster of each row, and print how evenly clusters are used."""
    check_output("--out", args.out, **_how(args))
    clusters = load_clusters(args.clusters)
    assigned = clusters.assign(read_matrix(args.input))
    _write(args, "out", lambda file: np.save(file, assigned.numpy()))
    use = cluster_use(torch.bincount(assigned, minlength=len(clusters.centroids)))
    print(
        f"{len(assigned):,} vectors in {float(use.effective):.1f} effective clusters: {args.out}"
    )


def run(words: Sequence[str]) -> None:
    """Run the command.

    Raises:
        InputError: a user's mistake.
    """
    args = parser().parse_args(words)
    args.words = list(words)
    {"fit": run_fit, "assign": run_assign}[args.command](args)


def main(words: Sequence[str]) -> int:
    """Run the command; a user's mistake is one line on stderr and status 1."""
    try:
        run(words)
    except (InputError, UserError) as error:
        print(f"{PROGRAM}: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    logging.disable(logging.INFO)
    sys.exit(main(sys.argv[1:]))
