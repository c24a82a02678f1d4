"""ETC's encoder (Ainslie et al. 2020): a long input, and global tokens that stand for its parts.

Shape letters: B batch, G global tokens, N long tokens, D width.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from fairseq import utils
from fairseq.data import Dictionary
from torch import Tensor, nn
from torch.nn.functional import dropout
from torch.utils.checkpoint import checkpoint

from fairseq_clusterformer.etc.global_local import (
    NUM_LABELS,
    PROJECTIONS,
    GlobalLocalAttention,
    Structure,
)
from fairseq_clusterformer.kernels import IMPLEMENTATIONS
from fairseq_clusterformer.models.encoder_only import EncoderOptions
from fairseq_clusterformer.models.options import check_heads, set_defaults

GLOBAL_TYPE, LONG_TYPE, NUM_TYPES = 0, 1, 16


@dataclass
class ETCOptions(EncoderOptions):
    """Options of the encoder."""

    radius: int = field(
        default=84, metadata={"help": "r: long tokens see those up to so far away, on either side"}
    )
    max_distance: int = field(
        default=12,
        metadata={"help": "k: distances from which on are one; each nearer one has a label"},
    )
    num_labels: int = field(
        default=NUM_LABELS,
        metadata={"help": "room for labels: 2 k + 4 or more, and one more for --same-cluster"},
    )
    projections: str = field(
        default="separate",
        metadata={
            "help": "separate (keys and values for each pair of streams), shared-kv (for each "
            "stream), or shared (one for all)"
        },
    )
    hard_global: bool = field(
        default=False,
        metadata={"help": "global tokens see their own part alone of the long input"},
    )
    hard_long: bool = field(
        default=False,
        metadata={"help": "long tokens see those global tokens alone that stand for them"},
    )
    block: int = field(
        default=97,
        metadata={"help": "tokens of a part, where the data names no parts: fixed blocks"},
    )
    clusters: int = field(
        default=0,
        metadata={
            "help": "global tokens are so many learned centroids, each of which stands for the "
            "tokens that are nearest to it; 0: they stand for parts"
        },
    )
    same_cluster: int = field(
        default=0,
        metadata={
            "help": "with --clusters: beyond the radius, long tokens see so many tokens of their "
            "cluster on either side, with a label of their own; 0: none"
        },
    )
    attention_kernel: str = field(
        default="auto", metadata={"help": f"auto, {', '.join(IMPLEMENTATIONS)}"}
    )


class Streams(NamedTuple):
    """What the encoder makes of both streams.

    Attributes:
        of_global: [B, G, D].
        of_long: [B, N, D].
        structure: of the batch.
    """

    of_global: Tensor
    of_long: Tensor
    structure: Structure


def fixed_blocks(tokens: Tensor, block: int, pad: int) -> Structure:
    """Parts of ``block`` tokens each, the last one of what is left; the paper's "fixed blocks".

    Args:
        tokens: int64 [B, N], with padding behind.
        block: tokens of a part.
        pad: of the dictionary.
    """
    padding = tokens.eq(pad)
    length = tokens.size(1)
    real = (~padding).sum(1, keepdim=True)
    begin = torch.arange(0, max(length, 1), block, device=tokens.device).expand(len(tokens), -1)
    begin = begin.minimum(real)
    end = (begin + block).minimum(real)
    empty = begin >= end
    empty[:, 0] = False  # one global token of a row of padding
    some = bool(padding.any())
    return Structure(
        torch.stack([begin, end], dim=-1),
        length,
        long_padding=padding if some else None,
        global_padding=empty if some else None,
    )


class ETCLayer(nn.Module):
    """Attention of both streams and a feed-forward layer that they share; norms are their own.

    Args:
        args: `ETCOptions`.
    """

    def __init__(self, args):
        super().__init__()
        width, inner = args.encoder_embed_dim, args.encoder_ffn_embed_dim
        self.self_attn = GlobalLocalAttention(
            width,
            args.encoder_attention_heads,
            radius=args.radius,
            max_distance=args.max_distance,
            projections=args.projections,
            hard=args.hard_global,
            hard_long=args.hard_long,
            clusters=args.clusters > 0,
            same_cluster=args.same_cluster,
            dropout=args.attention_dropout,
            num_labels=args.num_labels,
            kernel=args.attention_kernel,
        )
        self.fc1, self.fc2 = nn.Linear(width, inner), nn.Linear(inner, width)
        self.activation = utils.get_activation_fn(args.activation_fn)
        self.attention_norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.final_norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.dropout, self.activation_dropout = args.dropout, args.activation_dropout
        self.before = args.encoder_normalize_before

    def forward(
        self, x_global: Tensor, x_long: Tensor, structure: Structure
    ) -> tuple[Tensor, Tensor]:
        """[B, G, D] and [B, N, D] to the same."""
        streams = [x_global, x_long]
        given = self._normed(self.attention_norms, streams) if self.before else streams
        streams = self._added(streams, self.self_attn(*given, structure), self.attention_norms)
        given = self._normed(self.final_norms, streams) if self.before else streams
        changes = [self._feed_forward(x) for x in given]
        return tuple(self._added(streams, changes, self.final_norms))

    def _feed_forward(self, x: Tensor) -> Tensor:
        x = dropout(self.activation(self.fc1(x)), self.activation_dropout, self.training)
        return self.fc2(x)

    def _added(self, streams, changes, norms) -> list[Tensor]:
        pairs = zip(streams, changes, strict=True)
        added = [x + dropout(change, self.dropout, self.training) for x, change in pairs]
        return added if self.before else self._normed(norms, added)

    def _normed(self, norms, streams) -> list[Tensor]:
        return [norm(x) for norm, x in zip(norms, streams, strict=True)]


class ETCEncoder(nn.Module):
    """Embeddings of words and types, without positions, and :class:`ETCLayer`.

    Args:
        args: `ETCOptions`.
        dictionary: of the words; a global token without one of its own is ``<s>``.

    Raises:
        ValueError: an option that is not allowed.
    """

    def __init__(self, args, dictionary: Dictionary):
        super().__init__()
        sizes = ("block", "encoder_layers", "encoder_embed_dim", "encoder_ffn_embed_dim")
        least = dict.fromkeys((*sizes, "encoder_attention_heads"), 1)
        least |= dict.fromkeys(("radius", "max_distance", "clusters", "same_cluster"), 0)
        for name, allowed in least.items():
            if getattr(args, name) < allowed:
                flag = "--" + name.replace("_", "-")
                raise ValueError(f"{flag} is {getattr(args, name)}; allowed: {allowed} or more")
        check_heads(args, "encoder")
        for name in ("dropout", "attention_dropout", "activation_dropout"):
            if not 0 <= getattr(args, name) <= 1:
                flag = "--" + name.replace("_", "-")
                raise ValueError(f"{flag} is {getattr(args, name)}; allowed: 0 to 1")
        if args.attention_dropout == 1:  # which kernels do not take
            raise ValueError("--attention-dropout is 1; allowed: 0 or more, and less than 1")
        if args.same_cluster and not args.clusters:
            raise ValueError(
                f"--same-cluster is {args.same_cluster}, and --clusters 0; allowed: 0 without "
                "clusters"
            )
        own = 5 if args.same_cluster else 4  # labels that are no distances, and the token's own
        if args.num_labels < own:
            raise ValueError(f"--num-labels is {args.num_labels}; allowed: {own} or more")
        if args.num_labels < 2 * args.max_distance + own:
            raise ValueError(
                f"--max-distance is {args.max_distance}, and --num-labels {args.num_labels}; "
                f"allowed: {(args.num_labels - own) // 2} or less, or "
                f"{2 * args.max_distance + own} labels"
            )
        kernels = ("auto", *IMPLEMENTATIONS)
        if args.attention_kernel not in kernels:
            raise ValueError(
                f"--attention-kernel is {args.attention_kernel}; allowed: {', '.join(kernels)}"
            )
        if args.projections not in PROJECTIONS:
            raise ValueError(
                f"--projections is {args.projections}; allowed: {', '.join(PROJECTIONS)}"
            )
        self.dictionary, self.block, self.dropout = dictionary, args.block, args.dropout
        self.checkpoint_activations = args.checkpoint_activations
        width = args.encoder_embed_dim
        self.embed_tokens = nn.Embedding(len(dictionary), width, dictionary.pad())
        self.embed_types = nn.Embedding(NUM_TYPES, width)
        for embedding in (self.embed_tokens, self.embed_types):
            nn.init.normal_(embedding.weight, std=0.02)
        nn.init.zeros_(self.embed_tokens.weight[dictionary.pad()])
        self.centroids = None
        if args.clusters:
            self.centroids = nn.Parameter(torch.randn(args.clusters, width))
        self.layernorm_embedding = nn.LayerNorm(width)
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
        """Encode.

        Args:
            tokens: of the long input, int64 [B, N], with padding behind.
            structure: which global tokens stand for which parts; None: fixed blocks. With
                clusters it has no global tokens, but may have examples.
            global_tokens: words of the global tokens, int64 [B, G]; None, or clusters: ``<s>``.
            types: of the long tokens, int64 [B, N] below 16; None: 1.
            global_types: of the global ones, int64 [B, G]; None: 0.

        Raises:
            ValueError: padding before a token, or streams that do not fit the structure.
        """
        padding = tokens.eq(self.dictionary.pad())
        if bool((padding[:, :-1] & ~padding[:, 1:]).any()):
            raise ValueError("padding stands before a token; allowed: behind the last one")
        if self.centroids is not None:
            structure = self._of_clusters(tokens, structure)
        elif structure is None:
            structure = fixed_blocks(tokens, self.block, self.dictionary.pad())
        shape = structure.spans.shape[:2]
        if global_tokens is None or self.centroids is not None:
            global_tokens = tokens.new_full(shape, self.dictionary.bos())
        given = [tuple(tokens.shape), tuple(global_tokens.shape)]
        made = [(shape[0], structure.length), tuple(shape)]
        if given != made:
            raise ValueError(
                f"{given[0]} long and {given[1]} global tokens; allowed: {made[0]} and {made[1]}, "
                "as the structure has them"
            )
        streams = [
            self._embedded(words, kinds, default)
            for words, kinds, default in (
                (global_tokens, global_types, GLOBAL_TYPE),
                (tokens, types, LONG_TYPE),
            )
        ]
        if self.centroids is not None:
            of_each = self.centroids.repeat(shape[1] // len(self.centroids), 1)
            streams[0] = self.layernorm_embedding(of_each).expand(len(tokens), -1, -1)
        for layer in self.layers:
            if self.checkpoint_activations and self.training:
                streams = checkpoint(layer, *streams, structure, use_reentrant=False)
            else:
                streams = layer(*streams, structure)
        if self.norms:
            streams = [norm(x) for norm, x in zip(self.norms, streams, strict=True)]
        of_global, of_long = streams
        if self.training:  # workers that exchange gradients expect one of each parameter
            of_long = of_long + of_global[:, :0].sum()  # 0, whatever the states are
        return Streams(of_global, of_long, structure)

    def _embedded(self, words: Tensor, kinds: Tensor | None, default: int) -> Tensor:
        if kinds is None:
            kinds = torch.full_like(words, default)
        x = self.layernorm_embedding(self.embed_tokens(words) + self.embed_types(kinds))
        return dropout(x, self.dropout, self.training)

    def _of_clusters(self, tokens: Tensor, given: Structure | None) -> Structure:
        """Each example's own centroids, as global tokens of it."""
        if given is not None and given.spans.size(1):
            raise ValueError(
                f"{given.spans.size(1)} global tokens of parts, and {len(self.centroids)} "
                "centroids (--clusters); allowed: --parts none, or --clusters 0"
            )
        examples = None if given is None else given.long_examples
        last = 0 if examples is None else int(examples.max()) if examples.numel() else 0
        number = torch.arange(last + 1, device=tokens.device)
        number = number.repeat_interleave(len(self.centroids)).expand(len(tokens), -1)
        padding = tokens.eq(self.dictionary.pad())
        return Structure(
            torch.zeros(*number.shape, 2, dtype=torch.long, device=tokens.device),
            tokens.size(1),
            long_padding=padding if bool(padding.any()) else None,
            long_examples=examples,
            global_examples=None if examples is None else number,
            # centroids have no order, so no distance
            paragraphs=torch.arange(number.size(1), device=tokens.device).expand_as(number),
        )

    def max_positions(self) -> int:
        """A text may have any length."""
        return int(1e9)


def tiny(args) -> None:
    """2 layers of 64: for trials."""
    _sized(args, layers=2, width=64, heads=4, inner=128, radius=16)


def small(args) -> None:
    """4 layers of 256."""
    _sized(args, layers=4, width=256, heads=4, inner=1024, radius=84)


def base(args) -> None:
    """The paper's base: 12 layers of 768, 166 million parameters."""
    _sized(args, layers=12, width=768, heads=12, inner=3072, radius=84)


def large(args) -> None:
    """The paper's large: 24 layers of 1,024, 539 million parameters."""
    set_defaults(args, max_distance=24, num_labels=64)
    _sized(args, layers=24, width=1024, heads=16, inner=4096, radius=169)


def _sized(args, *, layers: int, width: int, heads: int, inner: int, radius: int) -> None:
    set_defaults(
        args,
        encoder_layers=layers,
        encoder_embed_dim=width,
        encoder_attention_heads=heads,
        encoder_ffn_embed_dim=inner,
        radius=radius,
        activation_fn="gelu",
    )
