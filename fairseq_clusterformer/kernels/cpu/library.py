"""The compiled kernel: built on first use, and kept where PyTorch keeps its extensions.

That is ``$TORCH_EXTENSIONS_DIR``, by default ``~/.cache/torch_extensions``. The compiler is
``$CXX``, by default ``c++``. It needs OpenMP, and no headers of PyTorch. There is one library for
each type of number and width of heads: all lengths of loops are known then.
"""

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import torch

logger = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("attention.cpp")
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fopenmp", "-fPIC", "-shared")
# what computes and accumulates, and how q, k and v are stored
TYPES = {
    torch.float32: ("float", "float"),
    torch.bfloat16: ("float", "BFloat16"),
    torch.float64: ("double", "double"),
}


def functions(dtype: torch.dtype, width: int) -> ctypes.CDLL:
    """The functions of attention.cpp for heads of a width.

    Raises:
        ValueError: they cannot be built here.
    """
    loaded = _loaded(dtype, width)
    if isinstance(loaded, str):
        raise ValueError(f"the kernel is cpu, which {loaded}; allowed: blocks, reference")
    return loaded


def is_available(dtype: torch.dtype, width: int) -> bool:
    """Whether the kernel is there or can be built; says once in the log why not."""
    loaded = _loaded(dtype, width)
    if isinstance(loaded, str):
        _warn(f"the kernel cpu {loaded}; blocks takes its place")
    return not isinstance(loaded, str)


@cache
def _warn(message: str) -> None:
    logger.warning(message)


@cache
def _loaded(dtype: torch.dtype, width: int) -> ctypes.CDLL | str:
    """The library, or why there is none."""
    try:
        return ctypes.CDLL(str(build(dtype, width)))
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines()
        reason = next((line for line in lines if "error" in line), f"status {error.returncode}")
    except OSError as error:
        reason = str(error)
    return f"cannot be built: {reason}"


def build(dtype: torch.dtype, width: int) -> Path:
    """Compile the kernel, unless it is there; several processes may do so at once.

    Raises:
        OSError: no compiler, or the folder cannot be written to.
        subprocess.CalledProcessError: the compiler failed.
    """
    from filelock import FileLock  # here, since these would slow down each import
    from torch import _appdirs

    logging.getLogger("filelock").setLevel(logging.WARNING)
    number, stored = TYPES[dtype]
    flags = (*FLAGS, f"-DNUMBER={number}", f"-DSTORED={stored}", f"-DWIDTH={width}")
    root = os.environ.get("TORCH_EXTENSIONS_DIR")
    root = root or _appdirs.user_cache_dir(appname="torch_extensions")
    folder = Path(root, "fairseq_clusterformer")
    key = hashlib.sha256(SOURCE.read_bytes() + repr((flags, _cpu())).encode()).hexdigest()
    path = folder / f"attention-{stored.lower()}-{width}-{key[:16]}.so"
    if path.exists():
        return path
    compiler = os.environ.get("CXX", "c++")
    if shutil.which(compiler) is None:
        raise FileNotFoundError(f"there is no compiler {compiler}")
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")), tempfile.TemporaryDirectory(dir=folder) as scratch:
        if not path.exists():  # nobody else has built it meanwhile
            made = Path(scratch, path.name)
            command = [compiler, *flags, "-o", str(made), str(SOURCE)]
            subprocess.run(command, check=True, capture_output=True, text=True)
            os.replace(made, path)  # whole, or not there
    return path


@cache
def _cpu() -> list[str]:
    """What the compiler takes "native" from: folders may be shared by several machines."""
    names = ("flags", "Features", "model name", "CPU part")
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return [platform.machine(), platform.processor()]
    return sorted({line for line in lines if line.startswith(names)})
