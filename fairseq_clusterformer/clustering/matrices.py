"""Matrices and labels from files: npy, csv and the idx format of MNIST, gzipped or not."""

import gzip
import zlib
from pathlib import Path

import numpy as np

FORMATS = ".npy, .csv and idx-ubyte files, each with .gz behind it or not"
_IDX_UNSIGNED_BYTE = 8
_UNSOUND = (
    OSError,
    EOFError,
    zlib.error,
    ValueError,
)  # of a file that is cut off or something else


class InputError(ValueError):
    """What a file or an option holds cannot be clustered. The message is one line."""


def read_matrix(path: Path) -> np.ndarray:
    """Read vectors, one per row, as float32 [N, D]; images of an idx file are flattened.

    Raises:
        InputError: no such file, damaged, not a matrix, empty, or a number that is not finite.
    """
    values = _read(path)
    if values.ndim > 2 and values.dtype == np.uint8:
        values = values.reshape(len(values), -1)
    if values.ndim != 2 or 0 in values.shape:
        raise InputError(f"{path} has shape {values.shape}; allowed: a matrix of 1 row or more")
    if values.dtype.kind not in "fiub":
        raise InputError(f"{path} holds {values.dtype}; allowed: numbers")
    with np.errstate(over="ignore"):
        matrix = np.ascontiguousarray(values, dtype=np.float32)
    wrong = ~np.isfinite(matrix)
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise InputError(
            f"{path} holds {values[row, column]} at row {row}, column {column} (counted from 0); "
            "allowed: finite float32 numbers"
        )
    return matrix


def read_labels(path: Path, length: int, of: Path) -> np.ndarray:
    """Read one whole number of 0 or more per row of the matrix in the file `of`, as int64 [N].

    Raises:
        InputError: no such file, damaged, not such numbers, or not `length` of them.
    """
    values = _read(path)
    if values.ndim == 2 and 1 in values.shape:
        values = values.reshape(-1)
    if values.ndim != 1:
        raise InputError(f"{path} has shape {values.shape}; allowed: one label per row")
    if values.dtype.kind not in "fiub" or not np.all(values == np.floor(values)):
        raise InputError(f"{path}: labels are not whole numbers; allowed: 0 or more")
    if len(values) and values.min() < 0:
        raise InputError(f"{path} holds the label {values.min():.0f}; allowed: 0 or more")
    if len(values) != length:
        raise InputError(
            f"{path} holds {len(values):,} labels; allowed: {length:,}, one per row of {of}"
        )
    return values.astype(np.int64)


def _read(path: Path) -> np.ndarray:
    kind = path.name.removesuffix(".gz")
    try:
        with gzip.open(path) if path.name.endswith(".gz") else open(path, "rb") as file:
            if kind.endswith(".npy"):
                return np.lib.format.read_array(file, allow_pickle=False)
            if kind.endswith(".csv"):
                return np.loadtxt(file, delimiter=",", ndmin=2)
            if kind.endswith("ubyte"):
                return _idx(file.read())
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except _UNSOUND as error:
        raise InputError(f"{path} cannot be read: {error}; allowed: {FORMATS}") from None
    raise InputError(f"{path}: not a known format; allowed: {FORMATS}")


def _idx(content: bytes) -> np.ndarray:
    """Bytes of any shape; two zeros, the type, the number of sizes and the sizes come first."""
    if len(content) < 4 or content[:3] != bytes([0, 0, _IDX_UNSIGNED_BYTE]):
        raise ValueError(f"begins with {content[:4].hex(' ')}, and idx of bytes with 00 00 08")
    header = 4 + 4 * content[3]
    shape = np.frombuffer(content[:header], ">u4", offset=4).tolist()
    if len(content) - header != np.prod(shape, dtype=object):
        raise ValueError(f"{len(content) - header:,} bytes for the shape {tuple(shape)}")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)
