"""``--arch clusterformer_reader``: documents and questions, by Cluster-Former (CF20)."""

from dataclasses import dataclass, field
from typing import Any

from fairseq import utils
from fairseq.dataclass import ChoiceEnum
from fairseq.models import register_model, register_model_architecture
from fairseq.models.transformer import TransformerConfig
from torch import Tensor, nn

from fairseq_clusterformer.answers import AnswerLogits

from .answer_heads import AnswerHeads
from .encoder_only import EncoderOptions
from .options import (
    ClusteringOptions,
    attention_plan,
    complete,
    set_defaults,
)
from .pretrained import load_folder
from .reader import ReaderEncoder, ReaderModel
from .roberta import load_roberta


@dataclass
class ClusterformerReaderConfig(EncoderOptions, ClusteringOptions):
    """Options of the encoder; by default it has RoBERTa-base's sizes."""

    activation_fn: ChoiceEnum(utils.get_available_activation_fns()) = field(
        default="gelu", metadata={"help": "activation function"}
    )
    attention_dropout: float = field(
        default=0.1, metadata={"help": "dropout probability of attention weights"}
    )
    encoder_embed_dim: int = field(default=768, metadata={"help": "width of the encoder"})
    encoder_ffn_embed_dim: int = field(
        default=3072, metadata={"help": "width inside the feed-forward layers"}
    )
    encoder_layers: int = field(default=12, metadata={"help": "number of layers"})
    encoder_attention_heads: int = field(default=12, metadata={"help": "heads in each layer"})
    window_size: int = field(
        default=256, metadata={"help": "tokens of the document in a sliding window"}
    )
    window_stride: int = field(
        default=224,
        metadata={"help": "tokens from one window's beginning to the next one's"},
    )
    window_positions: int = field(
        default=512, metadata={"help": "positions of a window, including those of the question"}
    )
    embedding_scale: float = field(
        default=1.0,
        metadata={
            "help": "factor of the word embeddings, before positions are added: a larger one "
            "makes a state depend more on its word and less on its position"
        },
    )
    cluster_layers: str = field(
        default="7,10",
        metadata={
            "help": "layers that attend across windows, counted from 0, such as 15,20; the others "
            "attend within a window"
        },
    )
    cluster_attention: str = field(
        default="kmeans",
        metadata={
            "help": "kind of attention across windows; window: none, all layers are alike; "
            "strided: a token sees the same place in each window"
        },
    )
    attention_window: int = field(
        default=0,
        metadata={
            "help": "tokens of a kmeans chunk across windows; with --cluster-rule recent or gated "
            "heads, tokens on either side of a token; 0: the value of --window-stride"
        },
    )
    num_clusters: int = field(default=64, metadata={"help": "K: clusters in each of these layers"})
    cluster_rule: str = field(
        default="chunk",
        metadata={
            "help": "which tokens a query sees across windows, if the kind has a choice: chunk "
            "(parts of the tokens sorted by cluster) or recent (the nearest of its own cluster)"
        },
    )
    token_types: int = field(
        default=0,
        metadata={
            "help": "2: question and document have embeddings of their own, as in BERT; 0: none"
        },
    )
    layer_norm_eps: float = field(
        default=1e-5, metadata={"help": "epsilon of layer norms; BERT's is 1e-12"}
    )
    pretrained: str = field(
        default="",
        metadata={
            "help": "folder of BERT's form (BERT, MiniLM, DistilBERT, ELECTRA, RoBERTa), from "
            "which the encoder starts"
        },
    )
    roberta_checkpoint: str = field(
        default="",
        metadata={"help": "checkpoint of fairseq's roberta, from which the encoder starts"},
    )


