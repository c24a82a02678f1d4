"""Options of the attention, which all architectures share."""

from argparse import Namespace
from contextlib import nullcontext
from dataclasses import dataclass, field, fields
from typing import NamedTuple, Optional

from fairseq.dataclass import FairseqDataclass
from fairseq.models import ARCH_MODEL_NAME_REGISTRY
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf, open_dict

from fairseq_clusterformer.attention import AttentionConfig, parse_attention
from fairseq_clusterformer.attention.base import (
    KERNELS,
    NORMALIZERS,
    SIMILARITIES,
    STRIDED_PATTERNS,
)

_DEFAULTS = AttentionConfig()
_RULES = {"encoder": ("chunk", "recent"), "decoder": ("recent", "leaking-chunk")}


@dataclass
class ClusteringOptions(FairseqDataclass):
    """Options of every architecture whose layers cluster."""

    attention_window: int = field(
        default=_DEFAULTS.window,
        metadata={"help": "W: tokens that a query sees: the latest, or those of its cluster"},
    )
    attention_kernel: str = field(
        default=_DEFAULTS.kernel,
        metadata={
            "help": f"implementation of the attention: {', '.join(KERNELS)}; auto is triton on "
            "CUDA and blocks elsewhere"
        },
    )
    num_clusters: int = field(
        default=_DEFAULTS.num_clusters,
        metadata={"help": "K: clusters in each clustering layer"},
    )
    cluster_similarity: str = field(
        default=_DEFAULTS.cluster_similarity,
        metadata={"help": f"similarity of tokens and centroids: {', '.join(SIMILARITIES)}"},
    )
    cluster_temperature: Optional[float] = field(  # noqa: UP045 (what fairseq reads)
        default=_DEFAULTS.cluster_temperature,
        metadata={
            "help": "number that divides the similarity before the softmax (default: 0.2 for "
            "gated heads, 0.1 for the others)"
        },
    )
    cluster_normalizer: str = field(
        default=_DEFAULTS.cluster_normalizer,
        metadata={
            "help": "what normalises the softmax over tokens in causal routing: "
            f"{' or '.join(NORMALIZERS)} (over training batches, or over the tokens so far)"
        },
    )
    cluster_exploration: float = field(
        default=_DEFAULTS.cluster_exploration,
        metadata={
            "help": "share of the keys of gated heads that training puts into a random cluster"
        },
    )
    hash_rounds: int = field(
        default=_DEFAULTS.hash_rounds,
        metadata={"help": "hashes of each token in lsh heads"},
    )
    stride: int = field(
        default=_DEFAULTS.stride,
        metadata={"help": "stride of strided heads; 0: --num-clusters"},
    )
    strided_pattern: str = field(
        default=_DEFAULTS.strided_pattern,
        metadata={
            "help": f"{' or '.join(STRIDED_PATTERNS)}: strided heads see every stride-th token, "
            "or the last token of each block of so many tokens"
        },
    )
    kmeans_bank_size: int = field(
        default=_DEFAULTS.kmeans_bank_size,
        metadata={"help": "number of latest states that kmeans heads cluster"},
    )
    kmeans_interval: int = field(
        default=_DEFAULTS.kmeans_interval,
        metadata={"help": "updates between two runs of K-Means; 0: one run per epoch"},
    )


@dataclass
class EncoderClusteringOptions(ClusteringOptions):
    """Options of every architecture with a clustered encoder."""

    encoder_attention: str = field(
        default="window+neural",
        metadata={
            "help": "attention of each encoder layer, separated by commas and cycled to the "
            "depth: + divides a layer's heads among kinds, *n repeats a layer"
        },
    )
    num_clusters: int = field(default=3, metadata={"help": "K: clusters in each clustering layer"})
    encoder_cluster_rule: str = field(
        default="chunk",
        metadata={
            "help": "which tokens of its cluster an encoder's query sees: chunk (its own chunk of "
            "the sorted sentence and the one before) or recent (the nearest of its cluster)"
        },
    )
    own_centroids: bool = field(
        default=False,
        metadata={
            "help": "give every encoder layer its own centroids, instead of the centroids that "
            "the layer before has updated"
        },
    )


