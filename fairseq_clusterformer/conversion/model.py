"""From a dense model to the clustered one that extends it: options, names, heads, positions."""

import re
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from fairseq.models import ARCH_MODEL_NAME_REGISTRY, MODEL_DATACLASS_REGISTRY
from omegaconf import DictConfig, OmegaConf, open_dict
from torch import Tensor, nn

from fairseq_clusterformer.checkpoints.bundle import Loaded
from fairseq_clusterformer.errors import bad_option
from fairseq_clusterformer.models.stack import SelfAttention

#: side and number of a layer
Place = tuple[str, int]


@dataclass(frozen=True)
class Plan:
    """What is wanted; `clusterformer convert --help` says more."""

    specs: dict[str, str] = field(default_factory=dict)  # of sides; others get one by their heads
    near: int = 128  # window of all heads
    far: int = 64  # W, tokens of their clusters beyond it; of an encoder, on either side
    rings: bool = False  # a decoder sees the latest W, and not of all the W of largest logit
    probes: int | None = None  # clusters that share W; None: 2, or of an index K / 4, 32 at most
    clusters: int | None = None  # K; None: so many that a cluster has W tokens
    #: tokens after which a decoder's means of clusters are renewed; 0: there are no means; None:
    #: a 128th of the positions, 64 at least
    summaries: int | None = None
    clusters_per: str | None = None  # "head", or "kv-head"; None: the latter where keys are shared
    window_below: float = 0.01  # a head with less attention beyond the window is a window
    sinks: int | None = None  # first tokens that a decoder's heads see; None: what it needs
    max_positions: int | None = None  # most tokens of a sequence; None: as before
    rotary_scaling: str | None = None  # to so many, "linear" or "yarn"; None: as before
    scouts: int = 16  # in the training that follows
    updates: int = 96  # of the routers; 0: they stay as they begin
    lr: float = 0.02
    seed: int = 1


class Target(NamedTuple):
    """What a dense model becomes: the clustered architecture, the criterion of its training, and
    by side the option that names its attention."""

    arch: str
    criterion: str
    specs: dict[str, str]


_SIDES = {"encoder": "encoder_attention", "decoder": "decoder_attention"}
_LANGUAGE = Target("clusterformer_lm", "clusterformer_cross_entropy", {"decoder": "attention"})
_TRANSLATION = Target("clusterformer", "clusterformer_label_smoothed_cross_entropy", _SIDES)
_MASKED = Target(
    "clusterformer_masked_lm", "clusterformer_masked_lm", {"encoder": "encoder_attention"}
)
_CLASSES = _MASKED._replace(
    arch="clusterformer_classifier", criterion="clusterformer_sentence_prediction"
)
#: by the model's name, which a named architecture belongs to
TARGETS = {of.arch: of for of in (_LANGUAGE, _TRANSLATION, _MASKED, _CLASSES)}
TARGETS |= {"transformer_lm": _LANGUAGE, "transformer": _TRANSLATION, "roberta": _MASKED}
#: what RoBERTa always has, by the options of ours that say so
_ROBERTA = ("encoder_learned_pos", "layernorm_embedding", "no_scale_embedding")
_REFUSED = ("untie_weights_roberta", "spectral_norm_classification_head")  # of RoBERTa
#: options of the task and of the model that limit positions
_LIMITS = ("tokens_per_sample", "max_positions", "max_source_positions", "max_target_positions")


def target_of(loaded: Loaded) -> Target:
    """What a dense model becomes; UserError for an architecture that is not known."""
    arch = loaded.cfg.model._name
    name = ARCH_MODEL_NAME_REGISTRY.get(arch, arch)
    if name not in TARGETS:
        problem = f"its architecture is {arch}"
        raise bad_option("CHECKPOINT", loaded.path, ", ".join(TARGETS), problem)
    return TARGETS[name]


