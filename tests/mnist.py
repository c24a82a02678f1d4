"""Little images of digits in four files as MNIST's."""

import gzip
import struct
from pathlib import Path

import numpy as np


def write_mnist(folder: Path) -> None:
    folder.mkdir()
    draw = np.random.default_rng(1)
    for name, number in (("train", 200), ("t10k", 60)):
        images = draw.integers(0, 256, (number, 4, 4), dtype=np.uint8)
        labels = draw.integers(0, 10, number, dtype=np.uint8)
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            head = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
            with gzip.open(folder / f"{name}-{kind}-ubyte.gz", "wb") as file:
                file.write(head + array.tobytes())
