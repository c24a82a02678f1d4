"""Neural clustering of any matrix, compared with K-Means and a self-organising map (CF22
appendix A).

python -m examples.clustering fit X.npy --num-clusters 100 --out clusters.npz
python -m examples.clustering assign clusters.npz X.npy --out assigned.npy
python -m examples.clustering draw clusters.npz --out centroids.png
"""

import json
import logging
import shlex
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from functools import partial
from itertools import product
from typing import IO

import numpy as np
import torch
from torch import Tensor

from fairseq_clusterformer.cli.common import Parser, add_force, number
from fairseq_clusterformer.cli.main import program
from fairseq_clusterformer.clustering import cluster_use
from fairseq_clusterformer.errors import UserError, bad_option
from fairseq_clusterformer.outputs import check_output, whole_file
from fairseq_clusterformer.ranges import Range
from scripts.experiments.results import provenance
from scripts.experiments.tables import cell, markdown

from .clusters import load_clusters, picture
from .fit import METHODS, Options, check, fit
from .matrices import FORMATS, read_labels, read_matrix

PROGRAM = "python -m examples.clustering"


def parser() -> Parser:
    """Of all commands; a method's options are those of its dataclass."""
    main_parser = Parser(prog=PROGRAM, description=__doc__)
    commands = main_parser.add_subparsers(dest="command", required=True, parser_class=Parser)
    fitting = commands.add_parser("fit", help="fit centroids to a matrix")
    add, seed = fitting.add, number(Range(0, whole=True))
    add("input FILE", f"vectors, one per row: {FORMATS}")
    add("--num-clusters N", "one or several", nargs="+", required=True)
    how = {"nargs": "+", "choices": [*METHODS, "all"], "default": ["neural"], "dest": "methods"}
    fitting.add_argument("--method", "--methods", **how)
    add("--seed N", "one or several", type=seed, nargs="+", default=[1])
    add("--labels FILE", "of the input: report the accuracy of clusters")
    add("--test FILE", "vectors to measure the accuracy on")
    add("--test-labels FILE", "of --test")
    add("--out PATH", "an .npz file: the centroids and all else that assigning needs")
    add("--json FILE", "every run, written after each")
    for method in ("neural", "kmeans", "som"):
        for item in fields(METHODS[method][0]):
            limits, flag = item.metadata["range"], f"--{method}-{item.name.replace('_', '-')}"
            how = {"type": type(item.default), "default": item.default}
            how["choices"] = limits.choices or None
            add(flag if limits.choices else f"{flag} X", item.metadata["help"], **how)
    assigning = commands.add_parser("assign", help="assign with what fit wrote")
    assigning.add("clusters PATH", "what fit --out wrote")
    assigning.add("input FILE", "as of fit")
    assigning.add("--out PATH", "an .npy file, int64 [N]", required=True)
    drawing = commands.add_parser("draw", help="draw centroids of images")
    drawing.add("clusters PATH", "what fit --out wrote")
    drawing.add("--out PATH", "the picture, a .png file", required=True)
    for command, run in ((fitting, run_fit), (assigning, run_assign), (drawing, run_draw)):
        add_force(command)
        command.set_defaults(run=run)
    return main_parser


@contextmanager
def output(args: Namespace, name: str = "out") -> Iterator[IO[bytes]]:
    """The file of --out or --json, which is written whole or not at all, over no input."""
    option, path = f"--{name}", getattr(args, name)
    with whole_file(option, path, **_how(args)) as new, open(new, "wb") as file:
        yield file


def _how(args: Namespace) -> dict:
    names = ("input", "labels", "test", "test_labels", "clusters")
    given = (path for name, path in vars(args).items() if name in names)
    return {"inputs": [path for path in given if path is not None], "force": args.force}


