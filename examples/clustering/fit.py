"""Clusters of any matrix: neural clustering on its own, and the methods it is compared with (CF22
appendix A).

    clusters = fit("neural", x, 100, seed=1)  # x: float32 [N, D]
    clusters.assign(x)                        # int64 [N]
    clusters.save("clusters.npz")             # load_clusters("clusters.npz") gives them back
"""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from tqdm import tqdm

from fairseq_clusterformer.attention.options import option
from fairseq_clusterformer.clustering import NeuralClustering
from fairseq_clusterformer.clustering.fuzzy import SIMILARITIES, fuzzy_clusters
from fairseq_clusterformer.clustering.kmeans import kmeans
from fairseq_clusterformer.errors import UserError, bad_option
from fairseq_clusterformer.precision import full_float32
from fairseq_clusterformer.ranges import strays

from .clusters import Clusters


@dataclass(frozen=True, kw_only=True)
class NeuralOptions:
    """How neural clustering learns on its own: minibatches, and Adam along a cosine."""

    epochs: int = option(5, "passes over INPUT", at_least=1)
    batch_size: int = option(500, "vectors over which eq. 2 is normalised in learning", at_least=1)
    learning_rate: float = option(
        0.1, "of Adam, by the first centroids' root mean square; falls to 0", above=0
    )
    similarity: str = option("cosine", "phi; dot is the paper's", choices=SIMILARITIES)
    temperature: float = option(0.1, "divides phi inside the exponent of eq. 2", above=0)
    w_c: str = option(
        "identity", "W_c of eq. 2; learned is the paper's", choices=("identity", "learned")
    )
    sorting_weight: float = option(0.0, "nu, of the centroid sorting loss (eq. 11)", at_least=0)


@dataclass(frozen=True, kw_only=True)
class KMeansOptions:
    """How faiss's K-Means learns, with and without ``spherical``."""

    iterations: int = option(25, "of each run, spherical-kmeans too", at_least=1)
    redos: int = option(3, "runs, the best by its loss is kept, spherical-kmeans too", at_least=1)


@dataclass(frozen=True, kw_only=True)
class SomOptions:
    """How MiniSom's self-organising map learns."""

    epochs: int = option(1, "vectors seen, in multiples of N", at_least=1)
    learning_rate: float = option(0.2, "the first; it falls to 0", above=0)
    sigma: float = option(1.0, "first width of the neighbourhood; it falls to a third", above=0)


Options = NeuralOptions | KMeansOptions | SomOptions


def fit(
    method: str,
    x: np.ndarray | Tensor,
    num_clusters: int,
    *,
    seed: int = 1,
    options: Options | None = None,
) -> Clusters:
    """Fit K centroids to vectors. Raises UserError: a value that is not allowed, or "som" without
    its library.

    Args:
        method: one of :data:`METHODS`.
        x: float32 [N, D], finite.
        num_clusters: K, from 1 to N.
        seed: of all that is random.
        options: of the method; its defaults if None.
    """
    x = torch.as_tensor(x, dtype=torch.float32)
    options = check(method, num_clusters, len(x), options)
    return METHODS[method][1](x, num_clusters, seed, options)


def check(method: str, num_clusters: int, length: int, options: Options | None = None) -> Options:
    """Raise what :func:`fit` would for ``length`` vectors; return the options it would take."""
    if method not in METHODS:
        raise bad_option("--method", method, ", ".join(METHODS))
    if not 1 <= num_clusters <= length:
        raise bad_option("--num-clusters", num_clusters, f"1 to N, here {length:,}")
    options = options or METHODS[method][0]()
    for problem in strays(vars(options), type(options)):
        raise UserError(problem.replace("--", f"--{method.removeprefix('spherical-')}-", 1))
    if method == "som" and importlib.util.find_spec("minisom") is None:
        needed = 'pip install ".[clustering]" in the clone'
        raise bad_option("--method", "som", needed, "minisom is not installed")
    return options


