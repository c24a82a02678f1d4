"""Neural clustering of any matrix, compared with K-Means and a self-organising map (CF22
appendix A).

python -m examples.clustering fit X.npy --num-clusters 100 --out clusters.npz
python -m examples.clustering assign clusters.npz X.npy --out assigned.npy
python -m examples.clustering draw clusters.npz --out centroids.png
"""

import gzip
import json
import logging
import math
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from fairseq_clusterformer.cli.common import Parser, add_force, number
from fairseq_clusterformer.cli.main import program
from fairseq_clusterformer.clustering import cluster_use
from fairseq_clusterformer.errors import UserError, bad_option, reading
from fairseq_clusterformer.outputs import check_output, whole_file, write_text
from fairseq_clusterformer.ranges import Range

from .fit import CHOICES, METHODS, OPTIONS, check, fit, load_clusters

PROGRAM = "python -m examples.clustering"
FORMATS = ".npy, .csv and idx-ubyte files, each with .gz behind it or not"
COLUMNS, PIXELS = 10, 80  # of a picture of centroids: images in a row, and the side of each


def parser() -> Parser:
    main_parser = Parser(prog=PROGRAM, description=__doc__)
    commands = main_parser.add_subparsers(required=True, parser_class=Parser)
    fitting = commands.add_parser("fit", help="fit centroids to a matrix")
    add = fitting.add
    add("input FILE", f"vectors, one per row: {FORMATS}")
    add("--num-clusters N", "K", required=True)
    add("--method", "what fits them", choices=METHODS, default="neural")
    add("--seed N", "of all that is random", type=number(Range(0, whole=True)), default=1)
    add("--labels FILE", "of the input: report the accuracy of clusters")
    add("--test FILE", "vectors to measure the accuracy on")
    add("--test-labels FILE", "of --test")
    add("--out PATH", "an .npz file: the centroids and all else that assigning needs")
    add("--json FILE", "what is printed, and the options")
    for method, options in OPTIONS.items():
        for name, (default, about) in options.items():
            flag = f"--{method}-{name.replace('_', '-')}"
            if name in CHOICES:
                add(flag, about, default=default, choices=CHOICES[name])
                continue
            limits = Range(1, whole=True) if isinstance(default, int) else Range(above=0)
            limits = limits if default else Range(0)
            add(f"{flag} X", about, default=default, type=number(limits))
    assigning = commands.add_parser("assign", help="assign with what fit wrote")
    assigning.add("clusters PATH", "what fit --out wrote")
    assigning.add("input FILE", "as of fit")
    assigning.add("--out PATH", "an .npy file, int64 [N]", required=True)
    drawing = commands.add_parser("draw", help="draw centroids of images")
    drawing.add("clusters PATH", "what fit --out wrote")
    drawing.add("--out PATH", "the picture, a .png file", required=True)
    for command, run in ((fitting, run_fit), (assigning, run_assign), (drawing, run_draw)):
        add_force(command)
        command.set_defaults(run=run, json=None)
    return main_parser


def guards(args: Namespace) -> dict:
    """What :func:`check_output` is told of each output."""
    names = ("input", "labels", "test", "test_labels", "clusters")
    given = (path for name, path in vars(args).items() if name in names)
    return {"inputs": [path for path in given if path is not None], "force": args.force}


@contextmanager
def output(args: Namespace) -> Iterator[IO[bytes]]:
    """The file of --out, which is written whole or not at all, over no input."""
    with whole_file("--out", args.out, **guards(args)) as new, open(new, "wb") as file:
        yield file


def run_fit(args: Namespace) -> None:
    """Fit centroids; print the seconds, how evenly clusters are used, and their accuracy."""
    told = {"--labels": args.labels, "--test": args.test, "--test-labels": args.test_labels}
    given = [name for name, path in told.items() if path is not None]
    if given not in ([], ["--labels"], [*told]):
        allowed = "--labels, or it with --test and --test-labels, or none"
        raise UserError(f"given are {' and '.join(given)}; allowed: {allowed}")
    if args.out is not None and args.out.suffix != ".npz":
        raise bad_option("--out", args.out, "a name that ends in .npz")
    x = read_matrix(args.input)
    if args.labels is not None:
        labels = read_labels(args.labels, args.input, len(x))
    if args.test is not None:
        test = read_matrix(args.test)
        if test.shape[1] != x.shape[1]:
            allowed = f"{x.shape[1]} columns, as {args.input}"
            raise bad_option("--test", args.test, allowed, f"it has {test.shape[1]}")
        test_labels = read_labels(args.test_labels, args.test, len(test))
    check(args.method, args.num_clusters, len(x))
    start, own = time.perf_counter(), args.method.removeprefix("spherical-")
    options = {name: getattr(args, f"{own}_{name}") for name in OPTIONS[own]}
    clusters = fit(args.method, x, args.num_clusters, seed=args.seed, **options)
    row = {"seconds": round(time.perf_counter() - start, 1)}
    assigned = clusters.assign(x)
    use = cluster_use(assigned.bincount(minlength=args.num_clusters))
    row |= {"effective": round(float(use.effective), 2), "empty": int(use.empty)}
    if args.labels is not None:
        row["train accuracy"] = majority_accuracy(assigned, labels, assigned, labels)
    if args.test is not None:
        parts = (assigned, labels, clusters.assign(test), test_labels)
        row["accuracy"] = majority_accuracy(*parts)
    if args.out is not None:
        with output(args) as file:
            clusters.save(file)
    if args.json is not None:
        how = {"method": args.method, "k": args.num_clusters, "seed": args.seed}
        text = json.dumps({**how, **row, "options": options})
        write_text("--json", args.json, f"{text}\n", **guards(args))
    for name, value in row.items():
        print(f"{name:14} {value:.6g}")


