"""Neural clustering of any matrix, compared with K-Means and a self-organising map (CF22
appendix A).

python -m examples.clustering fit X.npy --num-clusters 100 --out clusters.npz
python -m examples.clustering assign clusters.npz X.npy --out assigned.npy
python -m examples.clustering draw clusters.npz --out centroids.png
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
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fairseq_clusterformer.clustering import cluster_use
from fairseq_clusterformer.errors import UserError, bad_option
from fairseq_clusterformer.outputs import check_output, whole_file, write_text
from fairseq_clusterformer.ranges import strays

from .clusters import draw_centroids, load_clusters
from .fit import METHODS, Options, check, fit
from .matrices import FORMATS, read_labels, read_matrix

PROGRAM = "python -m examples.clustering"


def parser() -> argparse.ArgumentParser:
    """Of both commands; a method's options are those of its dataclass."""
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
    for method in ("neural", "kmeans", "som"):
        for item in fields(METHODS[method][0]):
            limits, text = item.metadata["range"], item.metadata["help"]
            add(
                f"--{method}-{item.name.replace('_', '-')}",
                type=type(item.default),
                choices=limits.choices or None,
                metavar=None if limits.choices else "N" if limits.whole else "X",
                default=item.default,
                help=f"{text} (default: {item.default})",
            )

    assigning = commands.add_parser(
        "assign", allow_abbrev=False, help="assign with what fit wrote"
    )
    assigning.add_argument("clusters", type=Path, metavar="NPZ", help="what fit --out wrote")
    assigning.add_argument("input", type=Path, metavar="INPUT", help="as of fit")
    assigning.add_argument("--out", type=Path, required=True, metavar="NPY", help="int64 [N]")
    drawing = commands.add_parser("draw", allow_abbrev=False, help="draw centroids of images")
    drawing.add_argument("clusters", type=Path, metavar="NPZ", help="what fit --out wrote")
    drawing.add_argument("--out", type=Path, required=True, metavar="PNG", help="the picture")
    for command in (fitting, assigning, drawing):
        about = "replace files that this program did not write, but no input"
        command.add_argument("--force", action="store_true", help=about)
    return main_parser


def run_fit(args: argparse.Namespace) -> None:
    """Fit every method, K and seed asked for; print a table of means over seeds. Raises UserError
    before any fitting, for what is not allowed."""
    methods = list(METHODS) if "all" in args.methods else list(dict.fromkeys(args.methods))
    plan = [(m, k, s) for m in methods for k in args.num_clusters for s in args.seed]
    x, labels, test, test_labels = _data(args)
    for method, num_clusters, _ in plan:
        check(method, num_clusters, len(x), _options(args, method))
    for problem in strays({"seed": args.seed}):
        raise UserError(problem)
    if args.out is not None and (len(plan) > 1 or args.out.suffix != ".npz"):
        allowed = "a name that ends in .npz, for one fit"
        raise bad_option("--out", args.out, allowed, f"fits: {len(plan)}")
    for name in ("out", "json"):
        if (path := getattr(args, name)) is not None:
            check_output(f"--{name}", path, **_how(args))

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
            found = clusters.assign(test)
            row["accuracy"] = majority_accuracy(assigned, labels, found, test_labels)
        rows.append(row)
        if args.out is not None:
            with whole_file("--out", args.out, **_how(args)) as new, open(new, "wb") as file:
                clusters.save(file)
        if args.json is not None:
            record = json.dumps(_record(args, x, rows), indent=1) + "\n"
            write_text("--json", args.json, record, **_how(args))
    print(table(rows))


def majority_accuracy(
    train_clusters: Tensor, train_labels: Tensor, clusters: Tensor, labels: Tensor
) -> float:
    """Share of vectors that have their cluster's label, from 0 to 1: the most frequent one of its
    members in training (the lowest of several); a vector in a cluster that had none counts as
    wrong. All int64, [N] of training and [M]."""
    size = (int(max(train_clusters.max(), clusters.max())) + 1, int(train_labels.max()) + 1)
    counts = torch.zeros(size, dtype=torch.long)
    counts.index_put_((train_clusters, train_labels), torch.tensor(1), accumulate=True)
    majority = torch.where(counts.amax(1) > 0, counts.argmax(1), -1)
    return float((majority[clusters] == labels).double().mean())


def _data(
    args: argparse.Namespace,
) -> tuple[np.ndarray, Tensor | None, np.ndarray | None, Tensor | None]:
    """The vectors of INPUT and their labels, and those of --test."""
    names = ("labels", "test", "test_labels")
    given = [f"--{name.replace('_', '-')}" for name in names if getattr(args, name) is not None]
    if given not in ([], ["--labels"], ["--labels", "--test", "--test-labels"]):
        allowed = "--labels, or it with --test and --test-labels, or none"
        raise UserError(f"given are {' and '.join(given)}; allowed: {allowed}")
    x, labels, test, test_labels = read_matrix(args.input), None, None, None
    if args.labels is not None:
        labels = torch.from_numpy(read_labels(args.labels, args.input, len(x)))
    if args.test is not None:
        test = read_matrix(args.test)
        if test.shape[1] != x.shape[1]:
            allowed = f"{x.shape[1]} columns, as {args.input}"
            raise bad_option("--test", args.test, allowed, f"it has {test.shape[1]}")
        test_labels = torch.from_numpy(read_labels(args.test_labels, args.test, len(test)))
    return x, labels, test, test_labels


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
    lines = [head, ["---"] * len(head)]
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
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


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
    with whole_file("--out", args.out, **_how(args)) as new, open(new, "wb") as file:
        np.save(file, assigned.numpy())
    effective = cluster_use(assigned.bincount(minlength=len(clusters.centroids))).effective
    print(f"{len(assigned):,} vectors in {float(effective):.1f} effective clusters: {args.out}")


def run_draw(args: argparse.Namespace) -> None:
    """Draw all centroids as images; dark is high, and each image has a scale of its own."""
    check_output("--out", args.out, **_how(args))
    figure, number = draw_centroids(args.clusters)
    with whole_file("--out", args.out, **_how(args)) as new:
        figure.savefig(new, format="png")
    print(f"{number} centroids: {args.out}")


def main(words: Sequence[str]) -> int:
    """Run the command; a user's mistake is one line on stderr and status 1."""
    args = parser().parse_args(words)
    args.words = list(words)
    try:
        {"fit": run_fit, "assign": run_assign, "draw": run_draw}[args.command](args)
    except UserError as error:
        print(f"{PROGRAM}: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    logging.disable(logging.INFO)
    sys.exit(main(sys.argv[1:]))
