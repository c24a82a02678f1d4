"""Fitted clusters: they assign vectors, and are kept in files.

Shape letters: N vectors, D width, K clusters.
"""

import zipfile
import zlib
from pathlib import Path
from typing import IO

import numpy as np
import torch
from torch import Tensor

from .fuzzy import SIMILARITIES
from .matrices import InputError
from .neural import NeuralClustering

AT_ONCE = 4096  # vectors that are assigned at once


class Unprojected(NeuralClustering):
    """Neural clustering whose W_c is the identity, which nothing is multiplied by."""

    def __init__(self, embed_dim: int, num_clusters: int, **options):
        super().__init__(embed_dim, num_clusters, **options)
        del self.w_c

    def _keys(self, x: Tensor) -> Tensor:
        return x


class NeuralClusters:
    """Learned fuzzy clusters: each vector goes where eq. 4 puts it, with eq. 2 over all of x.

    Attributes:
        clustering: its normaliser is "average", here the mean over the vectors it learned from,
            so that a vector's cluster does not depend on what else is assigned.
    """

    def __init__(self, clustering: NeuralClustering):
        self.clustering = clustering.eval()

    @property
    def centroids(self) -> Tensor:
        """Float32 [K, D], in the space of X W_c."""
        return self.clustering.centroids.detach()

    @torch.no_grad()
    def assign(self, x: np.ndarray | Tensor) -> Tensor:
        """The cluster of each vector: x [N, D] to int64 [N].

        Raises:
            InputError: vectors of another width.
        """
        parts = _vectors(x, self.centroids).split(AT_ONCE)
        return torch.cat(
            [self.clustering.assign(part.unsqueeze(0))[0].squeeze(0) for part in parts]
        )

    def save(self, file: Path | str | IO[bytes]) -> None:
        """Write all that :meth:`assign` needs as an npz file of arrays."""
        learned = {"centroids": self.centroids.numpy()}
        if not isinstance(self.clustering, Unprojected):
            learned["w_c"] = self.clustering.w_c.weight.detach().numpy()
        np.savez(
            file,
            **learned,
            log_normalizer=self.clustering.log_normalizer.numpy(),
            similarity=np.array(self.clustering.similarity.kind),
            temperature=np.array(self.clustering.temperature),
        )


class NearestCentroids:
    """Clusters of K-Means and of self-organising maps.

    Attributes:
        centroids: float32 [K, D].
        spherical: nearest by cosine; else by Euclidean distance.
    """

    def __init__(self, centroids: Tensor, *, spherical: bool = False):
        self.centroids, self.spherical = centroids, spherical

    def assign(self, x: np.ndarray | Tensor) -> Tensor:
        """The cluster of each vector: x [N, D] to int64 [N].

        Raises:
            InputError: vectors of another width.
        """
        import faiss

        x = _vectors(x, self.centroids)
        index = (faiss.IndexFlatIP if self.spherical else faiss.IndexFlatL2)(x.size(-1))
        # the nearest by cosine: a vector's length does not matter
        index.add(self.centroids.numpy())
        return torch.from_numpy(index.search(x.numpy(), 1)[1][:, 0])

    def save(self, file: Path | str | IO[bytes]) -> None:
        """Write all that :meth:`assign` needs as an npz file of arrays."""
        np.savez(file, centroids=self.centroids.numpy(), spherical=np.array(self.spherical))


Clusters = NeuralClusters | NearestCentroids


def load_clusters(path: Path | str) -> Clusters:
    """Read what ``save`` of either class wrote.

    Raises:
        InputError: it is something else.
    """
    try:
        arrays = _arrays(path)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, EOFError, ValueError, zlib.error, zipfile.BadZipFile) as error:
        raise InputError(
            f"{path}: not fitted clusters ({error}); allowed: a file that --out wrote"
        ) from None
    centroids = torch.from_numpy(arrays["centroids"])
    if "spherical" in arrays:
        return NearestCentroids(centroids, spherical=bool(arrays["spherical"]))
    clustering = (NeuralClustering if "w_c" in arrays else Unprojected)(
        centroids.size(1),
        centroids.size(0),
        similarity=str(arrays["similarity"]),
        temperature=float(arrays["temperature"]),
        normalizer="average",
    )
    with torch.no_grad():
        clustering.centroids.copy_(centroids)
        if "w_c" in arrays:
            clustering.w_c.weight.copy_(torch.from_numpy(arrays["w_c"]))
        clustering.log_normalizer.copy_(torch.from_numpy(arrays["log_normalizer"]))
    return NeuralClusters(clustering)


def _arrays(path: Path | str) -> dict[str, np.ndarray]:
    """Return the arrays of fitted clusters.

    Raises:
        ValueError: an array is missing, or has another type or shape; or it holds other objects.
    """
    try:
        content = np.load(path, allow_pickle=False)
        arrays = None
        if isinstance(content, np.lib.npyio.NpzFile):
            with content:
                arrays = {name: np.asarray(content[name]) for name in content.files}
    except ValueError:  # numpy advises to unpickle it, which runs whatever it says
        raise ValueError("it holds something else than arrays of numbers and text") from None
    if arrays is None:
        raise ValueError("one array, not several")  # an npy file
    if "centroids" not in arrays:
        raise ValueError("no centroids")
    shape = arrays["centroids"].shape
    if len(shape) != 2 or 0 in shape:
        raise ValueError(f"centroids have shape {shape}, not [K, D]")
    num_clusters, width = shape
    expected: dict[str, tuple[str, tuple[int, ...]]] = {"centroids": ("float32", shape)}
    if "spherical" in arrays:
        expected["spherical"] = ("bool", ())
    else:
        expected["log_normalizer"] = ("float32", (num_clusters,))
        expected |= {"similarity": ("str", ()), "temperature": ("float64", ())}
        if "w_c" in arrays:
            expected["w_c"] = ("float32", (width, width))
    for name, (kind, shape) in expected.items():
        if name not in arrays:
            raise ValueError(f"no {name}")
        array = arrays[name]
        found = "str" if array.dtype.kind == "U" else str(array.dtype)
        if (found, array.shape) != (kind, shape):
            raise ValueError(f"{name} is {found} {array.shape}, not {kind} {shape}")
    if "similarity" in expected and str(arrays["similarity"]) not in SIMILARITIES:
        raise ValueError(f"similarity is {arrays['similarity']}")
    return arrays


def _vectors(x: np.ndarray | Tensor, centroids: Tensor) -> Tensor:
    x = torch.as_tensor(x, dtype=torch.float32).contiguous()
    if x.dim() != 2 or x.size(1) != centroids.size(1):
        raise InputError(
            f"vectors of shape {tuple(x.shape)}; allowed: [N, {centroids.size(1)}], as fitted"
        )
    return x