def majority_accuracy(
    train_clusters: Tensor, train_labels: Tensor, clusters: Tensor, labels: Tensor
) -> float:
    """Share of vectors that have their cluster's label, from 0 to 1: the most frequent one of its
    members in training (the lowest of several); a vector in a cluster that had none counts as
    wrong. All int64, [N] of training and [M]."""
    size = (int(max(train_clusters.max(), clusters.max())) + 1, int(train_labels.max()) + 1)
    pairs = train_clusters * size[1] + train_labels
    counts = pairs.bincount(minlength=size[0] * size[1]).view(size)
    majority = torch.where(counts.amax(1) > 0, counts.argmax(1), -1)
    return float((majority[clusters] == labels).double().mean())


def run_assign(args: Namespace) -> None:
    """Write the cluster of each row, and print how evenly clusters are used."""
    clusters = load_clusters(args.clusters)
    assigned = clusters.assign(read_matrix(args.input))
    with output(args) as file:
        np.save(file, assigned.numpy())
    effective = cluster_use(assigned.bincount(minlength=len(clusters.centroids))).effective
    print(f"{len(assigned):,} vectors in {float(effective):.1f} effective clusters: {args.out}")


def run_draw(args: Namespace) -> None:
    """Draw all centroids as images in rows; dark is high, and each has a scale of its own."""
    try:
        from matplotlib.image import imsave
    except ImportError as error:
        allowed = 'pip install ".[clustering]" in the clone'
        raise UserError(f"draw needs matplotlib ({error}); allowed: {allowed}") from None
    centroids = load_clusters(args.clusters).centroids
    side = math.isqrt(centroids.size(1))
    if side * side != centroids.size(1):
        problem = f"they have {centroids.size(1)} values each"
        allowed = "centroids of square images, such as 28 x 28"
        raise bad_option("the file", args.clusters, allowed, problem)
    columns = min(COLUMNS, len(centroids))
    images = centroids.clamp(min=0).unflatten(1, (side, side))
    images = images / images.amax((1, 2), keepdim=True).clamp(min=1e-9)
    for axis in (1, 2):
        images = images.repeat_interleave(max(1, PIXELS // (side + 2)), axis)
    images = pad(images, (1, 1, 1, 1, 0, -len(images) % columns))
    image = images.unflatten(0, (-1, columns)).transpose(1, 2).flatten(2).flatten(0, 1)
    with output(args) as file:
        imsave(file, image.numpy(), cmap="gray_r", vmin=0, vmax=1, format="png")
    print(f"{len(centroids)} centroids: {args.out}")


def read_matrix(path: Path) -> np.ndarray:
    """Read vectors, one per row, as float32 [N, D]. Raises UserError for anything else."""
    values = _read(path)
    if values.ndim > 2 and values.dtype == np.uint8:
        values = values.reshape(len(values), -1)
    with reading(path, FORMATS), np.errstate(over="ignore"):
        matrix = np.ascontiguousarray(values, dtype=np.float32)
    finite = np.isfinite(matrix)
    if matrix.ndim != 2 or not matrix.size or not finite.all():
        problem = f"shape {matrix.shape}, of which {(~finite).sum():,} are not finite float32"
        raise bad_option("the file", path, "a matrix of finite numbers, 1 row or more", problem)
    return matrix


def read_labels(path: Path, of: Path, length: int) -> Tensor:
    """Read a whole number of 0 or more for each row of a file, int64 [N]; UserError else."""
    values = _read(path).squeeze()
    if values.shape != (length,) or (values < 0).any() or (values % 1 != 0).any():
        allowed = f"whole numbers of 0 or more, one for each of the {length:,} rows of {of}"
        raise bad_option("the file", path, allowed, f"labels of shape {values.shape}")
    return torch.from_numpy(values.astype(np.int64))


def _read(path: Path) -> np.ndarray:
    kind = path.name.removesuffix(".gz")
    if not kind.endswith((".npy", ".csv", "ubyte")):
        raise bad_option("the file", path, FORMATS, "not a known format")
    opened = gzip.open if path.suffix == ".gz" else open
    with reading(path, FORMATS), opened(path, "rb") as file:
        if kind.endswith(".csv"):
            return np.loadtxt(file, delimiter=",", ndmin=2)
        if kind.endswith(".npy"):
            return np.lib.format.read_array(file, allow_pickle=False)
        # idx of bytes: two zeros, the type (8), the number of sizes, the sizes, the numbers
        if file.read(3) != b"\0\0\x08":
            raise ValueError("it does not begin with 00 00 08, as idx of bytes")
        shape = np.frombuffer(file.read(4 * file.read(1)[0]), ">u4")
        return np.frombuffer(file.read(), np.uint8).reshape(shape.tolist())


def main(words: Sequence[str]) -> int:
    args = parser().parse_args(words, Namespace(words=words))
    for option, path in (("--out", args.out), ("--json", args.json)):
        if path is not None:
            check_output(option, path, **guards(args))  # before any work
    args.run(args)
    return 0


if __name__ == "__main__":
    logging.disable(logging.INFO)
    sys.exit(program(PROGRAM, main, sys.argv[1:]))
