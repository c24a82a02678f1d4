"""From a dense model to the clustered one that extends it: options, names, heads, positions.

Shape letters: H heads, J heads of keys and values, E head width, N positions.
"""

import re
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from fairseq.models import ARCH_MODEL_NAME_REGISTRY, MODEL_DATACLASS_REGISTRY
from omegaconf import DictConfig, OmegaConf, open_dict
from torch import Tensor, nn

from fairseq_clusterformer.models.attention import SelfAttention


class Target(NamedTuple):
    """What a dense model becomes.

    Attributes:
        arch: the clustered architecture.
        specs: the option that names the attention of each side, by side.
    """

    arch: str
    specs: dict[str, str]


_LANGUAGE = Target("clusterformer_lm", {"decoder": "attention"})
_TRANSLATION = Target(
    "clusterformer", {"encoder": "encoder_attention", "decoder": "decoder_attention"}
)
_MASKED = Target("clusterformer_masked_lm", {"encoder": "encoder_attention"})
#: by the model's name, which a named architecture belongs to
TARGETS = {
    "transformer_lm": _LANGUAGE,
    "clusterformer_lm": _LANGUAGE,
    "transformer": _TRANSLATION,
    "clusterformer": _TRANSLATION,
    "roberta": _MASKED,
    "clusterformer_masked_lm": _MASKED,
    "clusterformer_classifier": Target(
        "clusterformer_classifier", {"encoder": "encoder_attention"}
    ),
}
#: what RoBERTa always has, and the options of ours that say so
_ROBERTA = {
    "encoder_learned_pos": True,
    "layernorm_embedding": True,
    "no_scale_embedding": True,
}
_REFUSED = {"roberta": ("untie_weights_roberta", "spectral_norm_classification_head")}
#: options of the task and of the model that limit positions
_LIMITS = ("tokens_per_sample", "max_positions", "max_source_positions", "max_target_positions")


def model_name(arch: str) -> str:
    """The model that a named architecture belongs to."""
    return ARCH_MODEL_NAME_REGISTRY.get(arch, arch)


def target_of(arch: str) -> Target:
    """What a dense model of that architecture becomes.

    Raises:
        ValueError: the message says which are known.
    """
    name = model_name(arch)
    if name not in TARGETS:
        raise ValueError(f"its architecture is {arch}; allowed: {', '.join(TARGETS)}")
    return TARGETS[name]


def sides_of(arch: str) -> tuple[str, ...]:
    """Sides of a dense model of that architecture; none if it is unknown."""
    name = model_name(arch)
    return tuple(TARGETS[name].specs) if name in TARGETS else ()


def layers_of(model: nn.Module, side: str) -> nn.ModuleList:
    """The layers of a side, also of a RoBERTa."""
    stack = getattr(model, side)
    return getattr(stack, "sentence_encoder", stack).layers


def clustered_options(
    cfg: DictConfig, model: nn.Module, specs: Mapping[str, str], max_positions: int | None
) -> DictConfig:
    """The options of a training, with the clustered architecture in place of the dense one.

    Args:
        cfg: all options of the dense model's training.
        model: the dense model, for the number of its layers.
        specs: attention of each side.
        max_positions: most tokens of a sequence; None: as before.

    Raises:
        ValueError: an architecture or an option that has no clustered form.
    """
    arch = cfg.model._name
    target, name = target_of(arch), model_name(arch)
    given = _plain(cfg.model)
    for option in _REFUSED.get(name, ()):
        if given.get(option):
            raise ValueError(f"it was trained with --{option.replace('_', '-')}; allowed: without")
    if given.get("positions") == "relative":
        raise ValueError("it was trained with --positions relative; allowed: other positions")
    defaults = vars(MODEL_DATACLASS_REGISTRY[target.arch]())
    values: dict[str, Any] = dict(defaults)
    values |= {option: given[option] for option in values.keys() & given.keys()}
    values |= {"_name": target.arch} | (_ROBERTA if name == "roberta" else {})
    for side, spec in specs.items():
        values[target.specs[side]] = spec
        values[f"{side}_layers"] = len(layers_of(model, side))
        if f"{side}_layers_to_keep" in values:  # the others are gone
            values[f"{side}_layers_to_keep"] = defaults[f"{side}_layers_to_keep"]
    cfg = OmegaConf.create(OmegaConf.to_container(cfg), flags={"allow_objects": True})
    if target is _MASKED and max_positions is None:
        max_positions = int(_positions_of(model))
    with open_dict(cfg):
        cfg.model = values
        if max_positions is not None:
            _limit(cfg, max_positions)
    return cfg


