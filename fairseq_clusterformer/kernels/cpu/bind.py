"""The structs that compiled functions take: each function gets a pointer to one.

A struct is declared once, in its C++ source. Its ctypes form is read from there. When a library is
loaded, its size and the place of its last field are compared with what the library says.
"""

import ctypes
import re
from functools import cache
from pathlib import Path
from typing import Any

from torch import Tensor

FOLDER = Path(__file__).parent  # of the sources, and of what they include
#: the struct of each source
STRUCTS = {"attention": "Problem", "step": "Step", "shares": "Shares", "scouts": "Scouting"}


class _Tensor(ctypes.Structure):
    """``Tensor`` of simd.h: where a tensor [B or 1, H or 1, ...] begins, and three strides. A
    dimension of size 1 is broadcast."""

    _fields_ = [("data", ctypes.c_void_p), ("strides", ctypes.c_int64 * 3)]

    @classmethod
    def of(cls, x: Tensor) -> "_Tensor":
        sizes = list(zip(x.shape, x.stride(), strict=True))[:3]
        strides = [0 if size == 1 else stride for size, stride in sizes]
        return cls(x.data_ptr(), (ctypes.c_int64 * 3)(*strides))


_TYPES = {"int64_t": ctypes.c_int64, "double": ctypes.c_double, "Tensor": _Tensor}


@cache
def struct(source: str) -> type[ctypes.Structure]:
    """The struct of a source. A field is an int64_t, a double, a pointer or a Tensor; or it is the
    struct of scores.h, whose fields then count as this struct's own. Raises ValueError: a field of
    another type."""
    return type(STRUCTS[source], (ctypes.Structure,), {"_fields_": _fields(f"{source}.cpp")})


def _fields(file: str, name: str | None = None) -> list[tuple[str, type]]:
    text = re.sub(r"//.*", "", (FOLDER / file).read_text())
    name = name or STRUCTS[file.removesuffix(".cpp")]
    declared = re.search(rf"^struct {name} {{(.*?)^}};", text, re.DOTALL | re.MULTILINE)[1]
    fields = []
    for statement in filter(None, map(str.strip, declared.split(";"))):
        kind, names = re.fullmatch(r"(?:const )?(\w+)(.*)", statement, re.DOTALL).groups()
        if kind == "Scores":
            fields += _fields("scores.h", kind)
            continue
        for field in map(str.strip, names.split(",")):
            of = ctypes.c_void_p if field.startswith("*") else _TYPES.get(kind)
            if of is None:
                raise ValueError(
                    f"{file}: {field} is of type {kind}; allowed: pointers, {', '.join(_TYPES)}"
                )
            fields.append((field.lstrip("* "), of))
    if len(dict(fields)) < len(fields):
        raise ValueError(f"{file} has a field of {name} twice; allowed: once, scores.h included")
    return fields


def filled(source: str, /, **values: Any) -> ctypes.Structure:
    """The struct of a source with these values, valid while the tensors are. What is None or is
    not given is 0, or no tensor."""
    kind = struct(source)
    found = kind()
    for name, value in values.items():
        if value is None:
            continue
        if isinstance(value, Tensor):
            of_tensor = getattr(kind, name).size == ctypes.sizeof(_Tensor)
            value = _Tensor.of(value) if of_tensor else value.data_ptr()
        setattr(found, name, value)
    return found


def mismatch(source: str, library: ctypes.CDLL) -> str | None:
    """How a library's struct differs from the one declared in its source; None: not at all."""
    kind, theirs = struct(source), (ctypes.c_int64 * 2)()
    library.describe(theirs)
    last = kind._fields_[-1][0]
    ours = ctypes.sizeof(kind), getattr(kind, last).offset
    if tuple(theirs) == ours:
        return None
    return (
        f"takes a {kind.__name__} of {theirs[0]} bytes whose last field is at {theirs[1]}; "
        f"{source}.cpp declares {ours[0]} bytes, with {last} at {ours[1]}"
    )
