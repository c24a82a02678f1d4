"""``--arch bidaf_reader``: BiDAF (Seo et al. 2017), and ``--arch qanet_reader``: QANet (Yu et al.
2018), with attention of any kind; both as XLQA has them.

Shape letters: B batch, W words of the longest document, D width.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from fairseq.models import FairseqEncoder, register_model
from fairseq.modules import SinusoidalPositionalEmbedding
from torch import Tensor, nn
from torch.nn.functional import dropout
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from fairseq_clusterformer.attention import AttentionPlan, Batch, MultiheadAttention
from fairseq_clusterformer.clustering import Report
from fairseq_clusterformer.errors import refused
from fairseq_clusterformer.models import options
from fairseq_clusterformer.models.options import option, register_sizes
from fairseq_clusterformer.models.stack import ClusteredStack, planned

from . import word_reader
from .word_reader import Reading, WordReader, Words

_SHARE = {"at_least": 0, "below": 1}
PASSES = 3  # of QANet's model encoder, with shared weights


@dataclass
class BidafReaderConfig(word_reader.WordReaderOptions):
    """Options; by default it has the report's sizes with letters, and subwords as well."""

    dropout: float = option(0.2, "dropout probability")
    encoder_embed_dim: int = option(100, "width of the words, and of each direction of an LSTM")


class TwoWayLSTM(nn.Module):
    """An LSTM of width D from either side, over the words that there are, and dropout."""

    def __init__(self, inputs: int, width: int, layers: int, dropout: float):
        super().__init__()
        self.dropout, between = dropout, dropout if layers > 1 else 0.0
        how = {"batch_first": True, "bidirectional": True, "dropout": between}
        self.lstm = nn.LSTM(inputs, width, layers, **how)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        """[B, W, inputs] to [B, W, 2 D]; 0 for padding, bool [B, W]."""
        lengths = (~padding).sum(1).clamp(min=1).cpu()  # a row of padding has one word of it
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        found, _ = self.lstm(packed)
        out, _ = pad_packed_sequence(found, batch_first=True, total_length=x.size(1))
        return dropout(out.masked_fill(padding[..., None], 0.0), self.dropout, self.training)


class BidafEncoder(nn.Module):
    """Embedding, context-query attention, and LSTMs before and after it."""

    def __init__(self, task, args):
        super().__init__()
        self.dictionary = task.source_dictionary
        width = args.encoder_embed_dim
        self.embedding = word_reader.WordEmbedding(task, args, width=width, joint=False)
        self.contextual = TwoWayLSTM(self.embedding.width, width, 1, args.dropout)
        self.attention = word_reader.ContextQueryAttention(2 * width, matches=args.word_matches)
        self.modelling = TwoWayLSTM(self.attention.width, width, 2, args.dropout)
        self.ends = TwoWayLSTM(2 * width, width, 1, args.dropout)
        self.head_width = self.attention.width + 2 * width
        self.dropout = args.dropout

    def read(self, asked: Words, words: Words) -> Reading:
        read = (self.contextual(self.embedding(own), own.padding) for own in (asked, words))
        question, document = read
        both = self.attention(document, question, words, asked)
        both = dropout(both, self.dropout, self.training)
        modelled = self.modelling(both, words.padding)
        ends = self.ends(modelled, words.padding)
        begin, end = (torch.cat([both, of_side], dim=-1) for of_side in (modelled, ends))
        return Reading(words, begin, end, [])


@register_model("bidaf_reader", dataclass=BidafReaderConfig)
class BidafReader(WordReader):
    @classmethod
    def build_encoder(cls, args, task) -> BidafEncoder:
        return BidafEncoder(task, args)


register_sizes(
    "bidaf_reader",
    tiny={"encoder_embed_dim": 64, "word_dim": 100},  # learns on a laptop's processor
    # the report's baseline: vectors of words alone, and with characters
    xlqa={"subword_dim": 0, "letter_filters": 0},
    xlqa_letters={"subword_dim": 0},
)


