"""How functions of fairseq's give way to ours."""

import functools
from collections.abc import Callable


def mends(owner: object, name: str) -> Callable[[Callable], Callable]:
    """Decorator: this function replaces one of `owner`, which it is given before its arguments."""

    def put(function: Callable) -> Callable:
        mended = getattr(owner, name)

        @functools.wraps(mended)
        def wrapper(*args, **kwargs):
            return function(mended, *args, **kwargs)

        setattr(owner, name, wrapper)
        return function

    return put