def _neural(x: Tensor, num_clusters: int, seed: int, options: NeuralOptions) -> Clusters:
    generator = torch.Generator().manual_seed(seed)
    first = x[torch.randperm(len(x), generator=generator)[:num_clusters]]
    shape = {"similarity": options.similarity, "temperature": options.temperature}
    # Each minibatch is a sentence: eq. 2 is normalised over it.
    learner = NeuralClustering(x.size(1), num_clusters, normalizer="sentence", **shape)
    with torch.no_grad():
        learner.centroids.copy_(learner.similarity.vectors(first))
    unit = options.learning_rate * float(learner.centroids.detach().square().mean().sqrt())
    groups = [{"params": [learner.centroids], "lr": unit}]
    if options.w_c == "learned":
        nn.init.eye_(learner.w_c.weight)
        # Slower by sqrt(D), since each number of X W_c is a sum of D.
        groups.append({"params": [learner.w_c.weight], "lr": unit / x.size(1) ** 0.5})
    else:
        learner.w_c = nn.Identity()
    size = min(options.batch_size, len(x))
    updates = options.epochs * (len(x) // size)
    optimizer = torch.optim.Adam(groups)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, updates)
    with tqdm(total=updates, desc=f"neural, K = {num_clusters}", leave=False, disable=None) as bar:
        for _ in range(options.epochs):
            order = torch.randperm(len(x), generator=generator)
            # Drop the rest of an epoch: eq. 2 over a handful of vectors is another one.
            for batch in order.split(size)[: len(x) // size]:
                _, report, _ = learner(x[batch].unsqueeze(0))
                loss = report.clustering_loss + options.sorting_weight * report.sorting_loss
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                bar.update()
    centroids = learner.centroids.detach()
    w_c = learner.w_c.weight.detach() if options.w_c == "learned" else None
    with torch.no_grad(), full_float32():
        keys = learner.w_c(x).unsqueeze(0)  # all of x as one sentence
        how = {**shape, "similarity": learner.similarity, "normalizer": "sentence"}
        log_mean = fuzzy_clusters(keys, centroids, **how).log_mass.squeeze(0) - np.log(len(x))
    return Clusters(centroids, log_normalizer=log_mean, w_c=w_c, **shape)


def _kmeans(
    x: Tensor, num_clusters: int, seed: int, options: KMeansOptions, *, spherical: bool = False
) -> Clusters:
    vectors, how = normalize(x, dim=-1) if spherical else x, vars(options)
    centroids = kmeans(vectors, num_clusters, spherical=spherical, seed=seed, **how)
    return Clusters(centroids, spherical=spherical)


def _som(x: Tensor, num_clusters: int, seed: int, options: SomOptions) -> Clusters:
    from minisom import MiniSom

    # The most square map of K units.
    rows = next(n for n in range(int(num_clusters**0.5), 0, -1) if num_clusters % n == 0)
    how = {"sigma": options.sigma, "learning_rate": options.learning_rate, "random_seed": seed}
    how["decay_function"] = "linear_decay_to_zero"
    how["sigma_decay_function"] = "asymptotic_decay"
    som = MiniSom(rows, num_clusters // rows, x.size(1), **how)
    som.random_weights_init(x.numpy())
    som.train(x.numpy(), options.epochs * len(x), random_order=True)
    units = som.get_weights().reshape(num_clusters, -1).astype(np.float32)
    return Clusters(torch.from_numpy(units), spherical=False)


METHODS: dict[str, tuple[type, Callable[..., Clusters]]] = {
    "neural": (NeuralOptions, _neural),
    "kmeans": (KMeansOptions, _kmeans),
    "spherical-kmeans": (KMeansOptions, partial(_kmeans, spherical=True)),
    "som": (SomOptions, _som),
}
"""The options of each method, and what fits it."""
