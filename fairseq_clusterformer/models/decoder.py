"""A fairseq Transformer decoder whose layers choose which tokens see which, and more tokens for
each row by what they keep of those before."""

from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from fairseq.models.transformer import TransformerDecoderBase
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase
from torch import Tensor, nn
from torch.nn.functional import embedding

from fairseq_clusterformer.attention import Batch, any_padding
from fairseq_clusterformer.errors import refused
from fairseq_clusterformer.products import mapped

from .stack import ClusteredLayer, ClusteredStack, SegmentState, State

# Tokens of a portion: of a width of 768 they make 25 MB, and more is asked of the system anew.
PROMPT_AT_ONCE = 1 << 13


class ClusterformerDecoderLayer(ClusteredLayer, TransformerDecoderLayerBase):
    """fairseq's decoder layer with self-attention of given kinds, whose reports it returns."""

    causal = True

    def forward(
        self,
        x: Tensor,
        encoder_out: Tensor | None = None,
        encoder_padding_mask: Tensor | None = None,
        incremental_state: State | None = None,
        batch: Batch | None = None,
        need_attn: bool = False,
    ) -> tuple[Tensor | None, ...]:
        """One layer over x [N, B, D], whose real tokens and documents ``batch`` has. Returns the
        output [N, B, D], the weights of each head's attention to the encoder's [S, B, D] if they
        are needed, or None, and the fields of the reports of self-attention."""
        norm = self.self_attn_layer_norm
        change, reports = self.self_attn(self.normed(norm, x), batch, incremental_state)
        if self.c_attn is not None:  # NormFormer
            heads = change.unflatten(-1, (self.nh, -1))
            change = (heads * self.c_attn.unsqueeze(-1)).flatten(-2)
        if self.attn_ln is not None:
            change = self.attn_ln(change)
        x = self.added(norm, x, change)

        weights = None
        if self.encoder_attn is not None and encoder_out is not None:
            norm = self.encoder_attn_layer_norm
            change, weights = self.encoder_attn(
                query=self.normed(norm, x),
                key=encoder_out,
                value=encoder_out,
                key_padding_mask=encoder_padding_mask,
                incremental_state=incremental_state,
                static_kv=True,
                need_weights=need_attn,
                need_head_weights=need_attn,
            )
            x = self.added(norm, x, change)

        return self.fed_forward(x), weights, *chain(*reports)


