"""Options of the kinds of attention, and the kinds by their names. Each kind has a frozen
dataclass, a field of which says all about its option, once: the grammar of specs, fairseq's
dataclasses (and so the command line, hydra and docs/options.md) and errors are made from it.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import Field, dataclass, field, fields
from types import NoneType
from typing import Any, NamedTuple, get_args, get_type_hints

from torch import nn

from fairseq_clusterformer.clustering.fuzzy import SIMILARITIES
from fairseq_clusterformer.ranges import Range

#: how a text becomes a value of a type, and what that is called
_TYPES = {
    int: (int, "a whole number"),
    float: (float, "a number"),
    bool: (lambda text: {"true": True, "false": False}[text.lower()], "true, false"),
    NoneType: (lambda text: {"none": None}[text.lower()], "none"),
}


class OptionError(ValueError):
    """An option's value that is not allowed: the ``name`` of its field in its dataclass, and the
    ``text`` without the name."""

    written = ""  # how a spec names the kind of which it is an option, where that is known

    def __init__(self, name: str, value: object, allowed: str):
        self.name, self.text = name, f"is {value}; allowed: {allowed}"
        super().__init__(f"{name} {self.text}")


def option(
    default: Any,
    help: str,
    *,
    flag: str | None = None,
    on: Mapping[str, Any] | None = None,
    **limits: Any,
) -> Any:
    """A field of a dataclass of options.

    Args:
        default: its value where none is given.
        help: one line for the command line.
        flag: what the option is called where options of all kinds stand side by side, in the form
            of a Python name; None: as in the dataclass.
        on: other defaults, by the side of a model that the command line builds: "encoder" or
            "reader".
        limits: see :class:`~fairseq_clusterformer.ranges.Range`; None is not held to them.
    """
    limit = Range(**limits) if limits else None
    metadata = {"help": help, "flag": flag, "on": on or {}, "range": limit}
    return field(default=default, metadata=metadata)


def flag_of(option: Field) -> str:
    """What an option is called among those of all kinds."""
    return option.metadata.get("flag") or option.name


def parse(option: Field, kind: type, text: str) -> Any:
    """The value that a text stands for. Raises OptionError: it is not of the option's type."""
    hint = get_type_hints(kind)[option.name]
    known = [_TYPES.get(of, (of, of.__name__)) for of in get_args(hint) or (hint,)]
    for value_of, _ in reversed(known):  # "none" may also be a word
        with suppress(ValueError, KeyError):
            return value_of(text)
    raise OptionError(option.name, text, ", ".join(name for _, name in known))


@dataclass(frozen=True)
class Options:
    """Raises OptionError: a value outside of what its field allows."""

    # Of a kind that has no such option; without a type, these are no fields.
    window, clusters, gap, sinks, rule = None, 1, 0, 0, "recent"

    def __post_init__(self):
        for item in fields(self):
            value, allowed = getattr(self, item.name), item.metadata.get("range") or Range()
            if allowed.forbids(value):
                raise OptionError(item.name, value, allowed.allowed(value))

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Options":
        """Those of the values that are options of this dataclass, by flag."""
        flags = {flag_of(item): item.name for item in fields(cls)}
        return cls(**{flags[flag]: value for flag, value in values.items() if flag in flags})


@dataclass(frozen=True)
class WindowOptions(Options):
    """Options of kinds that see so many keys."""

    window: int = option(
        128,
        "W: tokens that a query sees: the latest, or those of its cluster",
        flag="attention_window",
        at_least=1,
    )
    sinks: int = option(
        0,
        "first tokens of a document that all queries of a decoder see, too; those of the kind "
        "full always do",
        flag="attention_sinks",
        at_least=0,
    )


@dataclass(frozen=True)
class ClusterOptions(WindowOptions):
    """Options of kinds that see keys of a cluster."""

    clusters: int = option(
        8,
        "K: clusters in each clustering layer",
        flag="num_clusters",
        on={"encoder": 3, "reader": 64},
        at_least=1,
    )
    gap: int = option(
        0,
        "heads that cluster see the G latest tokens by position, and older ones by cluster; 0: "
        "all by cluster",
        flag="cluster_gap",
        at_least=0,
    )


@dataclass(frozen=True)
class FuzzyOptions(ClusterOptions):
    """Options of kinds that assign by a similarity over a temperature (CF22 eq. 2)."""

    similarity: str = option(
        "cosine",
        "similarity of tokens and centroids",
        flag="cluster_similarity",
        choices=SIMILARITIES,
    )
    temperature: float | None = option(
        None,
        "number that divides the similarity before the softmax (default: 0.2 for gated heads, 0.1 "
        "for the others)",
        flag="cluster_temperature",
        above=0,
    )


def rule_option(*choices: str) -> Any:
    """The option ``rule`` of a kind of clusters that has several."""
    help_text = "which tokens of its cluster a query sees"
    return option(choices[0], help_text, flag="cluster_rule", choices=choices)


class Registered(NamedTuple):
    """A kind, and the dataclass of its options."""

    kind: type[nn.Module]  # a :class:`~fairseq_clusterformer.attention.kind.Kind`
    options: type[Options]


_KINDS: dict[str, Registered] = {}


def register_attention(
    name: str, options: type[Options] = Options
) -> Callable[[type[nn.Module]], type[nn.Module]]:
    """Class decorator: make a kind available in attention specs under ``name``. ``options``: the
    dataclass of its options; each becomes an option of the command line. Raises ValueError: the
    name is taken, or holds a character of the spec's grammar; or an option that is not an
    :func:`option`, or whose flag has another default for another kind."""
    known = {flag_of(item): item for _, of in _KINDS.values() for item in fields(of)}
    problem = "is registered already" if name in _KINDS else ""
    if not name or set(name) & set(",+*()= "):
        problem = "is no name; allowed: without any of ',+*()= '"
    for item in fields(options):
        if "help" not in item.metadata:
            problem = f"has {item.name}, which is no option(default, help)"
        elif (other := known.get(flag_of(item), item)).default != item.default:
            allowed = f"{other.default}, as for other kinds, or another flag"
            problem = f"has {flag_of(item)}: {item.default} by default; allowed: {allowed}"
    if problem:
        raise ValueError(f"attention kind {name!r} {problem}")

    def register(cls: type[nn.Module]) -> type[nn.Module]:
        _KINDS[name] = Registered(cls, options)
        return cls

    return register


def attention_kinds() -> tuple[str, ...]:
    """Registered names, sorted."""
    return tuple(sorted(_KINDS))


def registered(name: str) -> Registered:
    """The kind of a registered name."""
    return _KINDS[name]
