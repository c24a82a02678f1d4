"""``--arch clusterformer_lm``: a causal language model with clustered sparse attention."""

from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Optional

from fairseq import utils
from fairseq.models import register_model
from fairseq.models import transformer_lm as base
from fairseq.models.transformer import TransformerConfig
from fairseq.tasks.language_modeling import LanguageModelingTask

from fairseq_clusterformer.attention.heads import BIASES
from fairseq_clusterformer.compat.wrapping import mends
from fairseq_clusterformer.errors import refused

from . import lora, options
from .checkpoints import ExplainedCheckpoints
from .decoder import ClusterformerDecoder
from .options import flag, listed, option, set_defaults, sized
from .stack import LayerForm, SegmentState


@dataclass
class LanguageModelOptions(options.ClusteringOptions):
    """Options that fairseq's ``transformer_lm`` does not have."""

    attention: str = option(
        "window*2,window+gated",
        "attention of each layer, separated by commas and cycled to the depth, such as "
        "window*3,neural: + divides a layer's heads among kinds, *n repeats a layer",
    )
    cluster_rule: str = option(
        "recent",
        "which tokens of its cluster a query sees: recent, the latest ones; or leaking-chunk, for "
        "comparison, where later tokens change earlier outputs",
    )
    decoder_kv_heads: int = option(
        0,
        "heads of keys and values in each layer, each shared by some heads of queries; 0: as many",
        at_least=0,
    )
    decoder_head_dim: int = option(
        0, "width of a head; 0: that of the decoder, divided among the heads", at_least=0
    )
    qk_norm: bool = option(False, "a root-mean-square norm of queries and keys")
    biases: str = option("all", "maps and norms with a bias: all, qkv, none", choices=BIASES)
    norm: str = option("layer", "norms of layers: layer, rms", choices=("layer", "rms"))
    norm_eps: float = option(1e-5, "epsilon of norms", above=0)
    activation_fn: str = option(
        "relu",
        "activation of the feed-forward blocks; swiglu: swish, and multiplied by a second map",
        choices=(*utils.get_available_activation_fns(), "swish", "swiglu"),
    )
    rotary_base: float = option(10_000.0, "base of rotary positions", above=0)
    rotary_scaling: str = option("", "slower rotary positions: FACTOR,LOW,HIGH,TOKENS, or a table")
    output_bias: bool = option(False, "add a bias to the logits")
    text_begin: Optional[str] = option(  # noqa: UP045 (what fairseq reads)
        None, "symbol that texts begin by; empty: none (default: </s>, of bytes none)"
    )
    text_ends: str = option("", "numbers of symbols that end texts, if not </s>")
    separate_documents: bool = option(
        False,
        "tokens do not see other documents of their row: each end-of-sentence symbol ends one, "
        "and positions start again",
    )
    truncated_bptt: int = option(
        0,
        "training reads rows in segments of so many tokens, 2 or more; each sees what decoding "
        "would have kept of those before, and gradients end where it begins; 0: rows at once",
        at_least=0,
    )
    lora: int = option(
        0,
        "rank of what each map of a layer learns (LoRA); all else is frozen but the routers of "
        "clusters; programs other than the training merge it; 0: all is learned",
        at_least=0,
    )


@dataclass
class ClusterformerLanguageModelConfig(LanguageModelOptions, base.TransformerLanguageModelConfig):
    """Options of fairseq's ``transformer_lm``, and those of the attention."""


@register_model("clusterformer_lm", dataclass=ClusterformerLanguageModelConfig)
class ClusterformerLanguageModel(ExplainedCheckpoints, base.TransformerLanguageModel):
    """fairseq's Transformer language model over :class:`ClusterformerDecoder`."""

    @classmethod
    def build_model(cls, args, task):
        options.complete(args, LanguageModelOptions)
        plan = options.attention_plan(args, "decoder", spec="attention", rule="cluster_rule")
        set_defaults(args, max_target_positions=None, tokens_per_sample=None)
        most = args.max_target_positions or args.tokens_per_sample
        args.max_target_positions = most or base.DEFAULT_MAX_TARGET_POSITIONS
        embedding = None
        if args.character_embeddings or args.adaptive_input or args.tie_adaptive_weights:
            dense = deepcopy(args)
            dense.decoder_layers = 0  # of fairseq's decoder; its embeddings are ours
            try:
                embedding = super().build_model(dense, task).decoder.embed_tokens
            except AssertionError:
                allowed = "equal factors, cutoffs and widths of adaptive input and softmax"
                raise refused("--tie-adaptive-weights", True, allowed) from None
        cfg, gated = TransformerConfig.from_namespace(args), args.activation_fn == "swiglu"
        if gated:
            cfg.activation_fn = "swish"
        decoder = ClusterformerDecoder(
            cfg,
            task.target_dictionary,
            embedding or cls.build_embedding(args, task.source_dictionary, args.decoder_input_dim),
            no_encoder_attn=True,
            plan=plan,
            form=LayerForm(args.norm, args.norm_eps, gated, biases=args.biases == "all"),
            separate_documents=args.separate_documents,
            output_bias=args.output_bias,
        )
        _check(args, decoder)
        model = cls(decoder)
        model.truncated_bptt, model.text_begin = args.truncated_bptt, args.text_begin
        model.text_ends = listed(args, "text_ends", "symbols", len(task.target_dictionary))
        if args.lora:
            lora.adapt(model, args.lora)
        return model

    def upgrade_state_dict_named(self, state_dict, name):
        """As fairseq's; also of a model without ``--lora``, which it begins from."""
        super().upgrade_state_dict_named(state_dict, name)
        lora.adapt_state(state_dict, self.state_dict())


