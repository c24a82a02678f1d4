"""What models share that are an encoder and a head."""

import hashlib
import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import torch
from fairseq import utils
from fairseq.data import Dictionary
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models import BaseFairseqModel
from fairseq.models.transformer import TransformerConfig
from torch import Tensor, nn

from .checkpoints import CheckpointError, ExplainedCheckpoints, read_model
from .encoder import ClusterformerEncoder
from .options import EncoderClusteringOptions, attention_plan

logger = logging.getLogger(__name__)

_PRETRAINED = ("encoder.", "vocabulary")


@dataclass
class EncoderOptions(FairseqDataclass):
    """Sizes and dropout of an encoder, by fairseq's names."""

    activation_fn: ChoiceEnum(utils.get_available_activation_fns()) = field(
        default="relu", metadata={"help": "activation function"}
    )
    dropout: float = field(default=0.1, metadata={"help": "dropout probability"})
    attention_dropout: float = field(
        default=0.0, metadata={"help": "dropout probability of attention weights"}
    )
    activation_dropout: float = field(
        default=0.0, metadata={"help": "dropout probability after the activation"}
    )
    encoder_embed_dim: int = field(default=512, metadata={"help": "width of the encoder"})
    encoder_ffn_embed_dim: int = field(
        default=2048, metadata={"help": "width inside the feed-forward layers"}
    )
    encoder_layers: int = field(default=6, metadata={"help": "number of layers"})
    encoder_attention_heads: int = field(default=8, metadata={"help": "heads in each layer"})
    encoder_normalize_before: bool = field(
        default=False,
        metadata={"help": "layer norm before each block, instead of after it"},
    )
    checkpoint_activations: bool = field(
        default=False,
        metadata={"help": "save memory: compute activations twice"},
    )


@dataclass
class EncoderOnlyOptions(EncoderOptions, EncoderClusteringOptions):
    """Options of an encoder of any form."""

    encoder_learned_pos: bool = field(
        default=False, metadata={"help": "learn the positions, instead of using sines"}
    )
    encoder_layerdrop: float = field(default=0.0, metadata={"help": "LayerDrop probability"})
    encoder_layers_to_keep: str = field(
        default="", metadata={"help": "layers to keep when pruning, counted from 0, such as 0,2"}
    )
    layernorm_embedding: bool = field(
        default=False, metadata={"help": "put a layer norm after the embedding"}
    )
    no_token_positional_embeddings: bool = field(
        default=False, metadata={"help": "use no positions"}
    )
    no_scale_embedding: bool = field(
        default=False, metadata={"help": "do not multiply embeddings by the root of the width"}
    )


class EncoderOnlyModel(ExplainedCheckpoints, BaseFairseqModel):
    """A :class:`ClusterformerEncoder` of one dictionary, which its checkpoints remember."""

    def __init__(self, encoder: ClusterformerEncoder):
        super().__init__()
        self.encoder = encoder
        self.register_buffer("vocabulary", fingerprint(encoder.dictionary))

    @classmethod
    def hub_models(cls):
        return {}

    @classmethod
    def build_encoder(cls, args, task) -> ClusterformerEncoder:
        """The encoder that the options name, for the task's words and lengths.

        Raises:
            ValueError: an option of the attention that is not allowed.
        """
        plan = attention_plan(
            args,
            "encoder",
            spec="encoder_attention",
            rule="encoder_cluster_rule",
            own_centroids=args.own_centroids,
        )
        cfg = TransformerConfig.from_namespace(args)
        cfg.max_source_positions = task.max_positions()
        dictionary = task.source_dictionary
        embedding = nn.Embedding(
            len(dictionary), args.encoder_embed_dim, padding_idx=dictionary.pad()
        )
        nn.init.normal_(embedding.weight, std=args.encoder_embed_dim**-0.5)
        nn.init.zeros_(embedding.weight[dictionary.pad()])
        return ClusterformerEncoder(cfg, dictionary, embedding, plan=plan)

    def load_state_dict(self, state_dict, strict=True, model_cfg=None, args=None):
        """As fairseq's.

        Raises:
            CheckpointError: of another dictionary, or tensors that do not fit.
        """
        given = state_dict.get("vocabulary")
        if given is not None and not torch.equal(given.cpu(), self.vocabulary.cpu()):
            raise CheckpointError("it was trained with another dictionary (dict.txt)")
        return super().load_state_dict(state_dict, strict, model_cfg, args)

    def load_encoder(self, path: str) -> None:
        """Start from the encoder of ``--pretrained-checkpoint``; the head starts anew.

        Raises:
            CheckpointError: a file that cannot be read, or an encoder that does not fit.
        """
        given = read_model("--pretrained-checkpoint", path)
        loaded = {name: t for name, t in given.items() if name.startswith(_PRETRAINED)}
        mine = self.state_dict()
        head = {name: t for name, t in mine.items() if not name.startswith(_PRETRAINED)}
        try:
            self.load_state_dict(head | loaded)
        except CheckpointError as error:
            raise CheckpointError(
                f"--pretrained-checkpoint is {path}: it does not fit the model: {error}; "
                "allowed: a clusterformer_masked_lm of the same sizes, attention and dictionary"
            ) from None
        tell(path, mine, loaded, [name for name in given if name not in loaded])

    def max_positions(self) -> int:
        """Tokens of the longest sequence."""
        return self.encoder.max_positions()


def masked_mean(x: Tensor, real: Tensor) -> Tensor:
    """The mean over the real among x [B, N, D], by bool [B, N]: [B, D]; 0 if there are none."""
    total = x.masked_fill(~real.unsqueeze(-1), 0.0).sum(1)
    return total / real.sum(1, keepdim=True).clamp(min=1)


def tell(path: str, mine: Iterable[str], loaded: Collection[str], left: Collection[str]) -> None:
    """Log what became of each tensor of a checkpoint and of the model."""
    anew = [name for name in mine if name not in loaded]
    for what, names in {"loaded": loaded, "left there": left, "starting anew": anew}.items():
        logger.info(f"{path}: {len(names)} tensors {what}: {', '.join(names)}")


def fingerprint(dictionary: Dictionary) -> Tensor:
    """SHA-256 of a dictionary's symbols in their order, uint8 [32]."""
    digest = hashlib.sha256("\n".join(dictionary.symbols).encode()).digest()
    return torch.frombuffer(bytearray(digest), dtype=torch.uint8)
