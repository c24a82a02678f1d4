"""Options of the attention, which all architectures share."""

import math
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import Field, dataclass, field, fields, make_dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any, Optional, get_args, get_type_hints

from fairseq.dataclass import FairseqDataclass
from fairseq.models import ARCH_MODEL_NAME_REGISTRY, register_model_architecture
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf, open_dict

from fairseq_clusterformer.attention import AttentionPlan, HeadForm, Heads, attention_kinds, option
from fairseq_clusterformer.attention.options import OptionError, flag_of, parse_attention, written
from fairseq_clusterformer.attention.projections import Rotary
from fairseq_clusterformer.errors import refused
from fairseq_clusterformer.kernels import IMPLEMENTATIONS, WIDEST
from fairseq_clusterformer.ranges import check_ranges

_RULES = {"encoder": ("chunk", "recent"), "decoder": ("recent", "leaking-chunk")}
# What each architecture names itself: an encoder and a decoder differ there.
_BY_SIDE = ("cluster_rule", "own_centroids")
#: of options that some architectures lack, what holds for those
_LACKING = {
    **{"kv_heads": 0, "head_dim": 0, "layers_to_keep": None, "own_centroids": True},
    **{"biases": "all", "qk_norm": False, "rotary_base": Rotary().base, "rotary_scaling": ""},
}
fraction = partial(option, at_least=0, at_most=1)  # a field of a dataclass, for a part of a whole
POSITIONS = ("learned", "sinusoidal", "rotary", "relative", "none")


def options_of_kinds(side: str | None = None) -> Iterator[tuple[str, Any, Field]]:
    """Name, type and field of each option of all kinds, once, as fairseq's dataclasses want; of a
    side, those alone that have another default there."""
    found = set()
    for _, options in attention_kinds().values():
        hints = get_type_hints(options)
        for item in fields(options):
            name = flag_of(item)
            default = item.metadata["on"].get(side, item.default)
            if name in found or (name in _BY_SIDE if side is None else default == item.default):
                continue
            found.add(name)
            types = [t for t in get_args(hints[item.name]) if t is not type(None)]
            hint = Optional[types[0]] if types else hints[item.name]  # noqa: UP045
            help_text, limit = item.metadata["help"], item.metadata["range"]
            if limit is not None and limit.choices:
                help_text += f": {', '.join(limit.choices)}"
            yield name, hint, field(default=default, metadata={"help": help_text, "range": limit})


@dataclass
class _CommonOptions(FairseqDataclass):
    attention_kernel: str = option(
        "auto",
        f"implementation of the attention: auto, {', '.join(IMPLEMENTATIONS)}; auto is the "
        "fastest that the device and what is installed allow",
        choices=("auto", *IMPLEMENTATIONS),
    )
    positions: Optional[str] = option(  # noqa: UP045 (what fairseq reads)
        None,
        f"positions of tokens: {', '.join(POSITIONS)} (default: what fairseq's options say)",
        choices=POSITIONS,
    )
    short_convolution: int = option(
        0, "width of a depthwise convolution over queries, keys and values; 0: none", at_least=0
    )
    copying_start: bool = option(
        False,
        "a decoder's attention begins as heads that copy what followed the same tokens before; "
        "with --short-convolution 3 or more",
    )


def with_kinds(base: type, side: str | None = None) -> type:
    """A dataclass with the options of all kinds, or with another default of some on a side."""
    return make_dataclass(base.__name__, options_of_kinds(side), bases=(base,))


@dataclass
class ClusteringOptions(with_kinds(_CommonOptions)):
    """Options of every architecture whose layers cluster."""


@dataclass
class EncoderClusteringOptions(with_kinds(ClusteringOptions, "encoder")):
    """Options of every architecture with a clustered encoder."""

    encoder_attention: str = option(
        "window+neural",
        "attention of each encoder layer, separated by commas and cycled to the depth: + divides "
        "a layer's heads among kinds, *n repeats a layer",
    )
    encoder_kv_heads: int = option(
        0,
        "heads of keys and values in each encoder layer, each shared by some heads of queries; "
        "0: as many",
        at_least=0,
    )
    encoder_cluster_rule: str = option(
        "chunk",
        "which tokens of its cluster an encoder's query sees: chunk (its own chunk of the sorted "
        "sentence and the one before) or recent (the nearest of its cluster)",
    )


def complete(args, options: type[FairseqDataclass]) -> None:
    """Set the options that a checkpoint lacks, and check each. Raises ValueError: one that is not
    allowed, or fairseq-hydra-train with a named architecture, whose sizes it ignores."""
    if HydraConfig.initialized() and OmegaConf.is_config(args):
        model = ARCH_MODEL_NAME_REGISTRY[args._name]
        if model != args._name:
            problem = "fairseq-hydra-train does not apply the sizes of a named architecture"
            raise refused("model._name", args._name, f"{model}, with each size", problem)
    set_defaults(args, **defaults_of(options))
    check_ranges({name: getattr(args, name) for name in defaults_of(options)}, options)