Result = tuple[Any, int, dict[str, Any]]  # loss, sample size, what to log
_WITHOUT = ("separate_documents", "checkpoint_activations", "offload_activations")
_WITHOUT += ("decoder_layerdrop",)


def _check(args: Namespace, decoder: ClusterformerDecoder) -> None:
    """Raise ValueError for options that do not go with each other, or with the kinds."""
    size = args.truncated_bptt
    if size == 1:
        raise refused("--truncated-bptt", 1, "0, or 2 tokens or more")
    for router in (router for layer in decoder.all_layers() for router in layer.self_attn.routers):
        if args.separate_documents and router.rule.can_step and not router.rule.per_token:
            raise ValueError(f"--separate-documents is given, and {router.why_apart}")
        if size and not router.rule.can_step:
            raise ValueError(f"--truncated-bptt is {size}, and {router.why_no_steps}")
    for name in _WITHOUT:
        if size and (given := getattr(args, name, None)):
            raise refused(flag(name), f"{given}, --truncated-bptt {size}", "one of them")


def segments(sample: dict[str, Any], size: int) -> Iterator[dict[str, Any]]:
    """Batches of so many tokens of each row; a last one of a single token joins the one before."""
    inputs, state = sample["net_input"], SegmentState()
    length = inputs["src_tokens"].size(1)
    for first, end in pairwise([*range(0, length - 1, size), length]):
        lengths = (inputs["src_lengths"] - first).clamp(0, end - first)
        tokens, target = (t[:, first:end] for t in (inputs["src_tokens"], sample["target"]))
        given = {"src_tokens": tokens, "src_lengths": lengths, "incremental_state": state}
        part = {"net_input": given, "target": target.contiguous(), "ntokens": int(lengths.sum())}
        yield sample | part


def _by_segments(step: Callable, self, sample, model, criterion, *args, **kwargs) -> Result:
    """fairseq's step; if the model says so by segments (truncated backpropagation through time):
    sums of what each returns, with the activations of one at a time."""

    def result(part: dict) -> Result:
        loss, *others = step(self, part, model, criterion, *args, **kwargs)
        return loss.detach(), *others  # a graph keeps activations

    size = getattr(model, "truncated_bptt", 0)
    if not size or not sample or sample["net_input"]["src_tokens"].size(1) <= size:
        return step(self, sample, model, criterion, *args, **kwargs)
    *earlier, last = segments(sample, size)
    with getattr(model, "no_sync", nullcontext)():  # workers exchange gradients once
        results = [result(part) for part in earlier]
    losses, sizes, logged = zip(*results, result(last), strict=True)
    total = {name: sum(log[name] for log in logged) for name in logged[0]}
    total["nsentences"] = logged[0]["nsentences"]  # of the same rows
    if getattr(criterion, "sentence_avg", False):  # a loss counts by rows: each segment has all
        total["sample_size"] = logged[0]["sample_size"]
        return sum(losses), sizes[0], total
    return sum(losses), sum(sizes), total


for _step in ("train_step", "valid_step"):
    mends(LanguageModelingTask, _step)(_by_segments)


_TIED = {"share_decoder_input_output_embed": True, "activation_fn": "gelu"}
_TINY = sized("decoder", 3, 64, 256, 4) | _TIED
_TINY |= {"dropout": 0.0, "attention_window": 16, "num_clusters": 8}
#: each head sees 32 tokens, and before these 31 of each of its two nearest clusters
_COPYING = {
    **{"short_convolution": 4, "attention": "taught", "probes": 2, "routes_by": "heads"},
    **{"attention_window": 32, "num_clusters": 16, "cluster_gap": 32},
}


def _copying_start(args: Namespace) -> None:
    """Heads begin as copying ones; a short convolution stands for positions."""
    if not vars(args).get("decoder_learned_pos"):
        set_defaults(args, positions="none")
    set_defaults(args, copying_start=args.short_convolution >= 3)


def _sinks(args: Namespace) -> None:
    if args.attention != "full":  # which sees the first tokens anyway
        set_defaults(args, attention_sinks=4)


options.register_sizes(
    "clusterformer_lm",
    # 0.2 million parameters: learns bytes on a laptop's processor in minutes
    tiny=(_TINY, base.base_lm_architecture),
    bytes=(_COPYING, _copying_start, _TINY, base.base_lm_architecture),
    # 38 million parameters, for contexts of 4,096 bytes (K = 2 N / W)
    enwik8=(
        sized("decoder", 12, 512, 2048, 8) | _TIED,
        {"attention_window": 256, "num_clusters": 32},
        base.base_lm_architecture,
    ),
    # of Llama's form, 6 million parameters without the words
    llama=(
        sized("decoder", 8, 256, 704, 8),
        {"dropout": 0.0, "decoder_kv_heads": 2, "share_decoder_input_output_embed": True},
        {"norm": "rms", "biases": "none", "activation_fn": "swiglu", "positions": "rotary"},
        {"no_scale_embedding": True, "attention": "window*3,gated"},
        _sinks,
        base.base_lm_architecture,
    ),
    # fairseq's transformer_lm_wiki103, for contexts of 3,072 words (K = 2 N / W)
    wiki103=({"attention_window": 256, "num_clusters": 24}, base.transformer_lm_baevski_wiki103),
)
