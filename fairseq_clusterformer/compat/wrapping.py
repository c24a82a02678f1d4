"""How functions of fairseq's give way to ours."""

import functools
from collections.abc import Callable

_MARK = "__gave_way__"


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


def wraps(owner: object, name: str) -> Callable[[Callable], None]:
    """:func:`wrap` as a decorator."""
    return lambda function: wrap(owner, name, function)
