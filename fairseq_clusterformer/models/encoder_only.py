"""What models share that are an encoder and a head."""

import hashlib
import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import torch
from fairseq import utils
from fairseq.data import Dictionary
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models import BaseFairseqModel
from fairseq.models.transformer import Embedding, TransformerConfig
from torch import Tensor, nn

from .checkpoints import (
    CheckpointError,
    ExplainedCheckpoints,
    check_words,
    read_checkpoint,
    renamed,
    unfit,
)
from .encoder import ClusterformerEncoder
from .options import (
    EncoderClusteringOptions,
    attention_plan,
    complete,
    option,
    options_of,
    sized,
)

logger = logging.getLogger(__name__)

_PRETRAINED = ("encoder.", "vocabulary")
_HEADS = ("lm_head.", "classification_heads.")  # of fairseq's RoBERTa
_OF_WORDS = {"encoder.embed_tokens.weight", "lm_head.weight", "lm_head.bias"}
#: learns on a laptop's processor in minutes
TINY = sized("encoder", 2, 64, 128, 4)
ACTIVATIONS = ChoiceEnum(utils.get_available_activation_fns())


@dataclass
class EncoderOptions(FairseqDataclass):
    """Sizes and dropout of an encoder, by fairseq's names."""

    activation_fn: ACTIVATIONS = option("relu", "activation function")
    dropout: float = option(0.1, "dropout probability")
    attention_dropout: float = option(0.0, "dropout probability of attention weights")
    activation_dropout: float = option(0.0, "dropout probability after the activation")
    encoder_embed_dim: int = option(512, "width of the encoder")
    encoder_ffn_embed_dim: int = option(2048, "width inside the feed-forward layers")
    encoder_layers: int = option(6, "number of layers")
    encoder_attention_heads: int = option(8, "heads in each layer")
    encoder_normalize_before: bool = option(
        False, "layer norm before each block, instead of after it"
    )
    layer_norm_eps: float = option(1e-5, "epsilon of layer norms; BERT's is 1e-12", above=0)
    checkpoint_activations: bool = option(False, "save memory: compute activations twice")


@dataclass
class EncoderOnlyOptions(EncoderOptions, EncoderClusteringOptions):
    """Options of an encoder of any form."""

    encoder_learned_pos: bool = option(False, "learn the positions, instead of using sines")
    encoder_layerdrop: float = option(0.0, "LayerDrop probability")
    encoder_layers_to_keep: str = option("", "layers kept when pruning, such as 0,2")
    layernorm_embedding: bool = option(False, "put a layer norm after the embedding")
    no_token_positional_embeddings: bool = option(False, "use no positions")
    no_scale_embedding: bool = option(False, "do not multiply embeddings by the root of the width")


@dataclass
class PretrainedOptions(FairseqDataclass):
    """What an encoder of BERT's form starts from."""

    pretrained: str = option(
        "",
        "folder of BERT's form (BERT, MiniLM, DistilBERT, ELECTRA, RoBERTa), or checkpoint of "
        "fairseq's roberta, from which the encoder starts",
    )


