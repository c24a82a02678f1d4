"""Clusters of any matrix: neural clustering on its own, and the methods it is compared with.

    clusters = fit("neural", x, 100, seed=1)  # x: float32 [N, D]
    clusters.assign(x)                        # int64 [N]
    clusters.save("clusters.npz")             # load_clusters("clusters.npz") gives them back

CF22 appendix A. Shape letters: N vectors, D width, K clusters.
"""

import importlib.util
import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from .fitted import AT_ONCE, Clusters, NearestCentroids, NeuralClusters, Unprojected
from .fuzzy import SIMILARITIES
from .matrices import InputError
from .neural import NeuralClustering

W_C = ("identity", "learned")
_CHOICES = {"similarity": SIMILARITIES, "w_c": W_C}
_MAY_BE_ZERO = ("sorting_weight",)


@dataclass(frozen=True, kw_only=True)
class NeuralOptions:
    """How neural clustering learns on its own.

    Attributes:
        epochs: passes over the vectors.
        batch_size: vectors of a minibatch, over which eq. 2 is normalised as over a sentence's.
        learning_rate: Adam's first, falling to 0 along a cosine, in units of the root mean square
            of the first centroids' numbers: the same at any scale of the vectors.
        similarity: phi of eq. 2, 6 and 11: "cosine", "dot" (the paper's) or "scaled-dot".
        temperature: divides phi inside the exponent of eq. 2.
        w_c: "identity": W_c of eq. 2 and 3 stays the identity. "learned": it starts there.
        sorting_weight: nu, the weight of L2 (eq. 11); that of L1 (eq. 6) is 1.
    """

    epochs: int = 5
    batch_size: int = 500
    learning_rate: float = 0.1
    similarity: str = "cosine"
    temperature: float = 0.1
    w_c: str = "identity"
    sorting_weight: float = 0.0


@dataclass(frozen=True, kw_only=True)
class KMeansOptions:
    """How faiss's K-Means learns: of `redos` runs of `iterations`, the best by its own loss."""

    iterations: int = 25
    redos: int = 3


@dataclass(frozen=True, kw_only=True)
class SomOptions:
    """How MiniSom's self-organising map learns.

    Attributes:
        epochs: vectors seen, one at a time, in multiples of N.
        learning_rate: falls to 0 linearly.
        sigma: width of the neighbourhood in units of the map; falls to a third of it.
    """

    epochs: int = 1
    learning_rate: float = 0.2
    sigma: float = 1.0


Options = NeuralOptions | KMeansOptions | SomOptions


def fit(
    method: str,
    x: np.ndarray | Tensor,
    num_clusters: int,
    *,
    seed: int = 1,
    options: Options | None = None,
) -> Clusters:
    """Fit K centroids to vectors.

    Args:
        method: one of :data:`METHODS`.
        x: float32 [N, D], finite.
        num_clusters: K, from 1 to N.
        seed: of all that is random.
        options: of the method; its defaults if None.

    Raises:
        InputError: an unknown method, K above N or below 1, options of another method, or a value
            that is not allowed; or "som" without its library.
    """
    x = torch.as_tensor(x, dtype=torch.float32)
    options = check(method, num_clusters, len(x), options)
    return METHODS[method][1](x, num_clusters, seed, options)


def check(method: str, num_clusters: int, length: int, options: Options | None = None) -> Options:
    """Raise what :func:`fit` would for `length` vectors; return the options it would take."""
    if method not in METHODS:
        raise InputError(f"--method is {method}; allowed: {', '.join(METHODS)}")
    if not 1 <= num_clusters <= length:
        raise InputError(f"--num-clusters is {num_clusters}; allowed: 1 to N, here {length:,}")
    kind, _ = METHODS[method]
    options = kind() if options is None else options
    if not isinstance(options, kind):
        given = type(options).__name__
        raise InputError(f"options of {method} are {given}; allowed: {kind.__name__}")
    for name, value in vars(options).items():
        if name in _CHOICES:
            good, allowed = value in _CHOICES[name], ", ".join(_CHOICES[name])
        elif name in _MAY_BE_ZERO:
            good, allowed = 0 <= value < math.inf, "0 or more"
        else:
            good, allowed = 0 < value < math.inf, "above 0"
        if not good:
            raise InputError(f"{name} of {method} is {value}; allowed: {allowed}")
    if method == "som" and importlib.util.find_spec("minisom") is None:
        needed = 'pip install "fairseq_clusterformer[clustering]"'
        raise InputError(f"--method som needs the library minisom: {needed}")
    return options


