"""Clusters of any matrix: neural clustering on its own, compared with K-Means and a
self-organising map (CF22 appendix A).

python -m examples.clustering fit X.npy --num-clusters 100 --out clusters.pt

Shape letters: N vectors, D width, K clusters.
"""

import gzip
import importlib.util
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear, normalize

from fairseq_clusterformer.cli.common import Parser, add_force, number
from fairseq_clusterformer.clustering import NeuralClustering
from fairseq_clusterformer.clustering.fuzzy import SIMILARITIES, Similarity, fuzzy_clusters
from fairseq_clusterformer.clustering.kmeans import kmeans
from fairseq_clusterformer.errors import UserError, bad_option, reading
from fairseq_clusterformer.metrics.clusters import cluster_use
from fairseq_clusterformer.outputs import check_output, whole_file, write_text
from fairseq_clusterformer.precision import full_float32
from fairseq_clusterformer.ranges import Range

NAME = "python -m examples.clustering"
FORMATS = ".npy, .csv and idx-ubyte files, each with .gz behind it or not"
METHODS = ("neural", "kmeans", "spherical-kmeans", "som")
#: the options of methods, each with its default and what it is; those of words have CHOICES
OPTIONS = {
    "neural": {
        "epochs": (5, "passes over INPUT"),
        "batch_size": (500, "vectors over which eq. 2 is normalised in learning"),
        "learning_rate": (0.1, "of Adam, by the first centroids' root mean square; falls to 0"),
        "similarity": ("cosine", "phi; dot is the paper's"),
        "temperature": (0.1, "divides phi inside the exponent of eq. 2"),
        "w_c": ("identity", "of eq. 2; learned is the paper's"),
        "sorting_weight": (0.0, "nu, of the centroid sorting loss (eq. 11)"),
    },
    "kmeans": {
        "iterations": (25, "of each run, spherical-kmeans too"),
        "redos": (3, "runs, the best by its loss is kept, spherical-kmeans too"),
    },
    "som": {
        "epochs": (1, "vectors seen, in multiples of N"),
        "learning_rate": (0.2, "the first; it falls to 0"),
        "sigma": (1.0, "first width of the neighbourhood; it falls to a third"),
    },
}
CHOICES = {"similarity": SIMILARITIES, "w_c": ("identity", "learned")}


@dataclass(frozen=True)
class Clusters:
    """Clusters of K-Means or of a map, which have ``spherical``, or neural ones, with the rest."""

    centroids: Tensor  # float32 [K, D]; neural ones are in the space of X W_c
    spherical: bool | None = None  # the nearest centroid is by cosine, else by distance
    #: log of the mean of exp(s) over the vectors that were learned from, [K]: eq. 2's denominator,
    #: so that a cluster does not depend on what else is assigned
    log_normalizer: Tensor | None = None
    similarity: str | None = None  # phi of eq. 2
    temperature: float | None = None  # that divides it
    w_c: Tensor | None = None  # W_c of eq. 2, [D, D]; None: the identity

    @torch.no_grad()
    @full_float32()
    def assign(self, x: np.ndarray | Tensor) -> Tensor:
        """The cluster of each vector: x [N, D] to int64 [N]."""
        x = torch.as_tensor(x, dtype=torch.float32).contiguous()
        if self.spherical is not None:
            import faiss

            # The nearest by cosine: a vector's own length does not matter.
            metric = faiss.METRIC_INNER_PRODUCT if self.spherical else faiss.METRIC_L2
            _, nearest = faiss.knn(x.numpy(), self.centroids.numpy(), 1, metric=metric)
            return torch.from_numpy(nearest[:, 0])
        keys = x if self.w_c is None else linear(x, self.w_c)  # CF22 eq. 4
        how = {"similarity": Similarity(self.similarity), "temperature": self.temperature}
        how |= {"normalizer": self.log_normalizer, "update": False}
        return fuzzy_clusters(keys.unsqueeze(0), self.centroids, **how).clusters.squeeze(0)


