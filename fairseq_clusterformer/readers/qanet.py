"""``--arch qanet_reader``: QANet (Yu et al. 2018), as XLQA has it, with attention of any kind.

Shape letters: B batch, W words of the longest document, V of the longest question, D width.
"""

import math
from dataclasses import dataclass, field

import torch
from fairseq.models import FairseqEncoder, register_model, register_model_architecture
from torch import Tensor, nn
from torch.nn.functional import dropout

from fairseq_clusterformer.attention import (
    AttentionPlan,
    Batch,
    MultiheadAttention,
    OptionError,
)
from fairseq_clusterformer.clustering import Report
from fairseq_clusterformer.models.options import (
    ClusteringOptions,
    attention_plan,
    complete,
    flagged,
    set_defaults,
)
from fairseq_clusterformer.models.reader import labelled
from fairseq_clusterformer.models.stack import ClusteredStack

from .word_reader import (
    ContextQueryAttention,
    WordEmbedding,
    WordReader,
    WordReaderEncoder,
    WordReaderOptions,
    WordReading,
)
from .words import Words

PASSES = 3  # of the model encoder, with shared weights


@dataclass
class QANetReaderConfig(WordReaderOptions, ClusteringOptions):
    """Options; by default it has the report's smaller sizes."""

    dropout: float = field(default=0.1, metadata={"help": "dropout probability"})
    attention_dropout: float = field(
        default=0.1, metadata={"help": "dropout probability of attention weights"}
    )
    letter_filters: int = field(
        default=64,
        metadata={"help": "filters of the convolution over a word's letters; 0: none"},
    )
    encoder_embed_dim: int = field(default=128, metadata={"help": "width of the encoder"})
    encoder_ffn_embed_dim: int = field(
        default=128, metadata={"help": "width inside the feed-forward layers"}
    )
    encoder_attention_heads: int = field(default=4, metadata={"help": "heads in each block"})
    encoder_layers: int = field(
        default=8,
        metadata={
            "help": "blocks: the first encodes questions and documents, the others are the model "
            "encoder, which runs three times"
        },
    )
    convolutions: int = field(
        default=4, metadata={"help": "convolutions in the first block, of width 7"}
    )
    model_convolutions: int = field(
        default=2, metadata={"help": "convolutions in each other block, of width 5"}
    )
    stochastic_depth: float = field(
        default=0.1,
        metadata={
            "help": "how often a stack's last sublayer is left out in training, and the others in "
            "proportion to their depth"
        },
    )
    attention: str = field(
        default="full",
        metadata={
            "help": "attention of each block, separated by commas and cycled: + divides a block's "
            "heads among kinds, *n repeats a block"
        },
    )
    cluster_rule: str = field(
        default="chunk",
        metadata={
            "help": "which words of its cluster a query sees, if the kind has a choice: chunk "
            "(parts of the words sorted by cluster) or recent (the nearest of its own cluster)"
        },
    )


class SeparableConvolution(nn.Module):
    """A convolution of each channel for itself, then a linear map of the channels, and ReLU.

    Args:
        width: D.
        kernel: words that it sees, an odd number.
    """

    def __init__(self, width: int, kernel: int):
        super().__init__()
        self.depthwise = nn.Conv1d(
            width, width, kernel, padding=kernel // 2, groups=width, bias=False
        )
        self.pointwise = nn.Linear(width, width)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        """[B, W, D]; beyond a document's ends is 0.

        Args:
            padding: bool [B, W].
        """
        x = x.masked_fill(padding.unsqueeze(-1), 0.0)
        return self.pointwise(self.depthwise(x.transpose(1, 2)).transpose(1, 2)).relu()


def stochastic_depth(x: Tensor, change: Tensor, survival: float, training: bool) -> Tensor:
    """``x + change``; in training, of each row the change is left out or not (Huang et al. 2016).

    It is divided by the probability that it is not, so that its mean is that of inference. Rows
    are drawn one by one: then every parameter has a gradient in each update.

    Args:
        x, change: [B, W, D].
        survival: the probability that a change is not left out.
    """
    if not training or survival == 1:
        return x + change
    kept = torch.rand(len(x), 1, 1, device=x.device) < survival
    return x + change * kept.to(change) / survival