def set_defaults(args, **values) -> None:
    """Set the options that the command line or an older checkpoint leaves open."""
    with open_dict(args) if OmegaConf.is_config(args) else nullcontext():
        for name, value in values.items():
            if not hasattr(args, name):
                setattr(args, name, value)


def sized(side: str, layers: int, width: int, inner: int, heads: int) -> dict[str, int]:
    """The options of an encoder's or a decoder's size."""
    sizes = {"layers": layers, "embed_dim": width, "ffn_embed_dim": inner}
    return {f"{side}_{k}": size for k, size in (sizes | {"attention_heads": heads}).items()}


Step = Mapping[str, object] | Callable[[Namespace], None]


def register_sizes(model: str, **sizes: Step | tuple[Step, ...]) -> None:
    """Register ``MODEL_NAME`` for the name of each size: the options that it sets, or a function
    that sets them, or several of these one after another."""
    for name, size in sizes.items():

        def set_options(args: Namespace, size=size):
            for step in size if isinstance(size, tuple) else (size,):
                step(args) if callable(step) else set_defaults(args, **step)

        register_model_architecture(model, f"{model}_{name}")(set_options)


def defaults_of(options: type[FairseqDataclass]) -> dict[str, object]:
    """Names and default values of a dataclass's options."""
    return {f.name: f.default for f in fields(options) if not f.name.startswith("_")}


def options_of(model: type) -> type[FairseqDataclass]:
    """The dataclass that a model is registered with."""
    return model.__dataclass


def _option(args: Namespace, name: str, side: str = "") -> Any:
    """An option, of a side or of all; see `_LACKING`."""
    own = f"{side}_{name}" if side else name
    return getattr(args, own) if hasattr(args, own) else _LACKING[name]


def check_heads(args: Namespace, side: str) -> None:
    """Raise ValueError for heads that do not divide the width of the encoder or the decoder."""
    heads, width = getattr(args, f"{side}_attention_heads"), getattr(args, f"{side}_embed_dim")
    if heads < 1 or width % heads and not _option(args, "head_dim", side):
        allowed = f"a number that divides --{side}-embed-dim, which is {width}"
        raise refused(f"--{side}-attention-heads", heads, allowed)


