"""``--arch clusterformer_reader``: documents and questions, by Cluster-Former (CF20)."""

from argparse import Namespace
from dataclasses import dataclass
from typing import Any

import torch
from fairseq.models import register_model
from torch import Tensor, nn

from fairseq_clusterformer.answers import TYPES, AnswerLogits
from fairseq_clusterformer.errors import refused
from fairseq_clusterformer.precision import ExactLinear

from . import options
from .encoder import ACTIVATIONS, EncoderOptions, PretrainedOptions, masked_mean, set_epsilon
from .options import flag, option, set_defaults, sized
from .pretrained import set_sizes_of_folder
from .reader import ReaderEncoder, ReaderModel, Reading


@dataclass
class ClusterformerReaderConfig(
    PretrainedOptions, EncoderOptions, options.with_kinds(options.ClusteringOptions, "reader")
):
    """Options of the encoder; by default it has RoBERTa-base's sizes."""

    activation_fn: ACTIVATIONS = option("gelu", "activation function")
    attention_dropout: float = option(0.1, "dropout probability of attention weights")
    encoder_embed_dim: int = option(768, "width of the encoder")
    encoder_ffn_embed_dim: int = option(3072, "width inside the feed-forward layers")
    encoder_layers: int = option(12, "number of layers")
    encoder_attention_heads: int = option(12, "heads in each layer")
    window_size: int = option(256, "tokens of the document in a sliding window", at_least=1)
    window_stride: int = option(224, "tokens from a window's beginning to the next", at_least=1)
    window_positions: int = option(512, "positions of a window, including those of the question")
    embedding_scale: float = option(
        1.0,
        "factor of the word embeddings, before positions are added: a larger one makes a state "
        "depend more on its word and less on its position",
        above=0,
    )
    cluster_layers: str = option(
        "7,10",
        "layers that attend across windows, counted from 0, such as 15,20; the others attend "
        "within a window",
    )
    cluster_attention: str = option(
        "kmeans",
        "kind of attention across windows; window: none, all layers are alike; strided: a token "
        "sees the same place in each window",
    )
    attention_window: int = option(
        0,
        "tokens of a kmeans chunk across windows; with --cluster-rule recent or gated heads, "
        "tokens on either side of a token; 0: the value of --window-stride",
        at_least=0,
    )
    cluster_rule: str = option(
        "chunk",
        "which tokens a query sees across windows, if the kind has a choice: chunk (parts of the "
        "tokens sorted by cluster) or recent (the nearest of its own cluster)",
    )
    token_types: int = option(0, "2: embeddings of question and document, as in BERT; 0: none")
    shared_softmax: bool = option(
        False,
        "whether there is an answer is decided in the softmaxes of its start and end, as BERT has "
        "it for SQuAD 2.0, instead of apart",
    )


class AnswerHeads(nn.Module):
    """Three linear maps (CF20 section 4.2), computed in float32 or more. If ``shared``, "no
    answer" starts and ends at the question's first token, by the map of spans (Devlin et al. 2019,
    section 4.3); other types have a logit there, too."""

    def __init__(self, embed_dim: int, *, shared: bool = False):
        super().__init__()
        self.shared = shared
        self.span = ExactLinear(embed_dim, 2)
        self.paragraph = ExactLinear(embed_dim, 1)
        self.answer_type = ExactLinear(embed_dim, len(TYPES))
        for head in (self.span, self.paragraph):
            nn.init.normal_(head.weight, std=0.02)
        nn.init.zeros_(self.answer_type.weight)
        # all types are equally likely, and stay so if the data has no types
        for head in self.children():
            nn.init.zeros_(head.bias)

    def forward(self, reading: Reading, paragraph_mask: Tensor, text_mask: Tensor) -> AnswerLogits:
        """Logits of what a reading of B documents answers. The masks, bool [B, N], are True for
        each ``<s>``, and where a short answer can begin and end."""
        real = ~reading.document_padding
        start, end = self.span(reading.document).unbind(-1)
        paragraph = self.paragraph(reading.document).squeeze(-1)
        # "the mean values of the first hidden state of all the chunked sequences"
        state = masked_mean(reading.question[:, :, 0], ~reading.question_padding[:, :, 0])
        types = self.answer_type(state)
        start, end = (x.masked_fill(~(text_mask & real), -torch.inf) for x in (start, end))
        paragraph = paragraph.masked_fill(~(paragraph_mask & real), -torch.inf)
        if not self.shared:
            return AnswerLogits(start, end, paragraph, types)
        others = types[:, None, 1:4].expand(-1, 2, -1) / 2  # yes, no and long
        slots = torch.cat([others, self.span(state).unsqueeze(-1)], dim=-1)
        return AnswerLogits.shared(start, end, paragraph, slots)


