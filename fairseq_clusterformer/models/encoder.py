"""A fairseq Transformer encoder whose layers choose which tokens see which, and what models share
that are an encoder and a head."""

import hashlib
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from fairseq import utils
from fairseq.data import Dictionary
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models import BaseFairseqModel
from fairseq.models.transformer import Embedding, TransformerConfig, TransformerEncoderBase
from fairseq.modules.transformer_layer import TransformerEncoderLayerBase
from torch import Tensor, nn

from fairseq_clusterformer.attention import Batch, any_padding
from fairseq_clusterformer.clustering import Report, initial_centroids

from .checkpoints import CheckpointError, ExplainedCheckpoints
from .options import EncoderClusteringOptions, attention_plan, complete, option, options_of, sized
from .pretrained import load_pretrained
from .stack import ClusteredLayer, ClusteredStack

#: learns on a laptop's processor in minutes
TINY = sized("encoder", 2, 64, 128, 4)
ACTIVATIONS = ChoiceEnum(utils.get_available_activation_fns())


class ClusterformerEncoderLayer(ClusteredLayer, TransformerEncoderLayerBase):
    """fairseq's encoder layer with self-attention of given kinds, whose reports it returns."""

    causal = False

    def forward(
        self,
        x: Tensor,
        encoder_padding_mask: Batch | Tensor | None = None,
        centroids: Tensor | None = None,
    ) -> tuple[Tensor | None, ...]:
        """One layer over x [N, B, D]; the mask is a batch, or bool [B, N], True for padding, and
        the centroids [B, K, D] are those that the layer before hands on. Returns the output
        [N, B, D] and the fields of the reports of self-attention."""
        norm = self.self_attn_layer_norm
        read = self.normed(norm, x)
        change, reports = self.self_attn(read, encoder_padding_mask, centroids=centroids)
        return self.fed_forward(self.added(norm, x, change)), *chain(*reports)


