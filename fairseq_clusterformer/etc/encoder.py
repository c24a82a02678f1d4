"""ETC's encoder (Ainslie et al. 2020) of a long input and of global tokens that stand for its
parts, and the base of its models.

Shape letters: B batch, G global tokens, N long tokens, D width.
"""

import copy
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from fairseq.data import Dictionary
from fairseq.models import register_model
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fairseq_clusterformer.errors import refused
from fairseq_clusterformer.kernels import IMPLEMENTATIONS
from fairseq_clusterformer.models import encoder as base
from fairseq_clusterformer.models.checkpoints import check_words, read_checkpoint, renamed, unfit
from fairseq_clusterformer.models.options import check_heads, option, register_sizes, sized
from fairseq_clusterformer.models.pretrained import folder_tensors, start_from
from fairseq_clusterformer.models.stack import activation

from .global_local import PROJECTIONS, SAME_CLUSTER, GlobalLocalAttention, Structure

GLOBAL_TYPE, LONG_TYPE, NUM_TYPES = 0, 1, 16
_FITTING = "an encoder of the same sizes and words, with a norm of its embeddings"
_WORDS, _TYPES = "embed_tokens.weight", "embed_types.weight"
#: parts of other models that have no place in the encoder
_LEFT_OUT = ("embed_positions.", "lm_head.", "classification_heads.", "contrast.", "version")
#: of an ETC parameter's name, what a dense encoder has in its place; such as
#: layers.0.self_attn.linear.k_l2g.weight, attention_norms.1.bias
_DENSE = {
    r"\blinear\.(q|k|v|out)_\w+": r"\1_proj",
    r"\battention_norms\.\d": "self_attn_layer_norm",
    r"\bfinal_norms\.\d": "final_layer_norm",
    r"^norms\.\d": "layer_norm",
}


@dataclass
class ETCOptions(base.EncoderOptions):
    """Options of the encoder, and what it starts from."""

    radius: int = option(84, "r: how far long tokens see, on either side", at_least=0)
    max_distance: int = option(12, "k: each nearer distance has a label of its own", at_least=0)
    # of the authors' 32, k = 12 uses 28
    num_labels: int = option(
        32, "room for 2 k + 4 labels, one more with --same-cluster", at_least=4
    )
    projections: str = option(
        "separate",
        "separate (keys and values for each pair of streams), shared-kv (for the queries of each "
        "stream, as in the authors' code), or shared (one for all)",
        choices=tuple(PROJECTIONS),
    )
    hard_global: bool = option(False, "global tokens see their own part alone of the long input")
    hard_long: bool = option(False, "long tokens see the global tokens of their own parts alone")
    block: int = option(97, "tokens of a fixed block, where the data names no parts", at_least=1)
    clusters: int = option(0, "number of learned centroids as global tokens; 0: none", at_least=0)
    same_cluster: int = option(
        0, "with --clusters: farther tokens of its cluster that each sees, per side", at_least=0
    )
    attention_kernel: str = option(
        "auto", f"auto, {', '.join(IMPLEMENTATIONS)}", choices=("auto", *IMPLEMENTATIONS)
    )
    lift: str = option(
        "", "folder of BERT's form, or checkpoint of a masked LM, fairseq's or ours, to start from"
    )


class Streams(NamedTuple):
    """What the encoder makes of both streams."""

    of_global: Tensor  # [B, G, D]
    of_long: Tensor  # [B, N, D]


def fixed_blocks(tokens: Tensor, block: int, pad: int) -> Structure:
    """The paper's "fixed blocks" of tokens, int64 [B, N], with padding behind."""
    padding = tokens.eq(pad)
    real = (~padding).sum(1).view(-1, 1, 1)
    begin = torch.arange(0, max(tokens.size(1), 1), block, device=tokens.device)
    spans = torch.stack([begin, begin + block], dim=-1).minimum(real)
    empty = spans[..., 0] >= spans[..., 1]
    empty[:, 0] = False  # one global token of a row of padding
    return Structure(spans, tokens.size(1), long_padding=padding, global_padding=empty)


class ETCLayer(nn.Module):
    """Attention of both streams and a feed-forward layer that they share; norms are their own."""

    def __init__(self, args):
        super().__init__()
        width, inner = args.encoder_embed_dim, args.encoder_ffn_embed_dim
        self.self_attn = GlobalLocalAttention(args)
        self.fc1, self.fc2 = nn.Linear(width, inner), nn.Linear(inner, width)
        self.activation = activation(args.activation_fn)
        self.attention_norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.final_norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.dropout = nn.Dropout(args.dropout)
        self.activation_dropout = nn.Dropout(args.activation_dropout)
        self.before = args.encoder_normalize_before

    def forward(self, x_global: Tensor, x_long: Tensor, structure: Structure) -> Streams:
        """[B, G, D] and [B, N, D] to the same."""
        streams = [x_global, x_long]
        for norms in (self.attention_norms, self.final_norms):
            given = _normed(norms, streams) if self.before else streams
            if norms is self.attention_norms:
                changes = self.self_attn(*given, structure)
            else:
                inner = [self.activation_dropout(self.activation(self.fc1(x))) for x in given]
                changes = map(self.fc2, inner)
            pairs = zip(streams, changes, strict=True)
            streams = [x + self.dropout(change) for x, change in pairs]
            if not self.before:
                streams = _normed(norms, streams)
        return Streams(*streams)