def attention_plan(
    args: Namespace, side: str, *, spec: str = "", rule: str = "", **instead: object
) -> AttentionPlan:
    """The attention of a side's layers, by fairseq's options: those of positions are set as
    ``--positions`` says, and those of the depth and the kinds to the layers to keep. ``spec`` and
    ``rule`` name the options that have them (default: those of the side); values of ``instead``
    count instead of those in ``args``. Raises ValueError, which names the option."""
    check_heads(args, side)
    names = spec or f"{side}_attention", rule or f"{side}_cluster_rule"
    own_centroids = side == "decoder" or _option(args, "own_centroids")
    kinds, kept = _kinds_of_layers(args, side, *names, own_centroids=own_centroids, **instead), ()
    if _option(args, "layers_to_keep", side):  # from here on, this is a model of so many layers
        kept = listed(args, f"{side}_layers_to_keep", "layers", len(kinds))
        kinds = [kinds[number] for number in kept]
        for name, value in ((names[0], written(kinds)), (f"{side}_layers", len(kinds))):
            setattr(args, name, value)
        setattr(args, f"{side}_layers_to_keep", "")
    heads, width = getattr(args, f"{side}_attention_heads"), getattr(args, f"{side}_embed_dim")
    shared = _option(args, "kv_heads", side) or heads
    kernel, positions, starts = args.attention_kernel, args.positions, args.copying_start
    of_head = _option(args, "head_dim", side) or width // heads
    whole, relative = of_head + width, positions == "relative"  # of a head with its positions
    if heads % shared:
        raise refused(f"--{side}-kv-heads", shared, f"a number that divides the {heads} heads")
    if kernel == "triton" and not find_spec("triton"):
        raise refused("--attention-kernel", kernel, "the others, for triton is not installed")
    leaks = any(getattr(h.options, "rule", "") == "leaking-chunk" for of in kinds for h in of)
    if leaks and kernel not in ("auto", "reference"):
        raise refused("--attention-kernel", kernel, "auto, reference with the rule leaking-chunk")
    if side == "encoder" and not hasattr(args, "decoder_attention_heads"):
        for name in ("copying_start", "attention_sinks", "cache_positions"):
            if given := getattr(args, name):
                raise refused(flag(name), given, "in models with a decoder")
    if starts and args.short_convolution < 3:
        raise refused("--copying-start", starts, "with --short-convolution 3 or more")
    if positions == "rotary" and of_head % 2:
        raise refused("--positions", positions, f"with an even width of heads, not {of_head}")
    if relative and kernel == "triton" and whole > WIDEST:
        allowed = f"other kernels, or heads of {WIDEST} with their positions, not {whole}"
        raise refused("--attention-kernel", kernel, allowed)
    if relative and width % 2:
        raise refused("--positions", positions, f"an even --{side}-embed-dim, not {width}")
    if positions is not None:
        args.no_token_positional_embeddings = positions not in ("learned", "sinusoidal")
        setattr(args, f"{side}_learned_pos", positions == "learned")
    form = HeadForm(
        kv_heads=shared,
        head_dim=_option(args, "head_dim", side) or None,
        biases=_option(args, "biases"),
        qk_norm=args.norm_eps if _option(args, "qk_norm") else None,
        rotary=_rotary(args, of_head // 2),
        relative=relative,
        short_convolution=args.short_convolution,
        copying_start=starts and side == "decoder",
    )
    return AttentionPlan(tuple(kinds), form, kernel, kept)


def _kinds_of_layers(
    args: Namespace, side: str, spec: str, rule: str, **values: object
) -> list[tuple[Heads, ...]]:
    cluster_rule = getattr(args, rule)
    if cluster_rule not in _RULES[side]:
        raise refused(flag(rule), cluster_rule, ", ".join(_RULES[side]))
    # a plug-in's kind may be younger than the model
    defaults = {name: getattr(args, name, item.default) for name, _, item in options_of_kinds()}
    # What an encoder does not have is for the decoder; in a spec it is refused.
    if side == "encoder":
        defaults |= {"attention_sinks": 0, "cache_positions": False}
    if cluster_rule == "chunk":
        defaults["cluster_gap"] = 0
    defaults |= {"cluster_rule": cluster_rule, **values}
    try:
        for _, options in attention_kinds().values():  # whether or not a layer is of that kind
            options.of({f: v for f, v in defaults.items() if f not in _BY_SIDE})
        kinds = parse_attention(
            getattr(args, spec),
            num_layers=getattr(args, f"{side}_layers"),
            num_heads=getattr(args, f"{side}_attention_heads"),
            option=flag(spec),
            defaults=defaults,
        )
    except OptionError as error:
        raise flagged(error) from None
    used = {flag_of(f) for layer in kinds for heads in layer for f in fields(heads.options)}
    if late := used - {item.name for item in fields(ClusteringOptions)} - {*_BY_SIDE}:
        allowed = "a plug-in that is imported before fairseq_clusterformer.plugin"
        raise ValueError(f"{flag(min(late))} is unknown to the models; allowed: {allowed}")
    for name, given, unused in (
        (rule, cluster_rule if side == "decoder" else "recent", "recent"),
        ("attention_sinks", defaults["attention_sinks"], 0),
        ("cache_positions", defaults["cache_positions"], False),
    ):
        if given != unused and ("cluster_rule" if name == rule else name) not in used:
            raise refused(flag(name), given, f"{unused}, for no kind of {flag(spec)} has another")
    return kinds


def _rotary(args: Namespace, pairs: int) -> Rotary | None:
    """How fast rotary positions turn; None: there are none. Raises ValueError: no scaling."""
    base, text = _option(args, "rotary_base"), _option(args, "rotary_scaling")
    is_rotary = args.positions == "rotary"
    if not text:
        return Rotary(base) if is_rotary else None
    with suppress(ValueError):
        sharpness, is_table, numbers = text.rpartition(":")
        numbers = tuple(map(float, numbers.split(",")))
        if is_table and is_rotary and len(numbers) == pairs and min(numbers) > 0:
            return Rotary(base, numbers, float(sharpness))
        factor, low, high, tokens = numbers
        if not is_table and is_rotary and factor >= 1 and 0 < low < high and tokens > 0:
            # pairs that turn less than LOW times in so many tokens turn slower by the factor, more
            # than HIGH times as before, and those between in proportion
            turns = (tokens / (2 * math.pi) * base ** (-pair / pairs) for pair in range(pairs))
            kept = (min(max((times - low) / (high - low), 0), 1) for times in turns)
            return Rotary(base, tuple(share + (1 - share) / factor for share in kept))
    allowed = "with --positions rotary, FACTOR,LOW,HIGH,TOKENS as of Llama 3, such as 8,1,4,8192, "
    allowed += f"or SHARPNESS:RATE,RATE and so on, {pairs} rates of pairs of channels"
    raise refused("--rotary-scaling", text, allowed)


def listed(args: Namespace, name: str, what: str, end: int, first: int = 0) -> tuple[int, ...]:
    """What layers an option lists, rising, of ``first`` to ``end`` - 1, or ValueError."""
    text = getattr(args, name)
    try:
        numbers = sorted({int(number) for number in text.split(",") if number})
    except ValueError:
        numbers = [-1]
    if any(not first <= number < end for number in numbers):
        there = f"{what} {first} to {end - 1}, counted from 0, separated by commas"
        raise refused(flag(name), text, there if end > first else f"empty, with {end} of {what}")
    return tuple(numbers)


def flagged(error: OptionError) -> ValueError:
    """The error of a kind's option, named as on the command line."""
    options = (item for _, of in attention_kinds().values() for item in fields(of))
    name = next(flag_of(item) for item in options if item.name == error.name)
    where = f" (in {error.written})" if error.written else ""
    return ValueError(f"{flag(name)} {error.text}{where}")


def flag(name: str) -> str:
    """An option as on the command line."""
    return "--" + name.replace("_", "-")