class EncoderBlock(nn.Module):
    """Convolutions, self-attention and a feed-forward layer, each normalised before and added.

    Args:
        args: `QANetReaderConfig`.
        plan: of the attention.
        number: of the block in the plan, counted from 0.
        convolutions: how many.
        kernel: their width.
    """

    def __init__(self, args, plan: AttentionPlan, number: int, *, convolutions: int, kernel: int):
        super().__init__()
        width = args.encoder_embed_dim
        self.kinds, self.dropout = plan.layers[number], args.dropout
        self.absolute = not (plan.rotary or plan.relative)
        self.convolutions = nn.ModuleList(
            SeparableConvolution(width, kernel) for _ in range(convolutions)
        )
        try:
            self.self_attn = MultiheadAttention(
                width,
                args.encoder_attention_heads,
                kinds=self.kinds,
                causal=False,
                dropout=args.attention_dropout,
                kv_heads=plan.kv_heads,
                rotary=plan.rotary,
                relative=plan.relative,
                short_convolution=plan.short_convolution,
                kernel=plan.kernel,
            )
        except OptionError as error:
            raise flagged(error) from None
        self.feed_forward = nn.Sequential(
            nn.Linear(width, args.encoder_ffn_embed_dim),
            nn.ReLU(),
            nn.Linear(args.encoder_ffn_embed_dim, width),
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(len(self)))

    def __len__(self) -> int:
        """Sublayers."""
        return len(self.convolutions) + 2

    def forward(
        self, x: Tensor, batch: Batch, padding: Tensor, survival: list[float]
    ) -> tuple[Tensor, list[Report]]:
        """[B, W, D], and the reports of self-attention.

        Args:
            batch: which words are padding.
            padding: the same, bool [B, W].
            survival: of each sublayer; see :func:`stochastic_depth`.
        """
        reports: list[Report] = []

        def attended(y: Tensor) -> Tensor:
            out, found = self.self_attn(y, batch)
            reports.extend(found)
            return out

        if self.absolute:
            x = x + sinusoids(x.size(1), x.size(2)).to(x)
        convolved = [lambda y, c=c: c(y, padding) for c in self.convolutions]
        sublayers = [*convolved, attended, self.feed_forward]
        for norm, sublayer, kept in zip(self.norms, sublayers, survival, strict=True):
            change = dropout(sublayer(norm(x)), self.dropout, self.training)
            x = stochastic_depth(x, change, kept, self.training)
        return x, reports


class QANetEncoder(ClusteredStack, WordReaderEncoder, FairseqEncoder):
    """Embedding, a block for questions and documents, context-query attention, and blocks that
    run three times.

    Args:
        task: has the dictionary, and the texts of its symbols.
        args: `QANetReaderConfig`.
        plan: of the attention of its blocks.
    """

    def __init__(self, task, args, *, plan: AttentionPlan):
        super().__init__(task.source_dictionary, plan=plan)
        width = args.encoder_embed_dim
        self.embedding = WordEmbedding(task, args, width=width, joint=True)
        sizes = [(args.convolutions, 7)]
        sizes += [(args.model_convolutions, 5)] * (len(plan.layers) - 1)
        self.layers = nn.ModuleList(
            EncoderBlock(args, plan, number, convolutions=convolutions, kernel=kernel)
            for number, (convolutions, kernel) in enumerate(sizes)
        )
        self.attention = ContextQueryAttention(width, matches=args.word_matches)
        self.resize = nn.Linear(self.attention.width, width, bias=False)
        self.head_width = 2 * width
        self.dropout, self.left_out = args.dropout, args.stochastic_depth

    def encode(self, words: Words) -> tuple[Tensor, list[Report]]:
        """By the first block: states [B, W, D], and its reports."""
        x, layers = self._run(self.embedding(words), _batch(words), words.padding, range(1))
        return x, layers[0][1]

    def read(
        self, asked: Words, words: Words, states: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, list[tuple[int, list[Report]]]]:
        """See :meth:`WordReaderEncoder.read`; all blocks have reports."""
        of_question, of_document = _batch(asked), _batch(words)
        question, layers = self._run(self.embedding(asked), of_question, asked.padding, range(1))
        if states is None:
            embedded = self.embedding(words)
            states, own = self._run(embedded, of_document, words.padding, range(1))
            layers += own
        both = self.attention(states, question, words, asked)
        x = self.resize(dropout(both, self.dropout, self.training))
        passes = []
        for _ in range(PASSES):
            x, of_pass = self._run(x, of_document, words.padding, range(1, len(self.layers)))
            layers += of_pass
            passes.append(dropout(x, self.dropout, self.training))
        if self.training:
            for number, reports in layers:
                self.layers[number].self_attn.observe(reports)
        begin, end = (torch.cat([passes[0], later], dim=-1) for later in passes[1:])
        return question, x, begin, end, layers

    def _run(
        self, x: Tensor, batch: Batch, padding: Tensor, blocks: range
    ) -> tuple[Tensor, list[tuple[int, list[Report]]]]:
        """Blocks one after another: [B, W, D], and each one's number and reports."""
        depth = sum(len(self.layers[number]) for number in blocks)
        survival = [1 - self.left_out * (i + 1) / depth for i in range(depth)]
        layers = []
        for number in blocks:
            block = self.layers[number]
            own, survival = survival[: len(block)], survival[len(block) :]
            x, reports = block(x, batch, padding, own)
            layers.append((number, reports))
        return x, layers

    def clusters(self, reading: WordReading) -> dict[tuple[int, str], Tensor]:
        """The cluster of each token of one document, int64 [N], for each block (and head) that
        clusters, in the model encoder's last pass: its number from 0, and its label."""
        found = {}
        for number, reports in reading.layers[1:]:  # the first is of the question
            for heads, report in zip(self.layers[number].kinds, reports, strict=True):
                if report.clusters is not None:
                    clusters = reading.words.at_tokens(report.clusters.transpose(1, 2))
                    found |= labelled(number, len(self.layers), str(heads), clusters)
        return found


