"""How functions of fairseq's give way to ours."""

import functools
from collections.abc import Callable


def wraps(owner: object, name: str) -> Callable[[Callable], Callable]:
    """Decorator: put a function in the place of one of a module or a class, which it is given
    before its arguments. What has been wrapped stays as it is."""

    def put(function: Callable) -> Callable:
        wrapped = getattr(owner, name)

        @functools.wraps(wrapped)
        def wrapper(*args, **kwargs):
            return function(wrapped, *args, **kwargs)

        if not hasattr(wrapped, "__wrapped__"):
            setattr(owner, name, wrapper)
        return function

    return put
