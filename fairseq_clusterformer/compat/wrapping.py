"""How functions of fairseq's give way to ours."""

import functools
from collections.abc import Callable

_MARK = "__gave_way__"
#: owner and name of functions that give way, and what takes their place
_MENDED: list[tuple[object, str, Callable]] = []


def wrap(owner: object, name: str, function: Callable) -> None:
    """Put a function in the place of one of a module or a class, which it is given before its
    arguments. What has been wrapped stays as it is."""
    wrapped = getattr(owner, name)

    @functools.wraps(wrapped)
    def wrapper(*args, **kwargs):
        return function(wrapped, *args, **kwargs)

    if not hasattr(wrapped, _MARK):  # not __wrapped__: fairseq has decorators of its own
        setattr(wrapper, _MARK, True)
        setattr(owner, name, wrapper)


def mends(owner: object, name: str) -> Callable[[Callable], Callable]:
    """Decorator: :func:`mend` wraps a function of fairseq's in this one."""

    def note(function: Callable) -> Callable:
        _MENDED.append((owner, name, function))
        return function

    return note


def mend() -> None:
    """Wrap all that was noted."""
    for owner, name, function in _MENDED:
        wrap(owner, name, function)