class ClusterformerDecoder(ClusteredStack, TransformerDecoderBase):
    """fairseq's decoder over :class:`ClusterformerDecoderLayer`; no [N, N] mask is ever made. With
    ``separate_documents`` an end-of-sentence symbol begins a document of its own, which sees
    nothing of those before; positions start again."""

    def __init__(self, *args, separate_documents: bool = False, output_bias: bool = False, **how):
        super().__init__(*args, **how)
        self.separate_documents = separate_documents
        # a text of several documents is read token by token, its prompt too
        self.reads_prompts = not separate_documents
        if output_bias:
            if self.output_projection is None:
                raise ValueError("--output-bias is True; allowed: without an adaptive softmax")
            words = len(self.output_projection.weight)
            self.output_projection.bias = nn.Parameter(torch.zeros(words))

    @property
    def leaks_future(self) -> bool:
        """Whether later tokens change earlier outputs, so that nothing can be generated."""
        return any(not layer.self_attn.can_step for layer in self.all_layers())

    def build_decoder_layer(self, cfg, no_encoder_attn=False):
        return self.build_layer(ClusterformerDecoderLayer, cfg, no_encoder_attn)

    def output_layer(self, features: Tensor) -> Tensor:
        """fairseq's: logits [B, N, V], or features [B, N, D] where the softmax is adaptive."""
        return features if self.adaptive_softmax else mapped(self.output_projection, features)

    def extract_features_scriptable(
        self,
        prev_output_tokens: Tensor,
        encoder_out: dict[str, list[Tensor]] | None,
        incremental_state: State | SegmentState | None = None,
        full_context_alignment: bool = False,
        alignment_layer: int | None = None,
        alignment_heads: int | None = None,
        documents: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Features [B, N, D] and extra outputs, as fairseq's; see :meth:`run`. Of
        ``prev_output_tokens``, int64 [B, all so far], those of the newest where a state holds the
        others; an empty state takes all at once, a `SegmentState` the next ones alone, padded at
        their end. ``documents`` are the numbers of the tokens' documents in their row, int64
        [B, N]; None: as ``separate_documents`` says. Raises ValueError: full_context_alignment."""
        if full_context_alignment:
            raise refused("full_context_alignment", True, "False in a causal decoder")
        tokens, padding = prev_output_tokens, prev_output_tokens.eq(self.padding_idx)
        if documents is None and self.separate_documents:
            # an end-of-sentence symbol stands before what follows it
            documents = tokens.eq(self.dictionary.eos()).long().cumsum(1)
        if isinstance(incremental_state, SegmentState):
            first = incremental_state.tokens
            incremental_state.tokens += tokens.size(1)
            batch = Batch(any_padding(padding))
            places = torch.arange(first, incremental_state.tokens, device=tokens.device)[None]
        elif not incremental_state:
            batch = Batch(any_padding(padding), documents)
            places = batch.positions(tokens)
        else:
            places = tokens.new_full((1, 1), tokens.size(1) - 1)
            if documents is not None:
                places = Batch(padding, documents).positions(tokens)[:, -1:]
                documents = documents[:, -1:]
            tokens, padding = tokens[:, -1:], padding[:, -1:]
            # Avoid a device sync: on a GPU it would cost more than the step.
            batch = Batch(padding if tokens.is_cuda else any_padding(padding), documents)
        x = self.embed(tokens, places.clamp(min=0))
        if alignment_layer is None:
            alignment_layer = self.num_layers - 1
        return self.run(x, batch, encoder_out, incremental_state, alignment_layer, alignment_heads)

    def embed(self, tokens: Tensor, places: Tensor) -> Tensor:
        """Input of the first layer [N, B, D], of tokens, int64 [B, N], and their places in their
        texts, counted from 0, int64 [1 or B, N]."""
        x = self.embed_scale * self.embed_tokens(tokens)
        if self.quant_noise is not None:
            x = self.quant_noise(x)
        if self.project_in_dim is not None:
            x = self.project_in_dim(x)
        if (table := self.embed_positions) is not None:
            rows = places + table.padding_idx + 1  # as fairseq counts them
            learned = isinstance(table, nn.Embedding)
            x = x + (embedding(rows, table.weight) if learned else table.at(rows))
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x)
        return self.dropout_module(x).transpose(0, 1)

    def run(
        self,
        x: Tensor,
        batch: Batch,
        encoder_out: dict[str, list[Tensor]] | None = None,
        incremental_state: State | SegmentState | None = None,
        alignment_layer: int | None = None,
        alignment_heads: int | None = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """All layers: features [B, N, D] of embedded tokens x [N, B, D], and extra outputs:
        "attn", mean weights of the attention to the encoder of some heads of ``alignment_layer``,
        "inner_states", the input and, without a state, each layer's output, and "reports", what
        :func:`~fairseq_clusterformer.metrics.clusters.summary` takes. On a CPU, a decoder without
        an encoder reads a long prompt in portions; extra outputs are then empty."""
        plain = encoder_out is None and batch.documents is None and x.is_cpu
        if plain and isinstance(incremental_state, dict) and len(x) > PROMPT_AT_ONCE:
            found, mask = [], batch.padding_mask
            for first in range(0, len(x), PROMPT_AT_ONCE):
                part = slice(first, first + PROMPT_AT_ONCE)
                of_part = Batch(mask if mask is None else any_padding(mask[:, part]))
                found.append(self.run(x[part], of_part, None, incremental_state)[0])
            return torch.cat(found, dim=1), {"attn": [None], "inner_states": [], "reports": {}}
        encoder, padding_mask = (
            encoder_out[name][0] if encoder_out is not None and encoder_out[name] else None
            for name in ("encoder_out", "encoder_padding_mask")
        )
        weights, reports, inner_states = None, [], [x]
        for i, layer in enumerate(self.layers):
            x, layer_weights, *fields = layer(
                x, encoder, padding_mask, incremental_state, batch, need_attn=i == alignment_layer
            )
            if incremental_state is None:  # in decoding nobody reads them, and they are large
                inner_states.append(x)
            if layer_weights is not None and i == alignment_layer:
                weights = layer_weights[:alignment_heads].float().mean(dim=0).to(x)
            reports += self.reports_of(layer, fields)

        if self.layer_norm is not None:
            x = self.layer_norm(x)
        x = x.transpose(0, 1)
        if self.project_out_dim is not None:
            x = self.project_out_dim(x)
        by_side = {"decoder": reports}
        if "reports" in (encoder_out or {}):
            by_side["encoder"] = encoder_out["reports"]
        return x, {"attn": [weights], "inner_states": inner_states, "reports": by_side}


@dataclass
class DecoderState:
    """What layers keep of the tokens before; anything with these attributes will do."""

    #: of fairseq's modules, by their names; the batch comes first in each tensor
    state: State = field(default_factory=dict)
    tokens: int = 0  # how many were seen, padding included


@torch.no_grad()
def decode(
    decoder: ClusterformerDecoder,
    tokens: Tensor,
    cache: DecoderState,
    encoder_out: dict[str, list[Tensor]] | None = None,
) -> Tensor:
    """Features [B, n, D] of n more tokens, int64 [B, n], which the cache then holds; read one by
    one where documents are kept apart. Each row counts its own real tokens, unlike in fairseq's
    step: one padded on the left is the row alone. ValueError: a decoder that sees the future."""
    padding, seen = tokens.eq(decoder.padding_idx), cache.state.setdefault("seen", {})
    # Avoid a device sync: on a GPU it would cost more than a step.
    padded = tokens.is_cuda or any_padding(padding) is not None
    length, documents = tokens.size(1), None
    if padded or seen or decoder.separate_documents:
        before = tokens.new_full((len(tokens), 1), cache.tokens)
        count = seen.get("real", before) + (~padding).long().cumsum(1)
        places, seen["real"] = count - 1, count[:, -1:]
    else:
        places = torch.arange(cache.tokens, cache.tokens + length, device=tokens.device)[None]
    if decoder.separate_documents:
        begins = tokens.eq(decoder.dictionary.eos())
        documents = seen.get("documents", before.new_zeros(before.shape)) + begins.cumsum(1)
        # the place in its row where each token's document begins: the latest beginning so far
        begun = torch.cat([seen.get("begun", before * 0), torch.where(begins, places, 0)], dim=1)
        begun = begun.cummax(1).values[:, 1:]
        seen |= {"documents": documents[:, -1:], "begun": begun[:, -1:]}
        places = places - begun
    places, size = places.clamp(min=0), length if documents is None else 1
    features = []
    for part in (slice(first, first + size) for first in range(0, length, size)):
        batch = Batch(
            padding[:, part] if padded else None, None if documents is None else documents[:, part]
        )
        x = decoder.embed(tokens[:, part], places[:, part])
        features.append(decoder.run(x, batch, encoder_out, cache.state)[0])
    cache.tokens += length
    return torch.cat(features, dim=1)