@register_model("clusterformer_reader", dataclass=ClusterformerReaderConfig)
class ClusterformerReader(ReaderModel):
    """A :class:`ReaderEncoder`, and what it answers."""

    def __init__(self, args, task):
        super().__init__(self.build_encoder(args, task))
        self.args = args
        self.heads = AnswerHeads(args.encoder_embed_dim)

    @classmethod
    def build_model(cls, args, task):
        """Build a model from fairseq's options.

        Raises:
            ValueError: an option that is not allowed.
        """
        complete(args, ClusterformerReaderConfig)
        return cls(args, task)

    @classmethod
    def build_encoder(cls, args, task) -> ReaderEncoder:
        """The encoder that the options name, for the task's words.

        Raises:
            ValueError: an option that is not allowed.
        """
        _check_windows(args)
        for name, plain in (("positions", None), ("short_convolution", 0)):
            if (value := getattr(args, name)) != plain:
                raise ValueError(
                    f"--{name.replace('_', '-')} is {value}; allowed in a reader: none, for most "
                    "of its layers are RoBERTa's"
                )
        plan = attention_plan(
            args,
            "encoder",
            spec="cluster_attention",
            rule="cluster_rule",
            attention_window=args.attention_window or args.window_stride,
        )
        for heads in plan.layers[0]:
            alone = args.cluster_attention == heads.kind
            if heads.kind in ("window", "strided") and not alone:
                raise ValueError(
                    f"--cluster-attention is {args.cluster_attention}; allowed: {heads.kind} by "
                    "itself, for it does not look across windows"
                )
            if not getattr(heads.options, "own_centroids", True):
                raise ValueError(
                    f"--cluster-attention is {args.cluster_attention}; allowed: centroids of its "
                    "own for each layer"
                )
        cfg = TransformerConfig.from_namespace(args)
        cfg.max_source_positions = args.window_positions
        # what RoBERTa has: learned positions, their sum with the embeddings normalised
        cfg.encoder.learned_pos = cfg.layernorm_embedding = True
        dictionary = task.source_dictionary
        embedding = nn.Embedding(
            len(dictionary), args.encoder_embed_dim, padding_idx=dictionary.pad()
        )
        nn.init.normal_(embedding.weight, std=args.encoder_embed_dim**-0.5)
        nn.init.zeros_(embedding.weight[dictionary.pad()])
        encoder = ReaderEncoder(
            cfg,
            dictionary,
            embedding,
            size=args.window_size,
            stride=args.window_stride,
            cluster_layers=_cluster_layers(args),
            cluster_attention=args.cluster_attention,
            plan=plan,
            token_types=args.token_types,
        )
        encoder.embed_scale = args.embedding_scale
        for module in encoder.modules():
            if isinstance(module, nn.LayerNorm):
                module.eps = args.layer_norm_eps
        return encoder

    def forward(
        self,
        question_tokens: Tensor,
        document_tokens: Tensor,
        text_mask: Tensor | None = None,
    ) -> tuple[AnswerLogits, dict[str, Any]]:
        """Answer questions from a document each.

        Args:
            question_tokens: int64 [B, Q].
            document_tokens: each paragraph led by ``<s>``, int64 [B, N]; see
                :meth:`ReaderEncoder.forward`.
            text_mask: bool [B, N], True where a short answer can begin and end; None: everywhere
                but at ``<s>``.

        Returns:
            Logits, the ``reading`` of the encoder, and its layers' ``reports``.
        """
        reading = self.encoder(question_tokens, document_tokens)
        starts = document_tokens.eq(self.encoder.dictionary.bos())
        text = ~starts if text_mask is None else text_mask & ~starts
        extra = {"reading": reading, "reports": {"encoder": reading.reports}}
        return self.heads(reading, starts, text), extra

    def max_positions(self) -> None:
        """A document may have any number of tokens."""

    def check_questions(self, most: int) -> None:
        """Refuse questions that leave no room in a window.

        Args:
            most: tokens of a question.

        Raises:
            ValueError: naming the option.
        """
        positions, size = self.args.window_positions, self.args.window_size
        if most > positions - size:
            raise ValueError(
                f"--max-question-positions is {most}; allowed: up to {positions - size}, which is "
                f"--window-positions ({positions}) less --window-size ({size})"
            )

    def load_initial_weights(self) -> None:
        """Start from what ``--pretrained`` or ``--roberta-checkpoint`` names.

        Raises:
            CheckpointError: a file that cannot be read or does not fit.
        """
        if self.args.pretrained:
            load_folder(self, self.args.pretrained)
        elif self.args.roberta_checkpoint:
            load_roberta(self, self.args.roberta_checkpoint)


