"""Neural clustering of any matrix, compared with K-Means and a self-organising map (CF22
appendix A).

python -m examples.clustering fit X.npy --num-clusters 100 --out clusters.npz
python -m examples.clustering assign clusters.npz X.npy --out assigned.npy
python -m examples.clustering draw clusters.npz --out centroids.png
"""

import argparse
import json
import logging
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, fields

import numpy as np
import torch
from torch import Tensor

from fairseq_clusterformer.cli.common import Parser, add_force
from fairseq_clusterformer.cli.main import program
from fairseq_clusterformer.clustering import cluster_use
from fairseq_clusterformer.errors import UserError, bad_option
from fairseq_clusterformer.outputs import check_output, whole_file, write_text
from fairseq_clusterformer.ranges import strays
from scripts.experiments.results import provenance
from scripts.experiments.tables import cell, markdown

from .clusters import draw_centroids, load_clusters
from .fit import METHODS, Options, check, fit
from .matrices import FORMATS, read_labels, read_matrix

PROGRAM = "python -m examples.clustering"


def parser() -> Parser:
    """Of all commands; a method's options are those of its dataclass."""
    main_parser = Parser(prog=PROGRAM, description=__doc__)
    commands = main_parser.add_subparsers(dest="command", required=True, parser_class=Parser)
    fitting = commands.add_parser("fit", help="fit centroids to a matrix")
    add = fitting.add
    add("input FILE", f"vectors, one per row: {FORMATS}")
    add("--num-clusters K", "one or several", type=int, nargs="+", required=True)
    how = {"nargs": "+", "choices": [*METHODS, "all"], "default": ["neural"], "dest": "methods"}
    fitting.add_argument("--method", "--methods", **how)
    add("--seed N", "one or several", type=int, nargs="+", default=[1])
    add("--labels FILE", "of the input: report the accuracy of clusters")
    add("--test FILE", "vectors to measure the accuracy on")
    add("--test-labels FILE", "of --test")
    add("--out PATH", "an .npz file: the centroids and all else that assigning needs")
    add("--json FILE", "every run, written after each")
    for method in ("neural", "kmeans", "som"):
        for item in fields(METHODS[method][0]):
            limits, text = item.metadata["range"], item.metadata["help"]
            option = f"--{method}-{item.name.replace('_', '-')}"
            how = {"type": type(item.default), "default": item.default}
            how |= {"choices": limits.choices} if limits.choices else {"metavar": "X"}
            add(option, text, **{"choices": None} | how)
    assigning = commands.add_parser("assign", help="assign with what fit wrote")
    assigning.add("clusters PATH", "what fit --out wrote")
    assigning.add("input FILE", "as of fit")
    assigning.add("--out PATH", "an .npy file, int64 [N]", required=True)
    drawing = commands.add_parser("draw", help="draw centroids of images")
    drawing.add("clusters PATH", "what fit --out wrote")
    drawing.add("--out PATH", "the picture, a .png file", required=True)
    for command in (fitting, assigning, drawing):
        add_force(command)
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
            command = f"{PROGRAM} {shlex.join(args.words)}"
            record = provenance(command, threads=torch.get_num_threads())
            text = json.dumps(record | {"shape": list(x.shape), "rows": rows}, indent=1) + "\n"
            write_text("--json", args.json, text, **_how(args))
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


def table(rows: list[dict]) -> str:
    """One line per method and K, over its seeds."""
    known = [name for name in ("accuracy", "train accuracy") if name in rows[0]]
    lines = []
    for method, k in dict.fromkeys((row["method"], row["k"]) for row in rows):
        of_key = [row for row in rows if (row["method"], row["k"]) == (method, k)]
        shares = (cell([100 * row[name] for row in of_key], 2) for name in known)
        others = (cell([row[n] for row in of_key]) for n in ("effective", "empty", "seconds"))
        lines.append([method, k, *shares, *others])
    shares = (f"{name} (%)" for name in known)
    return markdown(["method", "k", *shares, "effective clusters", "empty", "seconds"], lines)


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

    def run(words: Sequence[str]) -> int:
        args = parser().parse_args(words)
        args.words = list(words)
        {"fit": run_fit, "assign": run_assign, "draw": run_draw}[args.command](args)
        return 0

    return program(PROGRAM, run, words)


if __name__ == "__main__":
    logging.disable(logging.INFO)
    sys.exit(main(sys.argv[1:]))
