"""The compiled kernels: each built on first use, and kept where PyTorch keeps its extensions.

That is ``$TORCH_EXTENSIONS_DIR``, by default ``~/.cache/torch_extensions``: in it, a folder that
nobody else may write to. The compiler is ``$CXX``, by default ``c++``. It needs OpenMP, and no
headers of PyTorch. There is one library for each source, type of number and width of rows (of
``step``, for all widths): lengths of loops are known then.
"""

import ctypes
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .bind import FOLDER, filled, mismatch

FLAGS = ("-std=c++17", "-O3", "-march=native", "-fopenmp", "-fPIC", "-shared")
# what computes and accumulates, and how q, k and v are stored
TYPES = {
    torch.float32: ("float", "float"),
    torch.bfloat16: ("float", "BFloat16"),
    torch.float64: ("double", "double"),
}

# OpenMP threads do not survive fork(). A forked child runs on one thread, or it would deadlock.
_PROCESS = os.getpid()

_LOADED: dict[tuple[torch.dtype, int, str], ctypes.CDLL | str] = {}  # or why there is none


def run(source: str, function: str, dtype: torch.dtype, width: int, /, **values: Any) -> None:
    """Call a function of a source for rows of a width, where :func:`why_missing` is None, with
    the source's struct of these values."""
    struct = filled(source, threads=threads(), **values)
    getattr(_loaded(dtype, width, source), f"run_{function}")(ctypes.byref(struct))


def threads() -> int:
    """How many a kernel may start here."""
    return torch.get_num_threads() if os.getpid() == _PROCESS else 1


def why_missing(dtype: torch.dtype, width: int, source: str = "attention") -> str | None:
    """Why there is no library for rows of a width; None: there is one."""
    loaded = _loaded(dtype, width, source)
    return loaded if isinstance(loaded, str) else None


def can_run(source: str, x: Tensor, width: int | None = None) -> bool:
    """Whether there is a library for rows of x [..., E], in float32 or float64 on a CPU."""
    known = x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64)
    width = x.size(-1) if width is None else width
    return known and why_missing(x.dtype, width, source) is None


def is_loaded(dtype: torch.dtype, width: int, source: str) -> bool:
    """Whether there is a library, and nobody has to wait for it."""
    return isinstance(_LOADED.get((dtype, width, source)), ctypes.CDLL)


def _loaded(dtype: torch.dtype, width: int, source: str) -> ctypes.CDLL | str:
    """The library, or why there is none."""
    key = dtype, width, source
    if dtype not in TYPES:
        return f"does not compute in {dtype}"
    if key in _LOADED:
        return _LOADED[key]
    try:
        library = ctypes.CDLL(str(build(*key)))
        _LOADED[key] = mismatch(source, library) or library
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines()
        reason = next((line for line in lines if "error" in line), f"status {error.returncode}")
        _LOADED[key] = f"cannot be built: {reason}"
    except (OSError, ValueError) as error:
        _LOADED[key] = f"cannot be built: {error}"
    return _LOADED[key]


def build(dtype: torch.dtype, width: int, source: str = "attention") -> Path:
    """Compile a kernel, unless it is there; several processes may do so at once. Raises OSError:
    no compiler, or no folder that belongs to this user alone; ValueError: ``$CXX`` is no command
    line; subprocess.CalledProcessError: the compiler failed."""
    from filelock import FileLock  # here, since it would slow down each import

    logging.getLogger("filelock").setLevel(logging.WARNING)
    number, stored = TYPES[dtype]
    flags = (*FLAGS, f"-DNUMBER={number}", f"-DSTORED={stored}", f"-DWIDTH={width}")
    folder = _own_folder()
    command = shlex.split(os.environ.get("CXX", "")) or ["c++"]
    missing = shutil.which(command[0]) is None
    made_for = repr((flags, _cpu(), platform.machine(), platform.libc_ver())).encode()
    files = [FOLDER / f"{source}.cpp", *sorted(FOLDER.glob("*.h"))]
    key = _digest(b"".join(file.read_bytes() for file in files) + made_for)
    name = f"{source}-{stored.lower()}-{width}-{key}"
    whole = f"{name}-{'*' if missing else _digest(_files(command))}-*.so"
    if found := _intact(folder, whole):
        return found
    if missing:
        raise FileNotFoundError(f"there is no compiler {command[0]}")
    with FileLock(folder / f"{name}.lock"), tempfile.TemporaryDirectory(dir=folder) as scratch:
        if found := _intact(folder, whole):  # somebody else has built it meanwhile
            return found
        made = Path(scratch, "made.so")
        subprocess.run(
            [*command, *flags, "-o", str(made), str(files[0])],
            check=True,
            capture_output=True,
            text=True,
        )
        path = folder / whole.replace("*", _digest(made.read_bytes()))
        os.replace(made, path)  # whole, or not there
    return path


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _intact(folder: Path, pattern: str) -> Path | None:
    """A library whose name ends in the digest of its bytes: to load half of one ends Python."""
    fitting = (p for p in folder.glob(pattern) if p.stem.endswith(_digest(p.read_bytes())))
    return next(fitting, None)


def _own_folder() -> Path:
    """Raises PermissionError where others could put a library into it."""
    from torch import _appdirs

    root = os.environ.get("TORCH_EXTENSIONS_DIR")
    root = root or _appdirs.user_cache_dir(appname="torch_extensions")
    user = os.getuid() if hasattr(os, "getuid") else None  # Windows has no such numbers
    folder = Path(root, "fairseq_clusterformer" + ("" if user is None else f"-{user}"))
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if user is not None and (found.st_uid != user or found.st_mode & 0o022):
        raise PermissionError(
            f"others may write to {folder}; allowed: a folder of this user's with mode 700"
        )
    return folder


def _files(command: list[str]) -> bytes:
    """Paths, sizes and times of a compiler's files: another version of it has others."""
    found = []
    for word in command:
        path = os.path.realpath(shutil.which(word) or word)
        state = os.stat(path) if os.path.isfile(path) else None
        found.append((path, state.st_size, state.st_mtime_ns) if state else word)
    return repr(found).encode()


@cache
def _cpu() -> list[str]:
    """What the compiler takes "native" from: folders may be shared by several machines."""
    names = ("flags", "Features", "model name", "CPU part")
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return [platform.machine(), platform.processor()]
    return sorted({line for line in lines if line.startswith(names)})