def _check_windows(args) -> None:
    """Refuse windows that leave tokens out or have no positions.

    Raises:
        ValueError: naming the option.
    """
    if not 1 <= args.window_stride <= args.window_size:
        raise ValueError(
            f"--window-stride is {args.window_stride}; allowed: 1 to --window-size, which is "
            f"{args.window_size}"
        )
    if args.window_positions < args.window_size:
        raise ValueError(
            f"--window-positions is {args.window_positions}; allowed: --window-size, which is "
            f"{args.window_size}, and as many more as a question has tokens"
        )
    if not args.embedding_scale > 0:
        raise ValueError(f"--embedding-scale is {args.embedding_scale}; allowed: above 0")
    if args.roberta_checkpoint and args.pretrained:
        raise ValueError(
            f"--roberta-checkpoint is {args.roberta_checkpoint}; allowed: without --pretrained"
        )
    if (args.roberta_checkpoint or args.pretrained) and args.embedding_scale != 1:
        raise ValueError(
            f"--embedding-scale is {args.embedding_scale}; allowed: 1.0 with pre-trained weights, "
            "whose words are not scaled"
        )
    if args.token_types not in (0, 2):
        raise ValueError(f"--token-types is {args.token_types}; allowed: 0 or 2")
    if not args.layer_norm_eps > 0:
        raise ValueError(f"--layer-norm-eps is {args.layer_norm_eps}; allowed: above 0")
    if args.attention_window < 0:
        raise ValueError(
            f"--attention-window is {args.attention_window}; allowed: 1 or more, or 0 for "
            "--window-stride"
        )


def _cluster_layers(args) -> tuple[int, ...]:
    """The numbers that ``--cluster-layers`` lists. CF20 counts from 0 as well: in its table 4,
    24 is a multiple of 6 and yet no layer of 24.

    Raises:
        ValueError: a layer that there is not, or the first, which has no window below it.
    """
    try:
        numbers = sorted({int(number) for number in args.cluster_layers.split(",") if number})
    except ValueError:
        numbers = [0]
    if any(not 1 <= number < args.encoder_layers for number in numbers):
        raise ValueError(
            f"--cluster-layers is {args.cluster_layers}; allowed: layers 1 to "
            f"{args.encoder_layers - 1}, counted from 0, separated by commas"
        )
    return tuple(numbers)


@register_model_architecture("clusterformer_reader", "clusterformer_reader_tiny")
def clusterformer_reader_tiny(args):
    """4 layers of 64, 4 heads, windows of 64: learns on a laptop's processor."""
    set_defaults(
        args,
        encoder_layers=4,
        encoder_embed_dim=64,
        encoder_ffn_embed_dim=256,
        encoder_attention_heads=4,
        window_size=64,
        window_stride=56,
        window_positions=128,
        cluster_layers="2",
        num_clusters=16,
    )


@register_model_architecture("clusterformer_reader", "clusterformer_reader_minilm")
def clusterformer_reader_minilm(args):
    """The 6 layers of 384 of MiniLM, with BERT's token types; layers 3 and 5 across windows."""
    set_defaults(
        args,
        encoder_layers=6,
        encoder_embed_dim=384,
        encoder_ffn_embed_dim=1536,
        encoder_attention_heads=12,
        token_types=2,
        layer_norm_eps=1e-12,
        cluster_layers="3,5",
    )


@register_model_architecture("clusterformer_reader", "clusterformer_reader_base")
def clusterformer_reader_base(args):
    """RoBERTa-base's 12 layers of 768; clusters as far up as in ``clusterformer_reader_large``."""


@register_model_architecture("clusterformer_reader", "clusterformer_reader_large")
def clusterformer_reader_large(args):
    """CF20 section 4.2: RoBERTa-large's 24 layers of 1,024, two of them across windows."""
    set_defaults(
        args,
        encoder_layers=24,
        encoder_embed_dim=1024,
        encoder_ffn_embed_dim=4096,
        encoder_attention_heads=16,
        cluster_layers="15,20",
        num_clusters=512,
    )
