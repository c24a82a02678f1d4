"""Fitted clusters, in files too. Shape letters: N vectors, D width, K clusters."""

from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear

from fairseq_clusterformer.clustering.fuzzy import SIMILARITIES, Similarity, fuzzy_clusters
from fairseq_clusterformer.errors import UserError, reading
from fairseq_clusterformer.precision import full_float32


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