class EncoderOnlyModel(ExplainedCheckpoints, BaseFairseqModel):
    """An encoder of one dictionary, which its checkpoints remember.

    Subclasses add a head, and may have another encoder (:meth:`build_encoder`).

    Args:
        args: fairseq's options, of the dataclass that the model is registered with.
        task: has ``source_dictionary`` and ``max_positions()``.
    """

    def __init__(self, args, task):
        super().__init__()
        self.args = args
        self.encoder = self.build_encoder(args, task)
        self.register_buffer("vocabulary", fingerprint(self.encoder.dictionary))

    @classmethod
    def build_model(cls, args, task):
        """Build a model; raises ValueError for an option that is not allowed."""
        complete(args, options_of(cls))
        cls.check(args, task)
        return cls(args, task)

    @classmethod
    def check(cls, args, task) -> None:
        """Raise ValueError for options that do not go together."""

    @classmethod
    def build_encoder(cls, args, task) -> nn.Module:
        """The encoder of the options, for the task's words and lengths, or ValueError."""
        plan = attention_plan(args, "encoder")
        cfg = TransformerConfig.from_namespace(args)
        cfg.max_source_positions = task.max_positions()
        dictionary = task.source_dictionary
        words = Embedding(len(dictionary), args.encoder_embed_dim, dictionary.pad())
        encoder = ClusterformerEncoder(cfg, dictionary, words, plan=plan)
        return set_epsilon(encoder, args.layer_norm_eps)

    def load_state_dict(self, state_dict, strict=True, model_cfg=None, args=None):
        """As fairseq's; raises CheckpointError: another dictionary, or unfit tensors."""
        given = state_dict.get("vocabulary")
        if given is not None and not torch.equal(given.cpu(), self.vocabulary.cpu()):
            raise CheckpointError("it was trained with another dictionary (dict.txt)")
        return super().load_state_dict(state_dict, strict, model_cfg, args)

    def load_encoder(self, option: str, path: str) -> None:
        """Start from the encoder of a checkpoint, of ours or of fairseq's RoBERTa (Liu et al.,
        2019), and from what else of it :attr:`pretrained_parts` names; the rest starts anew."""
        given, mine = read_checkpoint(option, path)["model"], self.state_dict()
        words, parts = self.encoder.dictionary, self.pretrained_parts()
        is_roberta = any(".sentence_encoder." in name for name in given)
        if is_roberta:
            check_words(option, path, words)
            if self.encoder.embed_scale != 1:
                raise unfit(option, path, "words are scaled here", "--no-scale-embedding")
            given = {
                name if name.startswith(_HEADS) else f"encoder.{name}": tensor
                for name, tensor in renamed(given).items()
            }
            parts |= {name: name for name in mine.keys() & given.keys() if name.startswith(_HEADS)}
            for name in _OF_WORDS & given.keys():
                if len(given[name]) == len(words) + 1:
                    given[name] = given[name][:-1]  # its task's <mask> is in no dict.txt
        loaded = {name: t for name, t in given.items() if name.startswith(_PRETRAINED)}
        loaded |= {parts[name]: tensor for name, tensor in given.items() if name in parts}
        if "segments.weight" in given and "segments.weight" not in loaded:
            # a text alone is the first of a pair: its segment was added to every word
            words = loaded["encoder.embed_tokens.weight"].clone()
            real = torch.arange(len(words)) != self.encoder.padding_idx
            words[real] += given["segments.weight"][0]
            loaded["encoder.embed_tokens.weight"] = words
        # no RoBERTa has clusters, our mark of the dictionary, and the mark of its version
        new = (".routers.", "vocabulary", "encoder.version") if is_roberta else ()
        anew = [
            name
            for name in mine.keys() - loaded.keys()
            if not name.startswith(_PRETRAINED) or any(part in name for part in new)
        ]
        allowed = "a clusterformer_masked_lm or a RoBERTa of the same sizes, attention and words"
        self.start_from(option, path, loaded, anew, allowed)
        left = [name for name in given if parts.get(name, name) not in loaded]
        tell(path, mine, loaded, left)

    def pretrained_parts(self) -> dict[str, str]:
        """What else starts from a masked language model's tensors: their names there, and here."""
        return {}

    def start_from(
        self, option: str, path: str, loaded: dict[str, Tensor], anew: Iterable[str], allowed: str
    ) -> None:
        """Start from the tensors of a checkpoint, but for those that may start anew. Raises
        CheckpointError: a file that does not fit; it names the option and what is allowed."""
        own = self.state_dict()
        try:
            self.load_state_dict({name: own[name] for name in anew} | loaded)
        except CheckpointError as error:
            raise unfit(option, path, f"it does not fit the model: {error}", allowed) from None

    def max_positions(self) -> int:
        """Tokens of the longest sequence."""
        return self.encoder.max_positions()


def set_epsilon(module: nn.Module, epsilon: float) -> nn.Module:
    """Give all layer norms in a module another epsilon; return the module."""
    for norm in module.modules():
        if isinstance(norm, nn.LayerNorm):
            norm.eps = epsilon
    return module


def segment_embeddings(width: int) -> nn.Embedding:
    """New embeddings of a pair's first and second text."""
    segments = nn.Embedding(2, width)
    nn.init.normal_(segments.weight, std=width**-0.5)
    return segments


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