def fit(
    method: str, x: np.ndarray | Tensor, num_clusters: int, *, seed: int = 1, **options
) -> Clusters:
    """Fit K centroids to finite vectors, float32 [N, D]. `options` are those of the method in
    `OPTIONS`; the seed is of all that is random. Raises UserError: no such method, K is not 1 to
    N, or "som" is without its library."""
    if method not in METHODS:
        raise bad_option("--method", method, ", ".join(METHODS))
    if not 1 <= num_clusters <= len(x):
        raise bad_option("--num-clusters", num_clusters, f"1 to N, here {len(x):,}")
    if method == "som" and importlib.util.find_spec("minisom") is None:
        needed = 'pip install ".[clustering]" in the clone'
        raise bad_option("--method", "som", needed, "minisom is not installed")
    x = torch.as_tensor(x, dtype=torch.float32)
    own = method.removeprefix("spherical-")
    options = {name: default for name, (default, _) in OPTIONS[own].items()} | options
    if own == "neural":
        return _neural(x, num_clusters, seed, options)
    if own == "som":
        return _som(x, num_clusters, seed, **options)
    spherical = method != own
    vectors = normalize(x, dim=-1) if spherical else x
    found = kmeans(vectors, num_clusters, spherical=spherical, seed=seed, **options)
    return Clusters(found, spherical=spherical)


