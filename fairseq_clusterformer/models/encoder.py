"""A fairseq Transformer encoder whose layers choose which tokens see which."""

from itertools import chain
from typing import Any

import torch
from fairseq.models.transformer import TransformerConfig, TransformerEncoderBase
from fairseq.modules.transformer_layer import TransformerEncoderLayerBase
from torch import Tensor

from fairseq_clusterformer.attention import Batch, any_padding
from fairseq_clusterformer.clustering import Report, initial_centroids

from .stack import ClusteredLayer, ClusteredStack, at_once_in, pack, unpack


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
        [N, B, D] and the reports of self-attention, packed."""
        norm = self.self_attn_layer_norm
        read = self.normed(norm, x)
        change, reports = self.self_attn(read, encoder_padding_mask, centroids=centroids)
        x = self.added(norm, x, change)

        at_once, norm, out = at_once_in(self, x.device), self.final_layer_norm, []
        for part in [x] if at_once is None else x.split(max(1, at_once // x.size(1))):
            change = self.activation_dropout_module(self.activated(self.normed(norm, part)))
            out.append(self.added(norm, part, self.fc2(change)))
        return torch.cat(out), *pack(reports)


class ClusterformerEncoder(ClusteredStack, TransformerEncoderBase):
    """fairseq's encoder over :class:`ClusterformerEncoderLayer`.

    Where centroids are handed on (CF22 section 3.1), the stack owns the first ones: they reach the
    first clustering layer that runs, whichever layers LayerDrop leaves out.
    """

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
        by_layer: dict[int, list[Report]] = {}
        states = [x] if return_all_hiddens else []
        for layer in self.layers:
            x, *fields = layer(x, batch, centroids)
            by_layer[id(layer)] = unpack(fields)
            for report in by_layer[id(layer)]:
                if self.centroids is not None and report.centroids is not None:
                    centroids = report.centroids  # CF22 eq. 3, for the layer above
            if return_all_hiddens:
                states.append(x)
        if self.training:
            self.observe(by_layer)

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
            "reports": [*chain(*by_layer.values())],
        }

    def _load_from_state_dict(self, state_dict, prefix, *args):
        """Also take a dense checkpoint: what is clustered starts anew."""
        dense = not any(".routers." in key for key in state_dict if key.startswith(prefix))
        if self.centroids is not None and dense:
            state_dict.setdefault(f"{prefix}centroids", self.centroids.detach())
        super()._load_from_state_dict(state_dict, prefix, *args)
