"""Clusters of any matrix: neural clustering on its own, and what it is compared with (CF22 A).
Shape letters: N vectors, D width, K clusters."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear, normalize
from tqdm import tqdm

from fairseq_clusterformer.clustering import NeuralClustering
from fairseq_clusterformer.clustering.fuzzy import SIMILARITIES, Similarity, fuzzy_clusters
from fairseq_clusterformer.clustering.kmeans import kmeans
from fairseq_clusterformer.errors import UserError, bad_option, reading
from fairseq_clusterformer.precision import full_float32

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
        """The cluster of each vector: x [N, D] to int64 [N]; UserError for another width."""
        x = torch.as_tensor(x, dtype=torch.float32).contiguous()
        if x.dim() != 2 or x.size(1) != self.centroids.size(1):
            allowed = f"[N, {self.centroids.size(1)}], as fitted"
            raise UserError(f"vectors have shape {tuple(x.shape)}; allowed: {allowed}")
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

    def save(self, file: Path | str | IO[bytes]) -> None:
        """Write all that :meth:`assign` needs as an npz file of arrays."""
        fields = {name: value for name, value in vars(self).items() if value is not None}
        np.savez(file, **{name: np.asarray(value) for name, value in fields.items()})


def load_clusters(path: Path | str) -> Clusters:
    """Read what ``save`` wrote; raises UserError if it is something else."""
    with reading(Path(path), "a file that --out wrote"):
        with np.lib.npyio.NpzFile(path, allow_pickle=False) as content:
            arrays = {name: content[name] for name in content.files}
        found = {n: torch.from_numpy(a) if a.ndim else a.item() for n, a in arrays.items()}
        clusters = Clusters(**found)
        neural = (clusters.log_normalizer, clusters.temperature)
        known = clusters.similarity in SIMILARITIES and all(each is not None for each in neural)
        if clusters.spherical is None and not known:
            raise ValueError("it is neither of K-Means nor neural")
        clusters.assign(torch.zeros(1, clusters.centroids.size(1)))  # that all of it fits
    return clusters


def fit(
    method: str, x: np.ndarray | Tensor, num_clusters: int, *, seed: int = 1, **options
) -> Clusters:
    """Fit K centroids to finite vectors, float32 [N, D]. `options` are those of the method in
    `OPTIONS`; the seed is of all that is random. Raises UserError as :func:`check`."""
    check(method, num_clusters, len(x))
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


def check(method: str, num_clusters: int, length: int) -> None:
    """Raise UserError: K is not 1 to `length`, or "som" is without its library."""
    if method not in METHODS:
        raise bad_option("--method", method, ", ".join(METHODS))
    if not 1 <= num_clusters <= length:
        raise bad_option("--num-clusters", num_clusters, f"1 to N, here {length:,}")
    if method == "som" and importlib.util.find_spec("minisom") is None:
        needed = 'pip install ".[clustering]" in the clone'
        raise bad_option("--method", "som", needed, "minisom is not installed")


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
    with tqdm(total=updates, desc=f"neural, K = {num_clusters}", leave=False, disable=None) as bar:
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
                bar.update()
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