def _neural(x: Tensor, num_clusters: int, seed: int, how: dict[str, Any]) -> Clusters:
    generator = torch.Generator().manual_seed(seed)
    shape = {name: how[name] for name in ("similarity", "temperature")}
    first = x[torch.randperm(len(x), generator=generator)[:num_clusters]]
    # Each minibatch is a sentence: eq. 2 is normalised over it.
    learner = NeuralClustering(x.size(1), num_clusters, normalizer="sentence", **shape)
    with torch.no_grad():
        learner.centroids.copy_(learner.similarity.vectors(first))
    unit = how["learning_rate"] * float(learner.centroids.detach().square().mean().sqrt())
    groups = [{"params": [learner.centroids], "lr": unit}]
    if how["w_c"] == "learned":
        nn.init.eye_(learner.w_c.weight)
        # Slower by sqrt(D), since each number of X W_c is a sum of D.
        groups.append({"params": [learner.w_c.weight], "lr": unit / x.size(1) ** 0.5})
    else:
        learner.w_c = nn.Identity()
    size = min(how["batch_size"], len(x))
    updates = how["epochs"] * (len(x) // size)
    optimizer = torch.optim.Adam(groups)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, updates)
    for _ in range(how["epochs"]):
        order = torch.randperm(len(x), generator=generator)
        # Drop the rest of an epoch: eq. 2 over a handful of vectors is another one.
        for batch in order.split(size)[: len(x) // size]:
            _, report, _ = learner(x[batch].unsqueeze(0))
            optimizer.zero_grad()
            sorting = how["sorting_weight"] * report.sorting_loss
            (report.clustering_loss + sorting).backward()
            optimizer.step()
            schedule.step()
    centroids = learner.centroids.detach()
    weight = learner.w_c.weight.detach() if how["w_c"] == "learned" else None
    with torch.no_grad(), full_float32():
        keys = learner.w_c(x).unsqueeze(0)  # all of x as one sentence
        more = {**shape, "similarity": learner.similarity, "normalizer": "sentence"}
        log_mean = fuzzy_clusters(keys, centroids, **more).log_mass.squeeze(0) - np.log(len(x))
    return Clusters(centroids, log_normalizer=log_mean, w_c=weight, **shape)


def _som(x: Tensor, num_clusters: int, seed: int, *, epochs: int, **how: float) -> Clusters:
    from minisom import MiniSom

    # The most square map of K units.
    rows = next(n for n in range(int(num_clusters**0.5), 0, -1) if num_clusters % n == 0)
    how |= {"random_seed": seed, "decay_function": "linear_decay_to_zero"}
    how["sigma_decay_function"] = "asymptotic_decay"
    som = MiniSom(rows, num_clusters // rows, x.size(1), **how)
    som.random_weights_init(x.numpy())
    som.train(x.numpy(), epochs * len(x), random_order=True)
    units = som.get_weights().reshape(num_clusters, -1).astype(np.float32)
    return Clusters(torch.from_numpy(units), spherical=False)


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


def main(arguments: Sequence[str]) -> int:
    """Fit centroids; print the seconds, how evenly clusters are used, and their accuracy."""
    parser = Parser(prog=NAME, description=__doc__)
    add = parser.add
    add("command", "what to do", choices=("fit",), metavar="fit")
    add("input FILE", f"vectors, one per row: {FORMATS}")
    add("--num-clusters N", "K", required=True)
    add("--method", "what fits them", choices=METHODS, default="neural")
    add("--seed N", "of all that is random", type=number(Range(0, whole=True)), default=1)
    add("--labels FILE", "of the input, with --test and --test-labels: report the accuracy")
    add("--test FILE", "vectors to measure the accuracy on")
    add("--test-labels FILE", "of --test")
    add("--out PATH", "the fields of `Clusters`, as torch.load reads them")
    add("--json FILE", "what is printed, and the options")
    add_force(parser)
    for method, options in OPTIONS.items():
        for name, (default, about) in options.items():
            flag = f"--{method}-{name.replace('_', '-')}"
            if name in CHOICES:
                add(flag, about, default=default, choices=CHOICES[name])
                continue
            limits = Range(1, whole=True) if isinstance(default, int) else Range(above=0)
            limits = limits if default else Range(0)
            add(f"{flag} X", about, default=default, type=number(limits))
    args = parser.parse_args(arguments)
    told = {"--labels": args.labels, "--test": args.test, "--test-labels": args.test_labels}
    given = [name for name, path in told.items() if path is not None]
    if given not in ([], [*told]):
        raise UserError(f"given are {' and '.join(given)}; allowed: {', '.join(told)}, or none")
    inputs = [path for path in (args.input, *told.values()) if path is not None]
    how = {"inputs": inputs, "force": args.force}
    for option, path in (("--out", args.out), ("--json", args.json)):
        if path is not None:
            check_output(option, path, **how)  # before any work
    x = read_matrix(args.input)
    if given:
        labels, test = read_labels(args.labels, args.input, len(x)), read_matrix(args.test)
        if test.shape[1] != x.shape[1]:
            allowed = f"{x.shape[1]} columns, as {args.input}"
            raise bad_option("--test", args.test, allowed, f"it has {test.shape[1]}")
        test_labels = read_labels(args.test_labels, args.test, len(test))
    start, own = time.perf_counter(), args.method.removeprefix("spherical-")
    options = {name: getattr(args, f"{own}_{name}") for name in OPTIONS[own]}
    clusters = fit(args.method, x, args.num_clusters, seed=args.seed, **options)
    row = {"seconds": round(time.perf_counter() - start, 1)}
    assigned = clusters.assign(x)
    use = cluster_use(assigned.bincount(minlength=args.num_clusters))
    row |= {"effective": round(float(use.effective), 2), "empty": int(use.empty)}
    if given:
        row["train accuracy"] = majority_accuracy(assigned, labels, assigned, labels)
        found = clusters.assign(test)
        row["accuracy"] = majority_accuracy(assigned, labels, found, test_labels)
    if args.out is not None:
        with whole_file("--out", args.out, **how) as new:
            torch.save(vars(clusters), new)
    if args.json is not None:
        fitted = {"method": args.method, "k": args.num_clusters, "seed": args.seed}
        text = json.dumps({**fitted, **row, "options": options})
        write_text("--json", args.json, f"{text}\n", **how)
    for name, value in row.items():
        print(f"{name:14} {value:.6g}")
    return 0