def attention_config(
    options, cluster_rule: str, *, own_centroids: bool = True, window: int | None = None
) -> AttentionConfig:
    """The options in the terms of the attention.

    Args:
        window: instead of ``options.attention_window``.

    Raises:
        ValueError: a value that is not allowed.
    """
    return AttentionConfig(
        window=options.attention_window if window is None else window,
        num_clusters=options.num_clusters,
        cluster_rule=cluster_rule,
        cluster_similarity=options.cluster_similarity,
        cluster_temperature=options.cluster_temperature,
        cluster_normalizer=options.cluster_normalizer,
        cluster_exploration=options.cluster_exploration,
        own_centroids=own_centroids,
        hash_rounds=options.hash_rounds,
        stride=options.stride,
        strided_pattern=options.strided_pattern,
        kmeans_bank_size=options.kmeans_bank_size,
        kmeans_interval=options.kmeans_interval,
        kernel=options.attention_kernel,
    )


def complete(args, options: type[FairseqDataclass]) -> None:
    """Set the options that an older checkpoint lacks.

    Raises:
        ValueError: fairseq-hydra-train with a named architecture, whose sizes it ignores.
    """
    if HydraConfig.initialized() and OmegaConf.is_config(args):
        model = ARCH_MODEL_NAME_REGISTRY[args._name]
        if model != args._name:
            raise ValueError(
                f"model._name is {args._name}: fairseq-hydra-train does not apply the sizes of a "
                f"named architecture; allowed: {model}, with each size"
            )
    set_defaults(args, **defaults_of(options))


def set_defaults(args, **values) -> None:
    """Set the options that the command line or an older checkpoint leaves open."""
    with open_dict(args) if OmegaConf.is_config(args) else nullcontext():
        for name, value in values.items():
            if not hasattr(args, name):
                setattr(args, name, value)


def defaults_of(options: type[FairseqDataclass]) -> dict[str, object]:
    """Names and default values of a dataclass's options."""
    return {f.name: f.default for f in fields(options) if not f.name.startswith("_")}


def check_heads(args: Namespace, side: str) -> None:
    """Refuse heads that do not divide the width of the encoder or the decoder.

    Raises:
        ValueError: naming the options and their values.
    """
    heads = getattr(args, f"{side}_attention_heads")
    width = getattr(args, f"{side}_embed_dim")
    if heads < 1 or width % heads:
        raise ValueError(
            f"--{side}-attention-heads is {heads}; allowed: a number that divides "
            f"--{side}-embed-dim, which is {width}"
        )


def kinds_of_layers(args: Namespace, side: str, spec: str) -> list[tuple[str, ...]]:
    """The kinds of each layer of the encoder or the decoder.

    Where layers are pruned (``--decoder-layers-to-keep 1,3``), those that are kept keep their
    kinds: ``args`` is left with the kept layers' number, and with a spec that names each.

    Args:
        args: fairseq's options.
        side: "encoder" or "decoder".
        spec: name of the option in ``args``.

    Raises:
        ValueError: naming the option.
    """
    layers, keep = (getattr(args, f"{side}_{name}") for name in ("layers", "layers_to_keep"))
    kinds = parse_attention(
        getattr(args, spec),
        num_layers=layers,
        num_heads=getattr(args, f"{side}_attention_heads"),
        option="--" + spec.replace("_", "-"),
    )
    if not keep:
        return kinds
    kept = sorted({int(number) for number in keep.split(",")})
    if not 0 <= kept[0] <= kept[-1] < layers:
        raise ValueError(f"--{side}-layers-to-keep is {keep}; allowed: layers 0 to {layers - 1}")
    kinds = [kinds[number] for number in kept]
    setattr(args, spec, ",".join("+".join(layer) for layer in kinds))
    setattr(args, f"{side}_layers", len(kinds))
    return kinds


class LayerAttention(NamedTuple):
    """The attention of an encoder's or a decoder's layers."""

    kinds: list[tuple[str, ...]]
    config: AttentionConfig


def check_rule(args: Namespace, side: str, option: str) -> str:
    """Return the cluster rule that an option names.

    Raises:
        ValueError: the encoder or the decoder has no such rule.
    """
    rule, allowed = getattr(args, option), _RULES[side]
    if rule not in allowed:
        name = option.replace("_", "-")
        raise ValueError(f"--{name} is {rule}; allowed: {', '.join(allowed)}")
    return rule


def attention_of(args: Namespace, side: str, own_centroids: bool = True) -> LayerAttention:
    """Return the attention of the encoder or the decoder.

    Raises:
        ValueError: naming the option.
    """
    check_heads(args, side)
    rule = check_rule(args, side, f"{side}_cluster_rule")
    kinds = kinds_of_layers(args, side, f"{side}_attention")
    return LayerAttention(kinds, attention_config(args, rule, own_centroids=own_centroids))
