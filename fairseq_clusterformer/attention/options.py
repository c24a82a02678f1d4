"""Options of the kinds of attention, the kinds by their names, and the grammar of specs.

Each kind has a frozen dataclass, a field of which says all about its option, once: specs, errors,
fairseq's dataclasses (and so the command line, hydra and docs/options.md) are made from it.

A spec says which layer uses which attention: ``window*3,neural`` is a list of layers, cycled to a
model's depth; a layer is a kind or several joined by ``+``, which divide its heads; ``*n`` repeats
a layer. A kind may be given options: ``window(64)*2,window(64)+gated(clusters=32,gap=64)``; a
value without a name is the first's.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import Field, dataclass, field, fields
from functools import partial
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
    """A value that is not allowed: the ``name`` of its field, the ``text`` without the name."""

    written = ""  # how a spec names the kind of which it is an option, where that is known

    def __init__(self, name: str, value: object, allowed: str):
        self.name, self.text = name, f"is {value}; allowed: {allowed}"
        super().__init__(f"{name} {self.text}")


def option(
    default: Any, help: str, *, flag: str | None = None, on: Mapping | None = None, **limits: Any
) -> Any:
    """A field of a dataclass of options, with its ``help`` on the command line.

    Args:
        flag: what the option is called where options of all kinds stand side by side, in the form
            of a Python name; None: as in the dataclass.
        on: other defaults, by the side of a model that is built: "encoder" or "reader".
        limits: see :class:`~fairseq_clusterformer.ranges.Range`; None is not held to them.
    """
    limit = Range(**limits) if limits else None
    metadata = {"help": help, "flag": flag, "on": on or {}, "range": limit}
    return field(default=default, metadata=metadata)


def flag_of(option: Field) -> str:
    """What an option is called among those of all kinds."""
    return option.metadata.get("flag") or option.name


def _parsed(option: Field, kind: type, text: str) -> Any:
    """Raises OptionError: the text is not of the option's type."""
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
    window, clusters, gap, sinks, rule, index, cache_positions = None, 1, 0, 0, "recent", 0, False

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
class IndexOptions(ClusterOptions):
    index: int = option(
        0,
        "heads that cluster see, of all keys of their clusters, so many whose logits are largest, "
        "and decoding drops no key; 0: they see the W latest",
        flag="cluster_index",
        at_least=0,
    )


@dataclass(frozen=True)
class FuzzyOptions(IndexOptions):
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


def attention_kinds() -> dict[str, Registered]:
    """The kinds by their names, sorted."""
    return dict(sorted(_KINDS.items()))


def check_divides(number: int, of: str, whole: int, what: str) -> None:
    """Raises ValueError: the number does not divide the whole."""
    if number < 1 or whole % number:
        problem = f"{what} do not divide among {number} {of}"
        raise ValueError(f"{problem}; allowed: a number that divides {whole}")


_LAYER = re.compile(r"(?P<kinds>(?:[^*()]|\([^()]*\))+?)(?:\*(?P<times>\d+))?")
_KIND = re.compile(r"(?P<name>[^()=*+,]+)(?:\((?P<options>[^()]*)\))?")
_OUTSIDE = r"(?![^()]*\))"  # of parentheses


class Heads(NamedTuple):
    """The kind of some heads of a layer."""

    kind: str  # name of a registered kind
    options: Options  # of that kind
    written: str  # as a spec names it


def parse_attention(
    spec: str,
    *,
    num_layers: int,
    num_heads: int,
    option: str = "--attention",
    defaults: Mapping[str, Any] | None = None,
) -> list[tuple[Heads, ...]]:
    """The kinds of each layer of a spec, one for each equal share of its heads; the list is cycled
    or cut to ``num_layers``. Of the ``defaults``, values of options that the spec leaves open, by
    flag, a kind takes those that mean something to it. Raises ValueError, which names the
    ``option``: a spec outside the grammar, an unknown kind or option, ``*0``, or heads that do not
    divide.

    Example:
        >>> layers = parse_attention("window*2,window+full", num_layers=4, num_heads=8)
        >>> [[heads.kind for heads in layer] for layer in layers]
        [['window'], ['window'], ['window', 'full'], ['window']]
    """
    layers: list[tuple[Heads, ...]] = []
    for part in re.split("," + _OUTSIDE, spec.replace(" ", "")):
        where = f"{option} is {spec}: {part!r}"
        if (match := _LAYER.fullmatch(part)) is None:
            allowed = "KIND, KIND(OPTION=VALUE), KIND+KIND or KIND*TIMES, separated by commas"
            allowed += ", such as window*3,neural"
            raise ValueError(f"{where} is not a layer; allowed: {allowed}")
        texts = re.split(r"\+" + _OUTSIDE, match["kinds"])
        kinds = tuple(_heads(text, f"{option} is {spec}", defaults or {}) for text in texts)
        check_divides(len(kinds), "kinds", num_heads, f"{where}: {num_heads} heads")
        if (times := int(match["times"] or 1)) < 1:
            raise ValueError(f"{where} repeats {times} times; allowed: 1 up")
        layers += [kinds] * min(times, num_layers)
    return [layers[i % len(layers)] for i in range(num_layers)]


def written(layers: Sequence[tuple[Heads, ...]]) -> str:
    """The spec that names each of some layers."""
    return ",".join("+".join(heads.written for heads in layer) for layer in layers)


def parse_layer(spec: str, **options: Any) -> tuple[Heads, ...]:
    """The kinds of one layer, such as "window(64)+gated"; ``options``: values that it leaves open,
    each of one of its kinds or more, by name or by flag. Raises ValueError: as
    :func:`parse_attention`, or an option of no kind."""
    parsed = partial(parse_attention, spec, num_layers=1, num_heads=0, option="kinds")
    known = [item for heads in parsed()[0] for item in fields(heads.options)]
    flags = {name: flag_of(item) for item in known for name in (item.name, flag_of(item))}
    for name in options.keys() - flags.keys():
        raise ValueError(f"{spec} has no option {name!r}; allowed: {', '.join(sorted(flags))}")
    return parsed(defaults={flags[name]: value for name, value in options.items()})[0]


def _heads(text: str, where: str, defaults: Mapping[str, Any]) -> Heads:
    if (match := _KIND.fullmatch(text)) is None:
        raise ValueError(f"{where}: {text!r} is not a kind; allowed: KIND or KIND(OPTION=VALUE)")
    if (name := match["name"]) not in _KINDS:
        allowed = ", ".join(attention_kinds())
        raise ValueError(f"{where}: unknown kind {name!r}; allowed: {allowed}")
    kind = _KINDS[name].options
    own, given = {item.name: item for item in fields(kind)}, {}
    for part in filter(None, (match["options"] or "").split(",")):
        option, _, value = part.rpartition("=")
        option = option or next(iter(own), "")
        if option not in own or option in given:
            problem = f"{option} twice" if option in given else f"no option {option!r}"
            allowed = ", ".join(own) or "none"
            raise ValueError(f"{where}: {name} has {problem}; allowed: {allowed}")
        given[option] = value
    try:
        values = {flag_of(own[o]): _parsed(own[o], kind, value) for o, value in given.items()}
        return Heads(name, kind.of({**defaults, **values}), text)
    except OptionError as error:
        if error.name not in given:
            raise
        raise ValueError(f"{where}: {name}: {error}") from None