@dataclass
class QANetReaderConfig(word_reader.WordReaderOptions, options.ClusteringOptions):
    """Options; by default it has the report's smaller sizes."""

    dropout: float = option(0.1, "dropout probability")
    attention_dropout: float = option(0.1, "dropout probability of attention weights", **_SHARE)
    letter_filters: int = option(64, word_reader.FILTERS, at_least=0)
    encoder_embed_dim: int = option(128, "width of the encoder")
    encoder_ffn_embed_dim: int = option(128, "width inside the feed-forward layers")
    encoder_attention_heads: int = option(4, "heads in each block")
    encoder_layers: int = option(8, "blocks; the first reads both texts", at_least=2)
    convolutions: int = option(4, "convolutions in the first block, of width 7", at_least=0)
    model_convolutions: int = option(2, "convolutions in each other block, of width 5", at_least=0)
    stochastic_depth: float = option(0.1, "how often the last sublayer is left out", **_SHARE)
    attention: str = option("full", "attention of each block, separated by commas and cycled")
    cluster_rule: str = option("chunk", "which words of its cluster a query sees: chunk, recent")


class SeparableConvolution(nn.Module):
    """A convolution of each channel over words, then a linear map of the channels, and ReLU."""

    def __init__(self, width: int, kernel: int):
        super().__init__()
        how = {"padding": kernel // 2, "groups": width, "bias": False}
        self.depthwise = nn.Conv1d(width, width, kernel, **how)
        self.pointwise = nn.Linear(width, width)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        """[B, W, D] to the same; beyond a document's ends is 0 (padding: bool [B, W])."""
        x = x.masked_fill(padding.unsqueeze(-1), 0.0)
        return self.pointwise(self.depthwise(x.transpose(1, 2)).transpose(1, 2)).relu()


def stochastic_depth(x: Tensor, change: Tensor, survival: float, training: bool) -> Tensor:
    """``x + change``; in training, of each row the change is left out or not (Huang et al. 2016),
    and divided by the probability ``survival``, so that its mean is that of inference."""
    if not training or survival == 1:
        return x + change
    kept = torch.rand(len(x), 1, 1, device=x.device) < survival
    return x + change * kept.to(change) / survival


class EncoderBlock(nn.Module):
    """Convolutions of a width ``kernel``, self-attention of block ``number`` of the plan and a
    feed-forward layer, each normalised before and added."""

    def __init__(self, args, plan: AttentionPlan, number: int, *, convolutions: int, kernel: int):
        super().__init__()
        width, inner = args.encoder_embed_dim, args.encoder_ffn_embed_dim
        self.kinds, self.dropout = plan.layers[number], args.dropout
        self.absolute = not (plan.form.rotary or plan.form.relative)
        each = (SeparableConvolution(width, kernel) for _ in range(convolutions))
        self.convolutions = nn.ModuleList(each)
        how = {"kinds": self.kinds, "causal": False, "dropout": args.attention_dropout}
        heads = args.encoder_attention_heads
        self.self_attn = planned(MultiheadAttention, plan, width, heads, **how)
        maps = nn.Linear(width, inner), nn.ReLU(), nn.Linear(inner, width)
        self.feed_forward = nn.Sequential(*maps)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(convolutions + 2))

    def forward(self, x: Tensor, padding: Tensor, survival: Iterator) -> tuple[Tensor, list]:
        """[B, W, D] to the same, and the reports; ``survival`` is of each sublayer."""
        reports: list[Report] = []
        if self.absolute:
            x = x + SinusoidalPositionalEmbedding.get_embedding(*x.shape[1:]).to(x)
        for i, norm in enumerate(self.norms):
            y = norm(x)
            if i < len(self.convolutions):
                y = self.convolutions[i](y, padding)
            elif i == len(self.convolutions):
                y, reports = self.self_attn(y, Batch(padding if padding.any() else None))
            else:
                y = self.feed_forward(y)
            y = dropout(y, self.dropout, self.training)
            x = stochastic_depth(x, y, next(survival), self.training)
        return x, reports


