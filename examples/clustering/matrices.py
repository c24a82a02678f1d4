"""Matrices and labels from files: npy, csv and the idx format of MNIST, gzipped or not."""

import gzip
from pathlib import Path

import numpy as np

from fairseq_clusterformer.errors import UserError, bad_option, reading

FORMATS = ".npy, .csv and idx-ubyte files, each with .gz behind it or not"


def read_matrix(path: Path) -> np.ndarray:
    """Read vectors, one per row, as float32 [N, D]; images of an idx file are flattened. Raises
    UserError: damaged, not a matrix, empty, or a number that is not finite."""
    values = _read(path)
    if values.ndim > 2 and values.dtype == np.uint8:
        values = values.reshape(len(values), -1)
    if values.ndim != 2 or 0 in values.shape:
        raise UserError(f"{path} has shape {values.shape}; allowed: a matrix of 1 row or more")
    with np.errstate(over="ignore"):
        matrix = np.ascontiguousarray(values, dtype=np.float32)
    if not (finite := np.isfinite(matrix)).all():
        row, column = np.argwhere(~finite)[0]
        problem = f"{values[row, column]} at row {row}, column {column} (counted from 0)"
        raise UserError(f"{path} holds {problem}; allowed: finite float32 numbers")
    return matrix


def read_labels(path: Path, of: Path, length: int) -> np.ndarray:
    """Read a whole number of 0 or more for each of ``length`` rows of the file ``of``, int64 [N].
    Raises UserError: damaged, not such numbers, or not as many."""
    values = _read(path).squeeze()
    if values.shape != (length,):
        allowed = f"({length},), a label for each row of {of}"
        raise UserError(f"{path}: labels have shape {values.shape}; allowed: {allowed}")
    if not np.all((values >= 0) & (values == np.floor(values))):
        raise UserError(f"{path}: labels are not whole numbers; allowed: 0 or more")
    return values.astype(np.int64)


def _read(path: Path) -> np.ndarray:
    kind = path.name.removesuffix(".gz")
    if not kind.endswith((".npy", ".csv", "ubyte")):
        raise bad_option("the file", path, FORMATS, "not a known format")
    with (
        reading(path, FORMATS),
        gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file,
    ):
        if kind.endswith(".csv"):
            return np.loadtxt(file, delimiter=",", ndmin=2)
        if kind.endswith("ubyte"):
            return _idx(file.read())
        values = np.lib.format.read_array(file, allow_pickle=False)
        if values.dtype.kind not in "fiub":
            raise ValueError(f"it holds {values.dtype}, not numbers")
        return values


def _idx(content: bytes) -> np.ndarray:
    """Bytes of any shape. The header: two zeros, the type (8), the number of sizes, the sizes."""
    if len(content) < 4 or content[:3] != bytes([0, 0, 8]):
        raise ValueError(f"begins with {content[:4].hex(' ')}, and idx of bytes with 00 00 08")
    header = 4 + 4 * content[3]
    shape = np.frombuffer(content[:header], ">u4", offset=4).tolist()
    if len(content) - header != np.prod(shape, dtype=object):
        raise ValueError(f"{len(content) - header:,} bytes for the shape {tuple(shape)}")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)
