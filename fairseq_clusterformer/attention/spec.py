"""The grammar that says which layer uses which attention: ``window*3,neural`` is a list of layers,
cycled to the model's depth; a layer is a kind or several joined by ``+``, which divide its heads;
``*n`` repeats a layer. A kind may be given options:
``window(64)*2,window(64)+gated(clusters=32,gap=64)``; a value without a name is the first's.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import Any, NamedTuple

from .heads import HeadForm
from .options import OptionError, Options, attention_kinds, flag_of, parse, registered

_LAYER = re.compile(r"(?P<kinds>(?:[^*()]|\([^()]*\))+?)(?:\*(?P<times>\d+))?")
_KIND = re.compile(r"(?P<name>[^()=*+,]+)(?:\((?P<options>[^()]*)\))?")
_OUTSIDE = r"(?![^()]*\))"  # of parentheses


class Heads(NamedTuple):
    """The kind of some heads of a layer."""

    kind: str  # name of a registered kind
    options: Options  # of that kind
    written: str  # as a spec names it


class AttentionPlan(NamedTuple):
    """The attention of an encoder's or a decoder's layers; made once, and handed down."""

    layers: tuple[tuple[Heads, ...], ...]  # kinds of each layer's heads
    form: HeadForm = HeadForm()  # of all layers, as the kernel
    kernel: str = "auto"
    kept: tuple[int, ...] = ()  # the numbers of these layers in the deeper model they are part of


def parse_attention(
    spec: str,
    *,
    num_layers: int,
    num_heads: int,
    option: str = "--attention",
    defaults: Mapping[str, Any] | None = None,
) -> list[tuple[Heads, ...]]:
    """The kinds of each layer of a spec, one for each equal share of its heads.

    Args:
        num_layers: depth of the model; the list is cycled or cut to it.
        num_heads: H of every layer.
        option: name of the option in error messages.
        defaults: values of options that the spec leaves open, by flag; a kind takes those that
            mean something to it.

    Raises:
        ValueError: a spec outside the grammar, an unknown kind or option, ``*0``, or heads that
            do not divide.

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
        if num_heads % len(kinds):
            allowed = f"a number of kinds that divides {num_heads}"
            problem = f"{num_heads} heads do not divide among the {len(kinds)} kinds"
            raise ValueError(f"{where}: {problem}; allowed: {allowed}")
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
    if (name := match["name"]) not in attention_kinds():
        allowed = ", ".join(attention_kinds())
        raise ValueError(f"{where}: unknown kind {name!r}; allowed: {allowed}")
    kind = registered(name).options
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
        values = {flag_of(own[o]): parse(own[o], kind, value) for o, value in given.items()}
        return Heads(name, kind.of({**defaults, **values}), text)
    except OptionError as error:
        if error.name not in given:
            raise
        raise ValueError(f"{where}: {name}: {error}") from None
