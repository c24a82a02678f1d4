"""Readers of matrices and labels: every format gives the same numbers, and bad files are named."""

import gzip
import io
import struct

import numpy as np
import pytest

from fairseq_clusterformer.clustering.matrices import InputError, read_labels, read_matrix

NUMBERS = np.arange(24, dtype=np.uint8).reshape(4, 6) * 10


def idx(array: np.ndarray) -> bytes:
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return header + array.tobytes()


def content(name: str, array: np.ndarray, folder) -> bytes:
    plain = folder / name.removesuffix(".gz")
    if ".npy" in name:
        np.save(plain, array)
    elif ".csv" in name:
        np.savetxt(plain, array, delimiter=",", fmt="%d")
    else:
        plain.write_bytes(idx(array))
    data = plain.read_bytes()
    return gzip.compress(data, mtime=0) if name.endswith(".gz") else data


@pytest.mark.parametrize("gz", ["", ".gz"])
@pytest.mark.parametrize("name", ["x.npy", "x.csv", "x-idx3-ubyte", "x.idx1-ubyte"])
def test_every_format(name, gz, tmp_path):
    path = tmp_path / (name + gz)
    path.write_bytes(content(path.name, NUMBERS, tmp_path))
    matrix = read_matrix(path)
    assert matrix.dtype == np.float32
    assert matrix.tolist() == NUMBERS.tolist()
    labels = tmp_path / ("y" + name + gz)
    labels.write_bytes(content(labels.name, NUMBERS[:, 1], tmp_path))
    assert read_labels(labels, 4, path).tolist() == [10, 70, 130, 190]


def test_images_are_flattened_row_by_row(tmp_path):
    (tmp_path / "images-idx3-ubyte").write_bytes(idx(NUMBERS.reshape(2, 3, 4)))
    matrix = read_matrix(tmp_path / "images-idx3-ubyte")
    assert matrix.tolist() == NUMBERS.reshape(2, 12).tolist()


def npy(array) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


WITH_NAN = np.where(NUMBERS == 80, np.nan, NUMBERS.astype(float))


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("x.npy", npy(WITH_NAN), "nan at row 1, column 2 .* finite"),
        ("x.npy", npy(np.full((2, 2), 1e300)), r"1e\+300 at row 0, column 0"),
        ("x.csv", b"1,2\n3,nan\n", "nan at row 1, column 1"),
        ("x.npy", npy(np.zeros((2, 3, 4))), r"shape \(2, 3, 4\); allowed: a matrix"),
        ("x.npy", npy(np.zeros((0, 4))), r"shape \(0, 4\)"),
        ("x.npy", npy(np.zeros(4)), r"shape \(4,\)"),
        ("x.npy", npy(np.array([["a", "b"]])), "<U1; allowed: numbers"),
        ("x.npy", npy(np.array([[{}]], dtype=object)), "cannot be read: Object arrays"),
        ("x.npy", npy(NUMBERS)[:-3], "cannot be read"),
        ("x.npy", b"no numpy", "cannot be read"),
        ("x.csv", b"1,2\n3\n", "cannot be read"),
        ("x.csv", b"1,two\n", "cannot be read"),
        ("x-ubyte", idx(NUMBERS)[:-1], r"cannot be read: 23 bytes for the shape \(4, 6\)"),
        ("x-ubyte", idx(NUMBERS) + b"1", "25 bytes for the shape"),
        ("x-ubyte", idx(NUMBERS)[:6], "cannot be read"),
        ("x-ubyte", b"\0\0\x0d\2", "begins with 00 00 0d 02"),
        ("x-ubyte", b"", "begins with"),
        ("x-ubyte.gz", gzip.compress(idx(NUMBERS), mtime=0)[:-9], "cannot be read"),
        ("x-ubyte.gz", idx(NUMBERS), "cannot be read: Not a gzipped file"),
        ("x.txt", b"1,2\n", "not a known format; allowed: .npy"),
    ],
)
def test_bad_matrices_are_named(name, data, message, tmp_path):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match=message) as caught:
        read_matrix(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)


def test_flipped_bits_in_gz_are_named(tmp_path):
    damaged = bytearray(gzip.compress(idx(NUMBERS), mtime=0))
    damaged[len(damaged) // 2] ^= 0xFF
    (tmp_path / "x-ubyte.gz").write_bytes(damaged)
    with pytest.raises(InputError, match="cannot be read"):
        read_matrix(tmp_path / "x-ubyte.gz")


def test_no_such_file(tmp_path):
    with pytest.raises(InputError, match="none.npy: no such file"):
        read_matrix(tmp_path / "none.npy")


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 1, 2], "3 labels; allowed: 4, one per row of x.npy"),
        ([0, 1, 2, -1], "label -1; allowed: 0 or more"),
        ([0, 1, 2, 0.5], "not whole numbers"),
        ([0, 1, 2, np.nan], "not whole numbers"),
        ([[0, 1], [2, 3]], r"shape \(2, 2\); allowed: one label per row"),
    ],
)
def test_bad_labels_are_named(labels, message, tmp_path):
    np.save(tmp_path / "y.npy", np.array(labels))
    with pytest.raises(InputError, match=message):
        read_labels(tmp_path / "y.npy", 4, "x.npy")
