"""The compiled kernels: each built on first use, and kept in a folder that nobody else may write
to, in ``$TORCH_EXTENSIONS_DIR``, by default ``~/.cache/torch_extensions``. The compiler is
``$CXX``, by default ``c++``; it needs OpenMP, and no headers of PyTorch. There is one library for
each source, type of number and width of rows: lengths of loops are known then. Each function takes
a pointer to the struct of its source, ``Step`` of step.cpp.
"""

import ctypes
import hashlib
import logging
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

FOLDER = Path(__file__).parent  # of the sources, and of what they include
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fopenmp", "-fPIC", "-shared")
NUMBERS = {torch.float32: "float", torch.float64: "double"}

# OpenMP threads do not survive fork(): a child has one, or may deadlock, unless it sets this.
PROCESS = os.getpid()

#: a library and its struct, or why there is none
_Loaded = tuple[ctypes.CDLL, type[ctypes.Structure]] | str
_LOADED: dict[tuple[torch.dtype, int, str], _Loaded] = {}


class _Tensor(ctypes.Structure):
    """``Tensor`` of simd.h: of [B or 1, H or 1, ...]. A dimension of size 1 is broadcast."""

    _fields_ = [("data", ctypes.c_void_p), ("strides", ctypes.c_int64 * 3)]

    @classmethod
    def of(cls, x: Tensor) -> "_Tensor":
        sizes = zip(x.shape[:3], x.stride(), strict=False)
        return cls(x.data_ptr(), tuple([0 if size == 1 else stride for size, stride in sizes]))


def run(source: str, function: str, dtype: torch.dtype, width: int, /, **values: Any) -> None:
    """Call a function of a source for rows of a width, where :func:`why_missing` is None. Its
    struct gets these values, and batch, heads and length of q; what is None or is not given is 0,
    or no tensor. Floating point is read in this dtype. A tensor that a pointer leads to is read in
    rows, and so is one that is not contiguous in its last dimension. All are copied if need be, so
    results are contiguous and in this dtype."""
    library, struct = _loaded(dtype, width, source)
    given = {"threads": torch.get_num_threads() if os.getpid() == PROCESS else 1}
    if "q" in values:
        given |= zip(("batch", "heads", "length"), values["q"].shape, strict=False)
    for name, value in values.items():
        if isinstance(value, Tensor):
            if value.is_floating_point():
                value = value.to(dtype)
            if name not in struct.strided or value.stride(-1) != 1:
                value = value.contiguous()
            values[name] = value  # in memory until the end
            given[name] = _Tensor.of(value) if name in struct.strided else value.data_ptr()
        elif value is not None:
            given[name] = value
    getattr(library, f"run_{function}")(ctypes.byref(struct(**given)))


def why_missing(dtype: torch.dtype, width: int, source: str = "attention") -> str | None:
    """Why there is no library for rows of a width; None: there is one."""
    loaded = _loaded(dtype, width, source)
    return loaded if isinstance(loaded, str) else None


def can_run(source: str, x: Tensor) -> bool:
    """Whether there is a library for rows of x [..., E], and they are on a CPU."""
    return x.device.type == "cpu" and why_missing(x.dtype, x.size(-1), source) is None


def _loaded(dtype: torch.dtype, width: int, source: str) -> _Loaded:
    key = dtype, width, source
    if dtype not in NUMBERS:
        return f"does not compute in {dtype}"
    if key not in _LOADED:
        try:
            library = ctypes.CDLL(str(build(*key)))
            fields = _fields(library, source.capitalize())
            strided = {name for name, of in fields if of is _Tensor}
            members = {"_fields_": fields, "strided": strided}
            _LOADED[key] = library, type(source, (ctypes.Structure,), members)
        except subprocess.CalledProcessError as error:
            lines = error.stderr.strip().splitlines()
            status = f"status {error.returncode}"
            reason = next((line for line in lines if "error" in line), status)
            _LOADED[key] = f"cannot be built: {reason}"
        except (OSError, ValueError) as error:
            _LOADED[key] = f"cannot be built: {error}"
    return _LOADED[key]


_TYPES = {"int64_t": ctypes.c_int64, "double": ctypes.c_double, "Tensor": _Tensor}


def _fields(library: ctypes.CDLL, struct: str) -> list[tuple[str, type]]:
    """Of a struct by DECLARE of simd.h: pointers, what ``_TYPES`` names, and a struct's in it."""
    declared = getattr(library, f"declared_{struct}")
    declared.restype = ctypes.c_char_p
    fields = []
    for statement in declared().decode().replace("const ", "").split(";")[:-1]:
        kind, *names = re.findall(r"\*?\s?\w+", statement)
        if (kind := kind.strip()) not in _TYPES and "*" not in names[0]:
            fields += _fields(library, kind)
            continue
        for name in names:
            of = ctypes.c_void_p if "*" in name else _TYPES[kind]
            fields.append((name.strip("* "), of))
    return fields


def build(dtype: torch.dtype, width: int, source: str = "attention") -> Path:
    """Compile a kernel, unless it is there; several processes may do so at once. Raises OSError:
    no compiler, or no folder that belongs to this user alone; ValueError: ``$CXX`` is no command
    line; subprocess.CalledProcessError: the compiler failed."""
    from filelock import FileLock  # here, since it would slow down each import

    logging.getLogger("filelock").setLevel(logging.WARNING)
    number = NUMBERS[dtype]
    compiler = shlex.split(os.environ.get("CXX", "")) or ["c++"]
    command = [*compiler, *FLAGS, f"-DNUMBER={number}", f"-DWIDTH={width}"]
    files = [FOLDER / f"{source}.cpp", *sorted(FOLDER.glob("*.h"))]
    made_for = repr((command, _cpu(), platform.machine(), platform.libc_ver())).encode()
    key = hashlib.sha256(b"".join(file.read_bytes() for file in files) + made_for)
    folder = _own_folder()
    path = folder / f"{source}-{number}-{width}-{key.hexdigest()[:16]}.so"
    with FileLock(path.with_suffix(".lock")), tempfile.TemporaryDirectory(dir=folder) as scratch:
        if path.exists():
            return path
        if shutil.which(compiler[0]) is None:
            raise FileNotFoundError(f"there is no compiler {compiler[0]}")
        made = Path(scratch, "made.so")
        command += ["-o", str(made), str(files[0])]
        subprocess.run(command, check=True, capture_output=True, text=True)
        os.replace(made, path)  # whole, or not there
    return path


def _own_folder() -> Path:
    """Raises PermissionError where others could put a library into it."""
    from torch import _appdirs

    root = os.environ.get("TORCH_EXTENSIONS_DIR") or _appdirs.user_cache_dir("torch_extensions")
    folder = Path(root, f"fairseq_clusterformer-{os.getuid()}")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.getuid() or found.st_mode & 0o022:
        allowed = "a folder of this user's with mode 700"
        raise PermissionError(f"others may write to {folder}; allowed: {allowed}")
    return folder


@cache
def _cpu() -> list[str]:
    """What the compiler takes "native" from: folders may be shared by several machines."""
    names = ("flags", "Features", "model name", "CPU part")
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return [platform.machine(), platform.processor()]
    return sorted({line for line in lines if line.startswith(names)})