class QANetEncoder(ClusteredStack, FairseqEncoder):
    """A block for both texts, context-query attention, and blocks that run three times."""

    def __init__(self, task, args, *, plan: AttentionPlan):
        super().__init__(task.source_dictionary, plan=plan)
        width = args.encoder_embed_dim
        self.embedding = word_reader.WordEmbedding(task, args, width=width, joint=True)
        first = EncoderBlock(args, plan, 0, convolutions=args.convolutions, kernel=7)
        how = {"convolutions": args.model_convolutions, "kernel": 5}
        others = (EncoderBlock(args, plan, n, **how) for n in range(1, len(plan.layers)))
        self.layers = nn.ModuleList([first, *others])
        self.attention = word_reader.ContextQueryAttention(width, matches=args.word_matches)
        self.resize = nn.Linear(self.attention.width, width, bias=False)
        self.head_width = 2 * width
        self.dropout, self.left_out = args.dropout, args.stochastic_depth

    def read(self, asked: Words, words: Words) -> Reading:
        read = (self._run(self.embedding(own), own.padding, range(1)) for own in (asked, words))
        (question, layers), (states, of_document) = read
        layers += of_document
        both = self.attention(states, question, words, asked)
        x, passes = self.resize(dropout(both, self.dropout, self.training)), []
        for _ in range(PASSES):
            x, of_pass = self._run(x, words.padding, range(1, len(self.layers)))
            layers += of_pass
            passes.append(dropout(x, self.dropout, self.training))
        if self.training:
            for number, reports in layers:
                self.layers[number].self_attn.observe(reports)
        begin, end = (torch.cat([passes[0], later], dim=-1) for later in passes[1:])
        return Reading(words, begin, end, layers)

    def _run(self, x: Tensor, padding: Tensor, blocks: range) -> tuple[Tensor, list[tuple]]:
        """Blocks one after another: [B, W, D], and each one's number and reports."""
        depth, layers = sum(len(self.layers[number].norms) for number in blocks), []
        survival = (1 - self.left_out * (i + 1) / depth for i in range(depth))
        for number in blocks:
            x, reports = self.layers[number](x, padding, survival)
            layers.append((number, reports))
        return x, layers


@register_model("qanet_reader", dataclass=QANetReaderConfig)
class QANetReader(WordReader):
    @classmethod
    def build_encoder(cls, args, task) -> QANetEncoder:
        if args.positions in ("learned", "none"):
            allowed = "sinusoidal, rotary, relative, for a document may have any length"
            raise refused("--positions", args.positions, allowed)
        # what the plan sets, by fairseq's names, if --positions is given
        options.set_defaults(args, encoder_learned_pos=False, no_token_positional_embeddings=False)
        plan = options.attention_plan(args, "encoder", spec="attention", rule="cluster_rule")
        kinds = (heads.options for layer in plan.layers for heads in layer)
        if not all(getattr(kind, "own_centroids", True) for kind in kinds):
            raise refused("--attention", args.attention, "centroids of its own for each block")
        return QANetEncoder(task, args, plan=plan)


_SMALL = {"encoder_embed_dim": 64, "encoder_ffn_embed_dim": 64, "encoder_layers": 4}
_LARGE = {"encoder_embed_dim": 256, "encoder_ffn_embed_dim": 256, "encoder_attention_heads": 8}
register_sizes(
    "qanet_reader",
    tiny=_SMALL | {"letter_filters": 32, "word_dim": 100},  # learns on a laptop's processor
    # the report's, by vectors and letters
    xlqa={"subword_dim": 0},
    xlqa_large=_LARGE | {"subword_dim": 0},
)