def _normed(norms: Iterable[nn.Module], streams: Iterable[Tensor]) -> list[Tensor]:
    return [norm(x) for norm, x in zip(norms, streams, strict=True)]


class ETCEncoder(nn.Module):
    """Embeddings of words and types, without positions, and :class:`ETCLayer`. A global token
    without a word of its own is ``<s>``. Raises ValueError for options that do not fit."""

    def __init__(self, args, dictionary: Dictionary):
        super().__init__()
        check_heads(args, "encoder")
        if args.same_cluster and not args.clusters:
            given = f"{args.same_cluster}, and --clusters 0"
            raise refused("--same-cluster", given, "0 without clusters")
        labels = 2 * args.max_distance + SAME_CLUSTER + bool(args.same_cluster)
        if args.num_labels < labels:
            given = f"{args.max_distance}, and --num-labels {args.num_labels}"
            raise refused("--max-distance", given, f"with {labels} labels or more")
        self.dictionary, self.block = dictionary, args.block
        self.checkpoint_activations = args.checkpoint_activations
        width = args.encoder_embed_dim
        self.embed_tokens = nn.Embedding(len(dictionary), width, dictionary.pad())
        self.embed_types = nn.Embedding(NUM_TYPES, width)
        for embedding in (self.embed_tokens, self.embed_types):
            nn.init.normal_(embedding.weight, std=0.02)
        nn.init.zeros_(self.embed_tokens.weight[dictionary.pad()])
        self.centroids = nn.Parameter(torch.randn(args.clusters, width)) if args.clusters else None
        self.layernorm_embedding, self.dropout = nn.LayerNorm(width), nn.Dropout(args.dropout)
        self.layers = nn.ModuleList(ETCLayer(args) for _ in range(args.encoder_layers))
        ends = 2 if args.encoder_normalize_before else 0
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(ends))

    def forward(
        self,
        tokens: Tensor,
        structure: Structure | None = None,
        global_tokens: Tensor | None = None,
        types: Tensor | None = None,
        global_types: Tensor | None = None,
    ) -> Streams:
        """Encode the long input, int64 [B, N]. Raises ValueError for padding before a token.

        Args:
            structure: which global tokens stand for which parts; None: fixed blocks. With
                clusters it has no global tokens, but may have examples.
            global_tokens: words of the global tokens, int64 [B, G]; None, or clusters: ``<s>``.
            types, global_types: of the tokens, int64 below 16 (None: 1 of long tokens, 0 of
                global ones), or vectors [..., D], which are added as well.
        """
        padding = tokens.eq(self.dictionary.pad())
        if bool((padding[:, :-1] & ~padding[:, 1:]).any()):
            raise ValueError("padding stands before a token; allowed: behind the last one")
        if self.centroids is not None:
            structure = self._of_clusters(padding, structure)
            of_each = self.layernorm_embedding(self.centroids)
            of_global = of_each.repeat(structure.spans.size(1) // len(of_each), 1)
            of_global = of_global.expand(len(tokens), -1, -1)
        else:
            if structure is None:
                structure = fixed_blocks(tokens, self.block, self.dictionary.pad())
            if global_tokens is None:
                global_tokens = tokens.new_full(structure.spans.shape[:2], self.dictionary.bos())
            of_global = self._embedded(global_tokens, global_types, GLOBAL_TYPE)
        streams = of_global, self._embedded(tokens, types, LONG_TYPE)
        for layer in self.layers:
            if self.checkpoint_activations and self.training:
                streams = checkpoint(layer, *streams, structure, use_reentrant=False)
            else:
                streams = layer(*streams, structure)
        if self.norms:
            streams = _normed(self.norms, streams)
        of_global, of_long = streams
        if self.training:  # workers that exchange gradients expect one of each parameter
            of_long = of_long + of_global[:, :0].sum()  # 0, whatever the states are
        return Streams(of_global, of_long)

    def _embedded(self, words: Tensor, types: Tensor | None, default: int) -> Tensor:
        x = self.embed_tokens(words)
        if types is not None and not types.is_floating_point():
            x = x + self.embed_types(types)
        else:
            x = x + self.embed_types.weight[default]
            x = x if types is None else x + types
        return self.dropout(self.layernorm_embedding(x))

    def _of_clusters(self, padding: Tensor, given: Structure | None) -> Structure:
        """Each example's own centroids, as global tokens of it."""
        examples = torch.zeros_like(padding, dtype=torch.long)
        if given is not None:
            examples = given.long_examples
        last = int(examples.max()) if examples.numel() else 0
        number = torch.arange(last + 1, device=padding.device)
        number = number.repeat_interleave(len(self.centroids)).expand(len(padding), -1)
        return Structure(
            number.new_zeros(*number.shape, 2),
            padding.size(1),
            long_padding=padding,
            long_examples=examples,
            global_examples=number,
            # centroids have no order, so no distance
            paragraphs=torch.arange(number.size(1), device=number.device).expand_as(number),
        )

    def max_positions(self) -> int:
        return int(1e9)  # a text may have any length


_GELU = {"activation_fn": "gelu"}
_LARGE = {"radius": 169, "max_distance": 24, "num_labels": 64}
#: "base" and "large" are the paper's, of 166 and 539 million parameters
SIZES = {
    "tiny": sized("encoder", 2, 64, 128, 4) | _GELU | {"radius": 16},
    "small": sized("encoder", 4, 256, 1024, 4) | _GELU,
    "base": sized("encoder", 12, 768, 3072, 12) | _GELU,
    "large": sized("encoder", 24, 1024, 4096, 16) | _GELU | _LARGE,
}


def register_etc(name: str, options: type[ETCOptions]):
    """Register a model with its options, and the sizes ``NAME_tiny`` to ``NAME_large``."""

    def register(model: type) -> type:
        model = register_model(name, dataclass=options)(model)
        register_sizes(name, **SIZES)
        return model

    return register


class ETCModel(base.EncoderOnlyModel):
    """A model of ETC's encoder and a head; its options are :class:`ETCOptions`."""

    @classmethod
    def build_encoder(cls, args, task) -> ETCEncoder:
        return base.set_epsilon(ETCEncoder(args, task.source_dictionary), args.layer_norm_eps)

    def load_initial_weights(self) -> None:
        """Start from the dense model, or the other ETC encoder, that ``--lift`` names; raises
        CheckpointError for one that cannot be read, or that does not fit.

        Queries, keys and values go to every copy of theirs, norms to both streams. Positions have
        no place; labels, types and centroids that the other one lacks start anew. Where labels and
        types are 0 and the radius covers the text, the encoder is the dense one.
        """
        option, path, words, cfg = "--lift", self.args.lift, self.encoder.dictionary, {}
        if not path:
            return
        if Path(path).is_dir():  # its first type is added to each word
            given, _ = folder_tensors(path, option, words, self.args)
            given = {name: t for name, t in given.items() if name.startswith("encoder.")}
            given[f"encoder.{_WORDS}"] += given.pop(f"encoder.{_TYPES}")[0]
        else:
            state = read_checkpoint(option, path)
            given, cfg = state["model"], state.get("cfg") or {}
            if "vocabulary" not in given:
                check_words(option, path, words)
        found, own = renamed(given), base.fingerprint(words)
        with_mask = copy.deepcopy(words)  # tasks of masked words add one that is in no dict.txt
        with_mask.add_symbol("<mask>")
        if _WORDS in found and len(found[_WORDS]) == len(with_mask):
            found[_WORDS] = found[_WORDS][: len(words)]
        theirs = found.pop("vocabulary", own)
        is_ours = torch.equal(theirs.cpu(), base.fingerprint(with_mask))
        is_etc = _TYPES in found
        # the numbers of labels depend on k, the sizes of their tables do not
        if is_etc and cfg and (most := cfg["model"].max_distance) != self.args.max_distance:
            allowed = f"{self.args.max_distance}, as here"
            raise unfit(option, path, f"its --max-distance is {most}", allowed)
        loaded, used = {"vocabulary": own if is_ours else theirs}, set()
        for name in self.encoder.state_dict():
            source = name
            for pattern, dense in () if is_etc else _DENSE.items():
                source = re.sub(pattern, dense, source)
            if source in found:
                loaded[f"encoder.{name}"] = found[source]
                used.add(source)
        for name in found.keys() - used:
            if not name.startswith(_LEFT_OUT):  # which is refused
                loaded[f"encoder.{name}"] = found[name]
        new = ("encoder.centroids",) if is_etc else ("encoder.centroids", f"encoder.{_TYPES}")
        anew = [
            name
            for name in self.state_dict()
            if not name.startswith("encoder.") or name in new or ("label_" in name and not is_etc)
        ]
        start_from(self, option, path, loaded, anew, _FITTING)
