"""``--arch clusterformer_lm``: a causal language model with clustered sparse attention."""

from dataclasses import dataclass, field, fields

from fairseq import options, utils
from fairseq.models import register_model, register_model_architecture
from fairseq.models.transformer import TransformerConfig
from fairseq.models.transformer_lm import (
    DEFAULT_MAX_TARGET_POSITIONS,
    TransformerLanguageModel,
    TransformerLanguageModelConfig,
    base_lm_architecture,
    transformer_lm_baevski_wiki103,
)
from fairseq.modules import AdaptiveInput, CharacterTokenEmbedder

from fairseq_clusterformer.attention import AttentionConfig, parse_attention
from fairseq_clusterformer.attention.base import NORMALIZERS, RULES, SIMILARITIES

from .checkpoints import ExplainedCheckpoints
from .decoder import ClusterformerDecoder

_DEFAULTS = AttentionConfig()


@dataclass
class ClusterformerLanguageModelConfig(TransformerLanguageModelConfig):
    """Options of fairseq's ``transformer_lm``, and those of the attention."""

    attention: str = field(
        default="window*2,window+neural",
        metadata={
            "help": "attention of each layer: kinds joined by + share its heads, *n repeats it, "
            "and a comma-separated list is cycled to the depth, such as window*3,neural"
        },
    )
    attention_window: int = field(
        default=_DEFAULTS.window,
        metadata={"help": "tokens that a query sees: the latest, or the latest of its cluster"},
    )
    num_clusters: int = field(
        default=_DEFAULTS.num_clusters, metadata={"help": "clusters of each clustering layer"}
    )
    cluster_rule: str = field(
        default=_DEFAULTS.cluster_rule,
        metadata={
            "help": f"which tokens of a cluster a query sees ({', '.join(RULES)}); a language "
            "model takes recent; leaking-chunk, where later tokens change earlier outputs, is "
            "for comparison"
        },
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


_ADDED = [
    f
    for f in fields(ClusterformerLanguageModelConfig)
    if f.name not in {g.name for g in fields(TransformerLanguageModelConfig)}
]


@register_model("clusterformer_lm", dataclass=ClusterformerLanguageModelConfig)
class ClusterformerLanguageModel(ExplainedCheckpoints, TransformerLanguageModel):
    """fairseq's Transformer language model over :class:`ClusterformerDecoder`."""

    @classmethod
    def hub_models(cls):
        return {}

    @classmethod
    def build_model(cls, args, task):
        """Build a model from fairseq's options.

        Raises:
            ValueError: an option of the attention that is not allowed.
        """
        for option in _ADDED:  # a checkpoint of a named architecture may be older than an option
            if not hasattr(args, option.name):
                setattr(args, option.name, option.default)
        heads = args.decoder_attention_heads
        if heads < 1 or args.decoder_embed_dim % heads:
            raise ValueError(
                f"--decoder-attention-heads is {heads}; allowed: a number that divides "
                f"--decoder-embed-dim, which is {args.decoder_embed_dim}"
            )
        attention = AttentionConfig(
            window=args.attention_window,
            num_clusters=args.num_clusters,
            cluster_rule=args.cluster_rule,
            cluster_similarity=args.cluster_similarity,
            cluster_temperature=args.cluster_temperature,
            cluster_normalizer=args.cluster_normalizer,
        )
        if args.decoder_layers_to_keep:
            args.decoder_layers = len(args.decoder_layers_to_keep.split(","))
        kinds = parse_attention(
            args.attention, num_layers=args.decoder_layers, num_heads=args.decoder_attention_heads
        )
        if utils.safe_getattr(args, "max_target_positions", None) is None:
            args.max_target_positions = utils.safe_getattr(
                args, "tokens_per_sample", DEFAULT_MAX_TARGET_POSITIONS
            )
        decoder = ClusterformerDecoder(
            TransformerConfig.from_namespace(args),
            task.target_dictionary,
            cls._build_input(args, task.source_dictionary),
            no_encoder_attn=True,
            kinds=kinds,
            attention=attention,
        )
        return cls(decoder)

    @classmethod
    def _build_input(cls, args, dictionary):
        if args.character_embeddings:
            return CharacterTokenEmbedder(
                dictionary,
                options.eval_str_list(args.character_filters, type=tuple),
                args.character_embedding_dim,
                args.decoder_embed_dim,
                args.char_embedder_highway_layers,
            )
        if args.adaptive_input:
            if args.tie_adaptive_weights and (
                args.adaptive_input_factor != args.adaptive_softmax_factor
                or args.adaptive_input_cutoff != args.adaptive_softmax_cutoff
                or args.decoder_input_dim != args.decoder_output_dim
            ):
                raise ValueError(
                    "--tie-adaptive-weights: input and softmax differ; allowed: equal "
                    "--adaptive-input-factor and --adaptive-softmax-factor, "
                    "--adaptive-input-cutoff and --adaptive-softmax-cutoff, "
                    "--decoder-input-dim and --decoder-output-dim"
                )
            return AdaptiveInput(
                len(dictionary),
                dictionary.pad(),
                args.decoder_input_dim,
                args.adaptive_input_factor,
                args.decoder_embed_dim,
                options.eval_str_list(args.adaptive_input_cutoff, type=int),
                args.quant_noise_pq,
                args.quant_noise_pq_block_size,
            )
        return cls.build_embedding(args, dictionary, args.decoder_input_dim)


def _default(args, **values) -> None:
    """Set the options that the command line leaves open."""
    for name, value in values.items():
        if not hasattr(args, name):
            setattr(args, name, value)


@register_model_architecture("clusterformer_lm", "clusterformer_lm_tiny")
def clusterformer_lm_tiny(args):
    """0.2 million parameters: learns bytes on a laptop's processor in minutes."""
    _default(
        args,
        attention_window=16,
        num_clusters=8,
        decoder_layers=3,
        decoder_embed_dim=64,
        decoder_ffn_embed_dim=256,
        dropout=0.0,
        decoder_attention_heads=4,
        share_decoder_input_output_embed=True,
        activation_fn="gelu",
    )
    base_lm_architecture(args)


@register_model_architecture("clusterformer_lm", "clusterformer_lm_enwik8")
def clusterformer_lm_enwik8(args):
    """12 layers, 512 wide, 39 million parameters, for contexts of 4,096 bytes (K = 2 N / W)."""
    _default(
        args,
        decoder_layers=12,
        decoder_embed_dim=512,
        decoder_ffn_embed_dim=2048,
        decoder_attention_heads=8,
        share_decoder_input_output_embed=True,
        activation_fn="gelu",
        attention_window=256,
        num_clusters=32,
    )
    base_lm_architecture(args)


@register_model_architecture("clusterformer_lm", "clusterformer_lm_wiki103")
def clusterformer_lm_wiki103(args):
    """fairseq's ``transformer_lm_wiki103``, for contexts of 3,072 words (K = 2 N / W)."""
    _default(args, attention_window=256, num_clusters=24)
    transformer_lm_baevski_wiki103(args)