def run_fit(args: Namespace) -> None:
    """Fit every method, K and seed asked for; print a table of means over seeds. Raises UserError
    before any fitting, for what is not allowed."""
    methods = list(METHODS) if "all" in args.methods else list(dict.fromkeys(args.methods))
    options = {method: _options(args, method) for method in methods}
    plan = list(product(methods, args.num_clusters, args.seed))
    x, labels, test, test_labels = _data(args)
    for method, num_clusters, _ in plan:
        check(method, num_clusters, len(x), options[method])
    if args.out is not None and (len(plan) > 1 or args.out.suffix != ".npz"):
        allowed = "a name that ends in .npz, for one fit"
        raise bad_option("--out", args.out, allowed, f"fits: {len(plan)}")
    for name in ("out", "json"):
        if (path := getattr(args, name)) is not None:
            check_output(f"--{name}", path, **_how(args))

    rows: list[dict] = []
    for method, num_clusters, seed in plan:
        start = time.perf_counter()
        clusters = fit(method, x, num_clusters, seed=seed, options=options[method])
        seconds = round(time.perf_counter() - start, 1)
        assigned = clusters.assign(x)
        use = cluster_use(assigned.bincount(minlength=num_clusters))
        row = {"method": method, "k": num_clusters, "seed": seed, "seconds": seconds}
        row |= {"options": asdict(options[method]), "effective": round(float(use.effective), 2)}
        row["empty"] = int(use.empty)
        if labels is not None:
            accuracy = partial(majority_accuracy, assigned, labels)
            row["train accuracy"] = accuracy(assigned, labels)
            if test is not None:
                row["accuracy"] = accuracy(clusters.assign(test), test_labels)
        rows.append(row)
        if args.out is not None:
            with output(args) as file:
                clusters.save(file)
        if args.json is not None:
            command = f"{PROGRAM} {shlex.join(args.words)}"
            record = provenance(command, threads=torch.get_num_threads())
            record |= {"shape": list(x.shape), "rows": rows}
            with output(args, "json") as file:
                file.write(f"{json.dumps(record, indent=1)}\n".encode())
    print(table(rows))


def _options(args: Namespace, method: str) -> Options:
    kind, prefix = METHODS[method][0], method.removeprefix("spherical-")
    return kind(**{f.name: getattr(args, f"{prefix}_{f.name}") for f in fields(kind)})


def _data(args: Namespace) -> tuple[np.ndarray, Tensor | None, np.ndarray | None, Tensor | None]:
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


def table(rows: list[dict]) -> str:
    """One line per method and K, over its seeds."""
    shares = [name for name in ("accuracy", "train accuracy") if name in rows[0]]
    lines = []
    for key in dict.fromkeys((row["method"], row["k"]) for row in rows):
        own = [row for row in rows if (row["method"], row["k"]) == key]
        cells = [cell([100 * row[name] for row in own], 2) for name in shares]
        cells += [cell([row[name] for row in own]) for name in ("effective", "empty", "seconds")]
        lines.append([*key, *cells])
    heads = [f"{name} (%)" for name in shares]
    return markdown(["method", "k", *heads, "effective clusters", "empty", "seconds"], lines)


def run_assign(args: Namespace) -> None:
    """Write the cluster of each row, and print how evenly clusters are used."""
    check_output("--out", args.out, **_how(args))
    clusters = load_clusters(args.clusters)
    assigned = clusters.assign(read_matrix(args.input))
    with output(args) as file:
        np.save(file, assigned.numpy())
    effective = cluster_use(assigned.bincount(minlength=len(clusters.centroids))).effective
    print(f"{len(assigned):,} vectors in {float(effective):.1f} effective clusters: {args.out}")


def run_draw(args: Namespace) -> None:
    """Draw all centroids as images; dark is high, and each image has a scale of its own."""
    from matplotlib.image import imsave

    check_output("--out", args.out, **_how(args))
    image = picture(args.clusters).numpy()
    with output(args) as file:
        imsave(file, image, cmap="gray_r", vmin=0, vmax=1, format="png")
    print(f"{len(load_clusters(args.clusters).centroids)} centroids: {args.out}")


def main(words: Sequence[str]) -> int:
    args = parser().parse_args(words, Namespace(words=words))
    args.run(args)
    return 0


if __name__ == "__main__":
    logging.disable(logging.INFO)
    sys.exit(program(PROGRAM, main, sys.argv[1:]))