def _neural(x: Tensor, num_clusters: int, seed: int, options: NeuralOptions) -> NeuralClusters:
    generator = torch.Generator().manual_seed(seed)
    first = x[torch.randperm(len(x), generator=generator)[:num_clusters]]
    shape = {"similarity": options.similarity, "temperature": options.temperature}
    # Learned with the paper's normaliser, over the minibatch; assigned with that over all of x.
    clustering = NeuralClustering if options.w_c == "learned" else Unprojected
    learner = clustering(x.size(1), num_clusters, normalizer="sentence", **shape)
    fitted = clustering(x.size(1), num_clusters, normalizer="average", **shape)
    with torch.no_grad():
        learner.centroids.copy_(learner.similarity.vectors(first))
    unit = options.learning_rate * float(learner.centroids.detach().square().mean().sqrt())
    groups = [{"params": [learner.centroids], "lr": unit}]
    if options.w_c == "learned":
        torch.nn.init.eye_(learner.w_c.weight)
        # As slow as that: each number of X W_c is a sum of D.
        groups.append({"params": [learner.w_c.weight], "lr": unit / x.size(1) ** 0.5})
    batch_size = min(options.batch_size, len(x))
    updates = options.epochs * (len(x) // batch_size)
    optimizer = torch.optim.Adam(groups)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, updates)
    with tqdm(total=updates, desc=f"neural, K = {num_clusters}", leave=False, disable=None) as bar:
        for _ in range(options.epochs):
            order = torch.randperm(len(x), generator=generator)
            # The rest of an epoch is left out: eq. 2 over a handful of vectors is another one.
            for batch in order.split(batch_size)[: len(x) // batch_size]:
                _, report, _ = learner.assign(x[batch].unsqueeze(0))
                loss = report.clustering_loss + options.sorting_weight * report.sorting_loss
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                bar.update()
    fitted.load_state_dict(learner.state_dict(), strict=False)
    with torch.no_grad():
        for part in x.split(AT_ONCE):
            fitted.observe(fitted.assign(part.unsqueeze(0))[1].observation)
    fitted.commit()
    return NeuralClusters(fitted)


def _kmeans(
    x: Tensor, num_clusters: int, seed: int, options: KMeansOptions, *, spherical: bool = False
) -> NearestCentroids:
    import faiss

    kmeans = faiss.Kmeans(
        x.size(1),
        num_clusters,
        niter=options.iterations,
        nredo=options.redos,
        seed=seed,
        spherical=spherical,
        min_points_per_centroid=1,
        max_points_per_centroid=len(x),  # all of them: faiss would sample
    )
    kmeans.train((torch.nn.functional.normalize(x, dim=-1) if spherical else x).numpy())
    return NearestCentroids(torch.from_numpy(kmeans.centroids.copy()), spherical=spherical)


def _spherical_kmeans(
    x: Tensor, num_clusters: int, seed: int, options: KMeansOptions
) -> NearestCentroids:
    return _kmeans(x, num_clusters, seed, options, spherical=True)


def _som(x: Tensor, num_clusters: int, seed: int, options: SomOptions) -> NearestCentroids:
    from minisom import MiniSom

    # The most square map of K units.
    rows = next(n for n in range(int(num_clusters**0.5), 0, -1) if num_clusters % n == 0)
    som = MiniSom(
        rows,
        num_clusters // rows,
        x.size(1),
        sigma=options.sigma,
        learning_rate=options.learning_rate,
        decay_function="linear_decay_to_zero",
        sigma_decay_function="asymptotic_decay",
        random_seed=seed,
    )
    som.random_weights_init(x.numpy())
    som.train(x.numpy(), options.epochs * len(x), random_order=True)
    units = som.get_weights().reshape(num_clusters, -1).astype(np.float32)
    return NearestCentroids(torch.from_numpy(units))


#: the options of each method, and what fits it
METHODS = {
    "neural": (NeuralOptions, _neural),
    "kmeans": (KMeansOptions, _kmeans),
    "spherical-kmeans": (KMeansOptions, _spherical_kmeans),
    "som": (SomOptions, _som),
}