class ClusterformerEncoder(ClusteredStack, TransformerEncoderBase):
    """fairseq's encoder over :class:`ClusterformerEncoderLayer`. Where centroids are handed on
    (CF22 section 3.1), the stack owns the first ones: they reach the first clustering layer that
    runs, whichever layers LayerDrop leaves out."""

    def __init__(self, cfg: TransformerConfig, *args, **kwargs):
        super().__init__(cfg, *args, **kwargs)
        routers = [r for layer in self.all_layers() for r in layer.self_attn.routers]
        clusters = {r.rule.clusters for r in routers if r.rule.needs_centroids}
        self.centroids = None
        if len(clusters) > 1:
            problem = f"layers of {sorted(clusters)} clusters hand on their centroids"
            raise ValueError(f"{problem}; allowed: one number of clusters, or --own-centroids")
        for number in clusters:
            self.centroids = initial_centroids(number, cfg.encoder.embed_dim)

    def build_encoder_layer(self, cfg):
        return self.build_layer(ClusterformerEncoderLayer, cfg)

    def forward_scriptable(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        return_all_hiddens: bool = False,
        token_embeddings: Tensor | None = None,
    ) -> dict[str, list[Any]]:
        """Encode source sentences, int64 [B, N]: fairseq's ``encoder_out`` [N, B, D] and its
        relatives, and the layers' ``reports``. Padding is where the dictionary says so, whatever
        ``src_lengths``; ``token_embeddings`` [B, N, D] stand for the tokens' own."""
        padding_mask = src_tokens.eq(self.padding_idx)
        batch = Batch(any_padding(padding_mask))
        x, embedding = self.forward_embedding(src_tokens, token_embeddings)
        if not batch.is_plain:
            x = x.masked_fill(padding_mask.unsqueeze(-1), 0.0)
        x = x.transpose(0, 1)

        centroids = self.centroids
        if centroids is not None:
            centroids = centroids.expand(x.size(1), -1, -1)
        reports: list[Report] = []
        states = [x] if return_all_hiddens else []
        for layer in self.layers:
            x, *fields = layer(x, batch, centroids)
            reports += (of_layer := self.reports_of(layer, fields))
            for report in of_layer:
                if self.centroids is not None and report.centroids is not None:
                    centroids = report.centroids  # CF22 eq. 3, for the layer above
            if return_all_hiddens:
                states.append(x)
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        return {
            "encoder_out": [x],
            "encoder_padding_mask": [padding_mask],
            "encoder_embedding": [embedding],
            "encoder_states": states,
            "fc_results": [],
            "src_tokens": [],
            "src_lengths": [(~padding_mask).sum(1, dtype=src_tokens.dtype).unsqueeze(-1).int()],
            "reports": reports,
        }

    def _load_from_state_dict(self, state_dict, prefix, *args):
        """Also take a dense checkpoint: what is clustered starts anew."""
        dense = not any(".routers." in key for key in state_dict if key.startswith(prefix))
        if self.centroids is not None and dense:
            state_dict.setdefault(f"{prefix}centroids", self.centroids.detach())
        super()._load_from_state_dict(state_dict, prefix, *args)


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
    encoder_normalize_before: bool = option(False, "layer norm before each block, not after it")
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
    """An encoder of one dictionary, which its checkpoints remember. Subclasses add a head, and may
    have another encoder. ``args`` are options of the dataclass that the model is registered with;
    the ``task`` has ``source_dictionary`` and ``max_positions()``."""

    def __init__(self, args, task):
        super().__init__()
        self.args = args
        self.encoder = self.build_encoder(args, task)
        self.register_buffer("vocabulary", fingerprint(self.encoder.dictionary))
        self.segments: nn.Embedding | None = None  # of a pair's first and second text

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

    def add_segments(self) -> None:
        """Give the words of pairs new embeddings of their texts, too."""
        width = self.args.encoder_embed_dim
        self.segments = nn.Embedding(2, width)
        nn.init.normal_(self.segments.weight, std=width**-0.5)

    def encode(
        self, tokens: Tensor, segments: Tensor | None = None, return_all_hiddens: bool = False
    ) -> dict[str, Any]:
        """What the encoder returns of tokens, int64 [B, N]; ``segments`` of pairs are 1 in the
        second text and 0 else, int64 [B, N]; None: all 0."""
        words = None
        if self.segments is not None:
            segments = torch.zeros_like(tokens) if segments is None else segments
            words = self.encoder.embed_tokens(tokens) + self.segments(segments)
        return self.encoder(tokens, token_embeddings=words, return_all_hiddens=return_all_hiddens)

    def load_state_dict(self, state_dict, strict=True, model_cfg=None, args=None):
        """As fairseq's; raises CheckpointError: another dictionary, or unfit tensors."""
        given = state_dict.get("vocabulary")
        if given is not None and not torch.equal(given.cpu(), self.vocabulary.cpu()):
            raise CheckpointError("it was trained with another dictionary (dict.txt)")
        return super().load_state_dict(state_dict, strict, model_cfg, args)

    def load_initial_weights(self) -> None:
        """Start from what ``--pretrained`` names, see :func:`~.pretrained.load_pretrained`."""
        if self.args.pretrained:
            load_pretrained(self, self.args.pretrained)

    def pretrained_parts(self) -> dict[str, str]:
        """What else starts from a masked language model's tensors: their names there, and here."""
        return {}

    def max_positions(self) -> int:
        """Tokens of the longest sequence."""
        return self.encoder.max_positions()


def set_epsilon(module: nn.Module, epsilon: float) -> nn.Module:
    """Give all layer norms in a module another epsilon; return the module."""
    for norm in module.modules():
        if isinstance(norm, nn.LayerNorm):
            norm.eps = epsilon
    return module


def masked_mean(x: Tensor, real: Tensor) -> Tensor:
    """The mean over the real among x [B, N, D], by bool [B, N]: [B, D]; 0 if there are none."""
    total = x.masked_fill(~real.unsqueeze(-1), 0.0).sum(1)
    return total / real.sum(1, keepdim=True).clamp(min=1)


def fingerprint(dictionary: Dictionary) -> Tensor:
    """SHA-256 of a dictionary's symbols in their order, uint8 [32]."""
    digest = hashlib.sha256("\n".join(dictionary.symbols).encode()).digest()
    return torch.frombuffer(bytearray(digest), dtype=torch.uint8)