def clustered_options(
    loaded: Loaded, specs: Mapping[str, str], max_positions: int | None
) -> DictConfig:
    """All options of a dense model's training, with the clustered architecture in its place, and
    the attention of each side; ``max_positions`` as of :class:`Plan`. Raises ValueError: an option
    that has no clustered form."""
    cfg, model, target = loaded.cfg, loaded.model, target_of(loaded)
    is_roberta = ARCH_MODEL_NAME_REGISTRY.get(cfg.model._name, cfg.model._name) == "roberta"
    if isinstance(cfg.model, Namespace):
        given = dict(vars(cfg.model))
    else:
        given = OmegaConf.to_container(cfg.model, resolve=True)
    refused = [name for name in _REFUSED if is_roberta and given.get(name)]
    refused += ["positions relative"] * (given.get("positions") == "relative")
    for option in refused:
        raise ValueError(f"it was trained with --{option.replace('_', '-')}; allowed: without")
    defaults = vars(MODEL_DATACLASS_REGISTRY[target.arch]())
    values: dict[str, Any] = {name: given.get(name, value) for name, value in defaults.items()}
    values |= {"_name": target.arch} | dict.fromkeys(_ROBERTA if is_roberta else (), True)
    # A dense model may bring these, unused; they are of routers that are not fitted.
    values |= {name: defaults[name] for name in ("routes_by", "drop_keys") if name in defaults}
    for side, spec in specs.items():
        values[target.specs[side]] = spec
        stack = getattr(model, side)
        values[f"{side}_layers"] = len(getattr(stack, "sentence_encoder", stack).layers)
        if f"{side}_layers_to_keep" in values:  # the others are gone
            values[f"{side}_layers_to_keep"] = defaults[f"{side}_layers_to_keep"]
    cfg = OmegaConf.create(OmegaConf.to_container(cfg), flags={"allow_objects": True})
    if target is _MASKED and max_positions is None:
        most = model.max_positions()
        max_positions = min(most) if isinstance(most, tuple) else int(most)
    with open_dict(cfg):
        cfg.model = values
        if max_positions is not None:
            for section in (cfg.model, cfg.task):
                section.update({k: max_positions for k in _LIMITS if section.get(k) is not None})
            if "max_target_positions" in cfg.model:  # None: as long as the task's texts
                cfg.model.max_target_positions = max_positions
    return cfg


def clustered_state(
    dense: Mapping[str, Tensor],
    clustered: nn.Module,
    orders: Mapping[Place, Sequence[int]],
    padding: int,
) -> dict[str, Tensor]:
    """A dense model's tensors for the clustered model. ``orders`` says which head comes to each
    place of a layer (others stay), ``padding`` is an index of the dictionary. Learned positions
    are repeated until there are enough (Longformer, Beltagy et al. 2020, section 5): near tokens
    keep their distances, except where one copy ends and the next begins."""
    prefix = re.compile(r"^encoder\.(sentence_(?=encoder\.)|(?=lm_head\.))")  # of RoBERTa's names
    state = {prefix.sub("", name): tensor for name, tensor in dense.items()}
    layers, wanted = attentions(clustered), clustered.state_dict()
    for (side, number), order in orders.items():
        permute_heads(state, f"{side}.layers.{number}.self_attn.", layers[side, number], order)
    first = padding + 1  # where fairseq's positions begin
    for name, tensor in wanted.items():
        if name == "vocabulary" or name.endswith("encoder.version"):  # which fairseq's lack
            state.setdefault(name, tensor)
        given = state.get(name, tensor)
        if name.endswith("embed_positions.weight") and len(given) != len(tensor):
            place = torch.arange(len(tensor) - first) % (len(given) - first)
            state[name] = torch.cat([given[:first], given[first:][place]])
    return state


def attentions(model: nn.Module) -> dict[Place, SelfAttention]:
    """The attention of each layer of a clustered model; its name in the model is
    ``SIDE.layers.NUMBER.self_attn``."""
    return {
        (side, number): layer.self_attn
        for side in ("encoder", "decoder")
        if hasattr(model, side)
        for number, layer in enumerate(getattr(model, side).all_layers())
    }


def permute_heads(
    state: dict[str, Tensor], prefix: str, attention: SelfAttention, order: Sequence[int]
) -> None:
    """Let the heads of a layer change places in the model's ``state``; what the layer computes
    stays the same. ``prefix`` is that of its attention, with a dot at its end; ``order`` says
    which head comes to each place, and those that share keys and values stay together."""
    shared, width = attention.num_heads // attention.kv_heads, attention.head_dim

    def channels(heads: Sequence[int]) -> Tensor:
        return (torch.tensor(heads).unsqueeze(-1) * width + torch.arange(width)).flatten()

    heads, kv_heads = channels(order), channels([head // shared for head in order[::shared]])
    for name, rows in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
        for tensor in (f"{name}_proj.weight", f"{name}_proj.bias", f"convolutions.{name}.weight"):
            if prefix + tensor in state:
                state[prefix + tensor] = state[prefix + tensor][rows]
    weight = prefix + "out_proj.weight"
    state[weight] = state[weight][:, heads]
