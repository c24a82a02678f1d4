"""Options of the kinds of attention: each kind has a frozen dataclass.

A field says all about its option, once: default, help, limits, and what it is called among the
options of all kinds. The grammar of specs, fairseq's dataclasses (and so the command line, hydra
and docs/options.md) and what errors say is allowed are made from it.
"""

from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, get_args, get_type_hints

from fairseq_clusterformer.clustering.fuzzy import SIMILARITIES
from fairseq_clusterformer.ranges import Range


class OptionError(ValueError):
    """An option's value that is not allowed.

    Attributes:
        name: of the option's field in its dataclass.
        text: the message without the name.
        written: how a spec names the kind of which it is an option, where that is known.
    """

    written = ""

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
        limits: of a number, or the allowed words, as of :class:`~fairseq_clusterformer.ranges.\
Range`. None as a value is not held to them.
    """
    limit = Range(**limits) if limits else None
    metadata = {"help": help, "flag": flag, "on": on or {}, "range": limit}
    return field(default=default, metadata=metadata)


def flag_of(option: Field) -> str:
    """What an option is called among those of all kinds."""
    return option.metadata.get("flag") or option.name


def parse(option: Field, kind: type, text: str) -> Any:
    """The value that an option's text stands for, by the option's type. Raises OptionError: a text
    of another type."""
    hint = get_type_hints(kind)[option.name]
    types = get_args(hint) or (hint,)
    if text.lower() == "none" and type(None) in types:
        return None
    for kind_of_value in types:
        try:
            if kind_of_value is bool:
                return {"true": True, "false": False}[text.lower()]
            if kind_of_value is not type(None):
                return kind_of_value(text)
        except (ValueError, KeyError):
            continue
    words = {int: "a whole number", float: "a number", bool: "true, false"}
    allowed = [words.get(t, t.__name__) for t in types if t is not type(None)]
    raise OptionError(option.name, text, ", ".join(allowed))


@dataclass(frozen=True)
class Options:
    """What all options have in common: they are checked. Raises OptionError: a value outside of
    what its field allows."""

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

    def temperature_or(self, suits: float) -> float:
        """The temperature, or what suits the kind."""
        return suits if self.temperature is None else self.temperature


def rule_option(*choices: str) -> Any:
    """The option ``rule`` of a kind of clusters that has several."""
    help_text = "which tokens of its cluster a query sees"
    return option(choices[0], help_text, flag="cluster_rule", choices=choices)
