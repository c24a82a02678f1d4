"""Matrices and labels from files: npy, csv and the idx format of MNIST, gzipped or not."""

import gzip
from pathlib import Path

import numpy as np

from fairseq_clusterformer.errors import bad_option, reading

FORMATS = ".npy, .csv and idx-ubyte files, each with .gz behind it or not"


def read_matrix(path: Path) -> np.ndarray:
    """Read vectors, one per row, as float32 [N, D]; images of an idx file are flattened. Raises
    UserError: damaged, not a matrix, empty, or a number that is not finite."""
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


def read_labels(path: Path, of: Path, length: int) -> np.ndarray:
    """Read a whole number of 0 or more for each of ``length`` rows of the file ``of``, int64 [N].
    Raises UserError: damaged, not such numbers, or not as many."""
    values = _read(path).squeeze()
    if values.shape != (length,) or (values < 0).any() or (values % 1 != 0).any():
        allowed = f"whole numbers of 0 or more, one for each of the {length:,} rows of {of}"
        raise bad_option("the file", path, allowed, f"labels of shape {values.shape}")
    return values.astype(np.int64)


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