def _batch(words: Words) -> Batch:
    return Batch(words.padding if words.padding.any() else None)


def sinusoids(length: int, width: int) -> Tensor:
    """Positions from 0 as sines and cosines, float32 [length, width]."""
    half = (width + 1) // 2
    rates = torch.exp(torch.arange(half) * (-math.log(10_000) / max(half - 1, 1)))
    angles = torch.arange(length).unsqueeze(1) * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1)[:, :width]


@register_model("qanet_reader", dataclass=QANetReaderConfig)
class QANetReader(WordReader):
    """A :class:`QANetEncoder`, and what it answers."""

    @classmethod
    def build_model(cls, args, task):
        """Build a model from fairseq's options.

        Raises:
            ValueError: an option that is not allowed.
        """
        complete(args, QANetReaderConfig)
        return cls(args, task)

    @classmethod
    def build_encoder(cls, args, task) -> QANetEncoder:
        """The encoder that the options name.

        Raises:
            ValueError: an option that is not allowed.
        """
        if args.encoder_layers < 2:
            raise ValueError(f"--encoder-layers is {args.encoder_layers}; allowed: 2 or more")
        for name in ("convolutions", "model_convolutions"):
            if getattr(args, name) < 0:
                flag = "--" + name.replace("_", "-")
                raise ValueError(f"{flag} is {getattr(args, name)}; allowed: 0 or more")
        if not 0 <= args.stochastic_depth < 1:
            raise ValueError(
                f"--stochastic-depth is {args.stochastic_depth}; allowed: 0 or more, below 1"
            )
        if args.positions in ("learned", "none"):
            raise ValueError(
                f"--positions is {args.positions}; allowed: sinusoidal, rotary, relative, for a "
                "document may have any length"
            )
        # what the plan sets, by fairseq's names, if --positions is given
        set_defaults(args, encoder_learned_pos=False, no_token_positional_embeddings=False)
        plan = attention_plan(args, "encoder", spec="attention", rule="cluster_rule")
        for heads in (heads for layer in plan.layers for heads in layer):
            if not getattr(heads.options, "own_centroids", True):
                raise ValueError(
                    f"--attention is {args.attention}; allowed: centroids of its own for each "
                    "block"
                )
        return QANetEncoder(task, args, plan=plan)


@register_model_architecture("qanet_reader", "qanet_reader_tiny")
def qanet_reader_tiny(args):
    """Width 64, four blocks, vectors of 100: learns on a laptop's processor."""
    set_defaults(
        args,
        encoder_embed_dim=64,
        encoder_ffn_embed_dim=64,
        encoder_layers=4,
        letter_filters=32,
        word_dim=100,
    )


@register_model_architecture("qanet_reader", "qanet_reader_xlqa")
def qanet_reader_xlqa(args):
    """The report's smaller QANet: width 128, 4 heads, vectors and letters."""
    set_defaults(args, subword_dim=0)


@register_model_architecture("qanet_reader", "qanet_reader_xlqa_large")
def qanet_reader_xlqa_large(args):
    """The report's larger QANet: width 256, 8 heads, vectors and letters."""
    set_defaults(
        args,
        encoder_embed_dim=256,
        encoder_ffn_embed_dim=256,
        encoder_attention_heads=8,
        subword_dim=0,
    )