def _limit(cfg: DictConfig, max_positions: int) -> None:
    for section in (cfg.model, cfg.task):
        for option in _LIMITS:
            if section.get(option) is not None:
                section[option] = max_positions
    if "max_target_positions" in cfg.model:  # None: as long as the task's texts
        cfg.model.max_target_positions = max_positions


def _positions_of(model: nn.Module) -> int:
    """Tokens of the longest sequence."""
    most = model.max_positions()
    return min(most) if isinstance(most, tuple) else most


def _plain(section: DictConfig | Namespace) -> dict[str, Any]:
    if isinstance(section, Namespace):
        return dict(vars(section))
    return OmegaConf.to_container(section, resolve=True)


def renamed(state: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors of a dense model by the names of the clustered one; RoBERTa's differ."""
    found = {}
    for name, tensor in state.items():
        if re.match(r"encoder\.(sentence_encoder|lm_head)\.", name):
            name = name.removeprefix("encoder.").replace("sentence_encoder.", "encoder.", 1)
        found[name] = tensor
    return found


def attentions(model: nn.Module) -> Iterator[tuple[str, int, SelfAttention]]:
    """Side, number and attention of each layer of a clustered model, and their name in it is
    ``SIDE.layers.NUMBER.self_attn``."""
    for side in ("encoder", "decoder"):
        stack = getattr(model, side, None)
        for number, layer in enumerate([] if stack is None else stack.all_layers()):
            yield side, number, layer.self_attn


def permute_heads(
    state: dict[str, Tensor], prefix: str, attention: SelfAttention, order: Sequence[int]
) -> None:
    """Let the heads of a layer change places; what the layer computes stays the same.

    Args:
        state: of the whole model, changed in place.
        prefix: of the layer's attention, with a dot at its end.
        attention: of the dense model, for its sizes.
        order: which head comes to each place, H numbers. Heads that share keys and values stay
            next to each other.

    Raises:
        ValueError: heads that share keys and values would be parted.
    """
    shared = attention.num_heads // attention.kv_heads
    groups = [
        [head // shared for head in order[i : i + shared]] for i in range(0, len(order), shared)
    ]
    if any(len(set(group)) > 1 for group in groups):
        raise ValueError(
            f"heads in the order {list(order)} part those that share keys and values; allowed: "
            f"groups of {shared} heads that stay together"
        )
    heads = torch.tensor(order)
    kv_heads = torch.tensor([group[0] for group in groups])
    width = attention.head_dim
    for name, moved in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
        rows = _channels(moved, width)
        for tensor in (f"{name}_proj.weight", f"{name}_proj.bias", f"convolutions.{name}.weight"):
            if prefix + tensor in state:
                state[prefix + tensor] = state[prefix + tensor][rows]
    weight = prefix + "out_proj.weight"
    state[weight] = state[weight][:, _channels(heads, width)]


def _channels(heads: Tensor, width: int) -> Tensor:
    """The channels of heads, one head after another."""
    return (heads.unsqueeze(-1) * width + torch.arange(width)).flatten()


def extend_positions(state: dict[str, Tensor], wanted: Mapping[str, Tensor], padding: int) -> None:
    """Repeat learned positions until there are enough (Longformer, Beltagy et al. 2020, section
    5): what is near keeps its distances, but where one copy ends and the next begins.

    Args:
        state: of the whole model, changed in place.
        wanted: state of the model that is to take it.
        padding: index of the dictionary; fairseq's positions begin behind it.
    """
    for name, tensor in wanted.items():
        if not name.endswith("embed_positions.weight") or name not in state:
            continue
        given, first = state[name], padding + 1
        if len(given) == len(tensor):
            continue
        learned = given[first:]
        place = torch.arange(len(tensor) - first) % len(learned)
        state[name] = torch.cat([given[:first], learned[place]])
