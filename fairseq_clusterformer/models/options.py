"""Options of the attention, shared by the architectures."""

from argparse import Namespace
from dataclasses import dataclass, field, fields

from fairseq.dataclass import FairseqDataclass

from fairseq_clusterformer.attention import AttentionConfig
from fairseq_clusterformer.attention.base import NORMALIZERS, SIMILARITIES

_DEFAULTS = AttentionConfig()


@dataclass
class ClusteringOptions(FairseqDataclass):
    """Options of every architecture whose layers cluster."""

    attention_window: int = field(
        default=_DEFAULTS.window,
        metadata={"help": "tokens that a query sees: the latest, or the latest of its cluster"},
    )
    num_clusters: int = field(
        default=_DEFAULTS.num_clusters, metadata={"help": "clusters of each clustering layer"}
    )
    cluster_similarity: str = field(
        default=_DEFAULTS.cluster_similarity,
        metadata={"help": f"of tokens and centroids: {', '.join(SIMILARITIES)}"},
    )
    cluster_temperature: float = field(
        default=_DEFAULTS.cluster_temperature,
        metadata={"help": "divides the similarity inside the softmax over tokens"},
    )
    cluster_normalizer: str = field(
        default=_DEFAULTS.cluster_normalizer,
        metadata={
            "help": "of the softmax over tokens in causal routing: "
            f"{' or '.join(NORMALIZERS)} (over training batches, or over the tokens so far)"
        },
    )


def attention_config(options, cluster_rule: str, *, own_centroids: bool = True) -> AttentionConfig:
    """The options in the terms of the attention.

    Raises:
        ValueError: a value that is not allowed.
    """
    return AttentionConfig(
        window=options.attention_window,
        num_clusters=options.num_clusters,
        cluster_rule=cluster_rule,
        cluster_similarity=options.cluster_similarity,
        cluster_temperature=options.cluster_temperature,
        cluster_normalizer=options.cluster_normalizer,
        own_centroids=own_centroids,
    )


def set_defaults(args, **values) -> None:
    """Set the options that are left open: on the command line, or by an older checkpoint."""
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