@register_model("clusterformer_reader", dataclass=ClusterformerReaderConfig)
class ClusterformerReader(ReaderModel):
    """A :class:`ReaderEncoder`, and what it answers."""

    def __init__(self, args, task):
        super().__init__(args, task)
        self.heads = AnswerHeads(args.encoder_embed_dim, shared=args.shared_softmax)

    @classmethod
    def check(cls, args, task) -> None:
        size = f"--window-size, which is {args.window_size}"
        if args.window_stride > args.window_size:
            raise refused("--window-stride", args.window_stride, f"1 to {size}")
        if args.window_positions < args.window_size:
            raise refused("--window-positions", args.window_positions, f"{size} or more")
        if args.pretrained and args.embedding_scale != 1:
            raise refused("--embedding-scale", args.embedding_scale, "1.0 with --pretrained")
        if args.token_types not in (0, 2):
            raise refused("--token-types", args.token_types, "0 or 2")
        for name, plain in (("positions", None), ("short_convolution", 0)):
            if (value := getattr(args, name)) != plain:
                raise refused(flag(name), value, "none in a reader, whose layers are RoBERTa's")

    @classmethod
    def build_encoder(cls, args, task) -> ReaderEncoder:
        plan = options.attention_plan(
            args,
            "encoder",
            spec="cluster_attention",
            rule="cluster_rule",
            attention_window=args.attention_window or args.window_stride,
        )
        given = "--cluster-attention", args.cluster_attention
        kinds = [heads.kind for heads in plan.layers[0]]
        alone = args.cluster_attention in ("window", "strided")
        if not alone and ("strided" in kinds or {*kinds} == {"window"}):
            raise refused(*given, "window or strided alone, or heads that look beyond")
        if not all(getattr(heads.options, "own_centroids", True) for heads in plan.layers[0]):
            raise refused(*given, "centroids of its own for each layer")
        encoder = ReaderEncoder(args, task.source_dictionary, plan)
        return set_epsilon(encoder, args.layer_norm_eps)

    def forward(
        self, question_tokens: Tensor, document_tokens: Tensor, text_mask: Tensor | None = None
    ) -> tuple[AnswerLogits, dict[str, Any]]:
        """Answer questions from a document each, see :meth:`ReaderEncoder.forward`; ``text_mask``
        as of :meth:`starts_and_text`. Returns logits, and the ``reading`` and ``reports``
        behind."""
        reading = self.encoder(question_tokens, document_tokens)
        starts, text = self.starts_and_text(document_tokens, text_mask)
        extra = {"reading": reading, "reports": {"encoder": reading.reports}}
        return self.heads(reading, starts, text), extra

    def check_questions(self, most: int) -> None:
        positions, size = self.args.window_positions, self.args.window_size
        if most > positions - size:
            allowed = f"up to {positions - size}, which is --window-positions less --window-size"
            raise refused("--max-question-positions", most, allowed)


def _of_folder(args: Namespace) -> None:
    """The sizes of ``--pretrained``'s folder; the middle and last layer across windows."""
    set_sizes_of_folder(args)
    layers = vars(args).get("encoder_layers", 12)
    set_defaults(args, cluster_layers=f"{layers // 2},{layers - 1}")


options.register_sizes(
    "clusterformer_reader",
    # learns on a laptop's processor
    tiny=(
        sized("encoder", 4, 64, 256, 4),
        {"window_size": 64, "window_stride": 56, "window_positions": 128},
        {"cluster_layers": "2", "num_clusters": 16},
    ),
    # MiniLM's, with BERT's token types
    minilm=(
        sized("encoder", 6, 384, 1536, 12),
        {"token_types": 2, "layer_norm_eps": 1e-12, "cluster_layers": "3,5"},
    ),
    pretrained=_of_folder,
    base={},  # RoBERTa-base's, as the options have them; clusters as far up as in "large"
    # CF20 section 4.2: RoBERTa-large's, two layers across windows
    large=(sized("encoder", 24, 1024, 4096, 16), {"cluster_layers": "15,20", "num_clusters": 512}),
)
