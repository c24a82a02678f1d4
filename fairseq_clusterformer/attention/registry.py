"""The kinds of attention by their names, with the dataclasses of their options."""

from collections.abc import Callable
from dataclasses import fields
from typing import NamedTuple

from torch import nn

from .options import Options, flag_of


class Registered(NamedTuple):
    """A kind, and the dataclass of its options."""

    kind: type[nn.Module]  # a :class:`~fairseq_clusterformer.attention.kind.Kind`
    options: type[Options]


_KINDS: dict[str, Registered] = {}
_LISTENERS: list[Callable[[Registered], None]] = []


def register_attention(
    name: str, options: type[Options] = Options
) -> Callable[[type[nn.Module]], type[nn.Module]]:
    """Class decorator: make a kind available in attention specs under ``name``.

    Args:
        name: of the kind.
        options: dataclass of its options; each becomes an option of the command line.

    Raises:
        ValueError: the name is taken, or holds a character of the spec's grammar; or an option
            that is not an :func:`option`, or whose flag has another default for another kind.
    """
    for item in fields(options):
        if "help" not in item.metadata:
            raise ValueError(f"attention kind {name!r}: {item.name} is no option(default, help)")
        for other, known in _KINDS.items():
            for shared in fields(known.options):
                if flag_of(shared) == flag_of(item) and shared.default != item.default:
                    raise ValueError(
                        f"attention kind {name!r}: {flag_of(item)} is {item.default} by default; "
                        f"allowed: {shared.default}, as for {other}, or another flag"
                    )

    def register(cls: type[nn.Module]) -> type[nn.Module]:
        if name in _KINDS:
            raise ValueError(
                f"attention kind {name!r} is registered already, by {_KINDS[name].kind}"
            )
        if not name or set(name) & set(",+*()= "):
            raise ValueError(f"attention kind {name!r}: a name has none of ',+*()= '")
        _KINDS[name] = Registered(cls, options)
        for listener in _LISTENERS:
            listener(_KINDS[name])
        return cls

    return register


def listen(listener: Callable[[Registered], None]) -> None:
    """Call ``listener`` for each kind that is registered, and for those that will be."""
    _LISTENERS.append(listener)
    for registered in _KINDS.values():
        listener(registered)


def attention_kinds() -> tuple[str, ...]:
    """Registered names, sorted."""
    return tuple(sorted(_KINDS))


def registered(name: str) -> Registered:
    """The kind of a registered name."""
    return _KINDS[name]
