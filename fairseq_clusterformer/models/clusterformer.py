"""``--arch clusterformer``: translation with clustered encoders and decoders."""

from collections.abc import Iterator
from dataclasses import Field, dataclass, field, fields, is_dataclass, make_dataclass
from typing import Optional

from fairseq.dataclass import ChoiceEnum
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import register_model, transformer
from fairseq.models.transformer import DEFAULT_MAX_SOURCE_POSITIONS, DEFAULT_MAX_TARGET_POSITIONS
from fairseq.utils import get_available_activation_fns
from omegaconf import II

from fairseq_clusterformer.errors import refused

from . import options
from .checkpoints import ExplainedCheckpoints
from .decoder import ClusterformerDecoder
from .encoder import ClusterformerEncoder
from .options import flag, option, sized

_REFUSED = ("cross_self_attention", "base_layers")
_REFUSED += ("encoder_xformers_att_config", "decoder_xformers_att_config")


@dataclass
class ClusterformerOptions(options.EncoderClusteringOptions):
    """Options that fairseq's ``transformer`` does not have."""

    decoder_attention: str = option(
        "window*2,window+neural",
        "attention of each decoder layer, written as --encoder-attention is",
    )
    decoder_kv_heads: int = option(0, "as --encoder-kv-heads, in each decoder layer", at_least=0)
    decoder_cluster_rule: str = option(
        "recent",
        "which tokens of its cluster a decoder's query sees: recent, which is strictly causal; "
        "or leaking-chunk, for comparison, which cannot generate",
    )
    output_bias: bool = option(False, "add a bias to the logits, as Marian and BART do")


#: options of fairseq's ``transformer`` that follow another one unless they are given
_FOLLOWS = {
    "decoder_embed_dim": "encoder_embed_dim",
    "decoder_ffn_embed_dim": "encoder_ffn_embed_dim",
    "decoder_input_dim": "decoder_embed_dim",
    "decoder_output_dim": "decoder_embed_dim",
}
_ACTIVATIONS = ChoiceEnum([*get_available_activation_fns(), "swish"])  # the last of Marian


def _transformer_options() -> Iterator[tuple[str, object, Field]]:
    """Yield name, type and field of each option of fairseq's ``transformer``, as a flat list."""
    for item in fields(transformer.TransformerConfig):
        group = is_dataclass(item.type)
        for member in fields(item.type) if group else (item,):
            name = f"{item.name}_{member.name}" if group else member.name
            if member.name.startswith("_"):
                continue
            default = II(f"model.{_FOLLOWS[name]}") if name in _FOLLOWS else member.default
            # fairseq splits these at their commas itself
            kind = Optional[str] if name.endswith("layers_to_keep") else member.type  # noqa: UP045
            if name == "activation_fn":
                kind = _ACTIVATIONS
            yield name, kind, field(default=default, metadata=member.metadata)


@dataclass
class ClusterformerConfig(
    make_dataclass("Transformer", _transformer_options(), bases=(ClusterformerOptions,))
):
    """Options of fairseq's ``transformer``, flat as on its command line, and ours."""


@register_model("clusterformer", dataclass=ClusterformerConfig)
class ClusterformerModel(ExplainedCheckpoints, transformer.TransformerModelBase):
    """fairseq's Transformer over our encoder and decoder."""

    @classmethod
    def add_args(cls, parser):
        gen_parser_from_dataclass(parser, ClusterformerConfig(), delete_default=True)

    @classmethod
    def build_model(cls, args, task):
        transformer.base_architecture(args)
        options.complete(args, ClusterformerOptions)
        attention = {side: options.attention_plan(args, side) for side in ("encoder", "decoder")}
        cfg = transformer.TransformerConfig.from_namespace(args)
        cfg.attention, cfg.output_bias = attention, args.output_bias
        for name in _REFUSED:
            if value := getattr(cfg, name):
                raise refused(flag(name), value, "none, for it needs fairseq's own layers")
        cfg.max_source_positions = cfg.max_source_positions or DEFAULT_MAX_SOURCE_POSITIONS
        cfg.max_target_positions = cfg.max_target_positions or DEFAULT_MAX_TARGET_POSITIONS
        return super().build_model(cfg, task)

    @classmethod
    def build_encoder(cls, cfg, src_dict, embed_tokens):
        return ClusterformerEncoder(cfg, src_dict, embed_tokens, plan=cfg.attention["encoder"])

    @classmethod
    def build_decoder(cls, cfg, tgt_dict, embed_tokens):
        how = {"plan": cfg.attention["decoder"], "output_bias": cfg.output_bias}
        return ClusterformerDecoder(cfg, tgt_dict, embed_tokens, cfg.no_cross_attention, **how)


options.register_sizes(
    "clusterformer",
    # 1.6 million parameters with 4,000 subwords: Multi30k on a laptop
    tiny=(
        sized("encoder", 3, 128, 256, 4),
        {"decoder_layers": 3, "decoder_attention_heads": 4},
        transformer.base_architecture,
    ),
    # CF22 section 4.1: 6 + 6 layers of 512, of 4 or 8 heads, K = 3; "big": of 1,024, 16 heads
    iwslt_de_en=transformer.transformer_iwslt_de_en,
    wmt_en_de=transformer.transformer_wmt_en_de,
    wmt_en_de_big=transformer.transformer_wmt_en_de_big,
)
