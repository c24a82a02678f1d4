"""A fairseq Transformer decoder whose layers choose which tokens see which."""

from typing import Any

from fairseq.models.transformer import TransformerDecoderBase
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase
from torch import Tensor

from fairseq_clusterformer.attention import Batch, any_padding
from fairseq_clusterformer.clustering import Report

from .stack import ClusteredLayer, ClusteredStack, pack, unpack

IncrementalState = dict[str, dict[str, Tensor | None]]


class ClusterformerDecoderLayer(ClusteredLayer, TransformerDecoderLayerBase):
    """fairseq's decoder layer with self-attention of given kinds, whose reports it returns."""

    causal = True

    def forward(
        self,
        x: Tensor,
        encoder_out: Tensor | None = None,
        encoder_padding_mask: Tensor | None = None,
        incremental_state: IncrementalState | None = None,
        batch: Batch | None = None,
        need_attn: bool = False,
        need_head_weights: bool = False,
    ) -> tuple[Tensor | None, ...]:
        """One layer.

        Args:
            x: [N, B, D].
            encoder_out: [S, B, D of the encoder].
            encoder_padding_mask: bool [B, S].
            batch: which tokens are real, and which documents they belong to.
            need_attn, need_head_weights: return the weights of the attention to the encoder.

        Returns:
            The output [N, B, D], the weights of the attention to the encoder or None, and the
            reports of self-attention, packed.
        """
        residual = x
        if self.normalize_before:
            x = self.self_attn_layer_norm(x)
        x, reports = self.self_attn(
            query=x,
            key_padding_mask=batch,
            incremental_state=incremental_state,
        )
        if self.c_attn is not None:  # NormFormer
            x = (x.unflatten(-1, (self.nh, -1)) * self.c_attn.unsqueeze(-1)).flatten(-2)
        if self.attn_ln is not None:
            x = self.attn_ln(x)
        x = self.residual_connection(self.dropout_module(x), residual)
        if not self.normalize_before:
            x = self.self_attn_layer_norm(x)

        weights = None
        if self.encoder_attn is not None and encoder_out is not None:
            residual = x
            if self.normalize_before:
                x = self.encoder_attn_layer_norm(x)
            x, weights = self.encoder_attn(
                query=x,
                key=encoder_out,
                value=encoder_out,
                key_padding_mask=encoder_padding_mask,
                incremental_state=incremental_state,
                static_kv=True,
                need_weights=need_attn or need_head_weights,
                need_head_weights=need_head_weights,
            )
            x = self.residual_connection(self.dropout_module(x), residual)
            if not self.normalize_before:
                x = self.encoder_attn_layer_norm(x)

        residual = x
        if self.normalize_before:
            x = self.final_layer_norm(x)
        x = self.activation_dropout_module(self.activation_fn(self.fc1(x)))
        if self.ffn_layernorm is not None:
            x = self.ffn_layernorm(x)
        x = self.dropout_module(self.fc2(x))
        if self.w_resid is not None:
            residual = self.w_resid * residual
        x = self.residual_connection(x, residual)
        if not self.normalize_before:
            x = self.final_layer_norm(x)
        return x, weights, *pack(reports)


class ClusterformerDecoder(ClusteredStack, TransformerDecoderBase):
    """fairseq's decoder over :class:`ClusterformerDecoderLayer`; no [N, N] mask is ever made.

    Args:
        separate_documents: an end-of-sentence symbol begins a document of its own, which sees
            nothing of those before; positions start again.
    """

    def __init__(self, *args, separate_documents: bool = False, **kwargs):
        super().__init__(*args, **kwargs)
        self.separate_documents = separate_documents

    @property
    def leaks_future(self) -> bool:
        """Whether later tokens change earlier outputs, so that nothing can be generated."""
        return any(not layer.self_attn.can_step for layer in self.all_layers())

    @property
    def reads_prompts(self) -> bool:
        """Whether a first call with an empty state may have many tokens, which it reads at once;
        with several documents in a text it goes token by token."""
        return not self.separate_documents

    def build_decoder_layer(self, cfg, no_encoder_attn=False):
        return self.build_layer(ClusterformerDecoderLayer, cfg, no_encoder_attn)

    def extract_features_scriptable(
        self,
        prev_output_tokens: Tensor,
        encoder_out: dict[str, list[Tensor]] | None,
        incremental_state: IncrementalState | None = None,
        full_context_alignment: bool = False,
        alignment_layer: int | None = None,
        alignment_heads: int | None = None,
        documents: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Features [B, N, D] and extra outputs, as fairseq's.

        ``extra["reports"]`` are the reports of the layers, as
        :func:`~fairseq_clusterformer.clustering.summary` takes them. ``documents`` are the
        numbers of those in each row, int64 [B, N]; None: as ``separate_documents`` says.

        Raises:
            ValueError: ``full_context_alignment``; this decoder is causal.
        """
        if full_context_alignment:
            raise ValueError(
                "full_context_alignment: a clustered decoder is causal; allowed: False"
            )
        if alignment_layer is None:
            alignment_layer = self.num_layers - 1
        encoder, encoder_padding_mask = (
            encoder_out[name][0] if encoder_out is not None and encoder_out[name] else None
            for name in ("encoder_out", "encoder_padding_mask")
        )
        x, batch = self._embed(prev_output_tokens, incremental_state, documents)

        weights = None
        by_layer: dict[int, list[Report]] = {}
        inner_states = [x]
        for i, layer in enumerate(self.layers):
            x, layer_weights, *fields = layer(
                x,
                encoder,
                encoder_padding_mask,
                incremental_state,
                batch=batch,
                need_attn=i == alignment_layer,
                need_head_weights=i == alignment_layer,
            )
            inner_states.append(x)
            if layer_weights is not None and i == alignment_layer:
                weights = layer_weights[:alignment_heads].float().mean(dim=0).to(x)
            by_layer[id(layer)] = unpack(fields)
        if self.training:
            self.observe(by_layer)

        if self.layer_norm is not None:
            x = self.layer_norm(x)
        x = x.transpose(0, 1)
        if self.project_out_dim is not None:
            x = self.project_out_dim(x)
        reports = [report for of_layer in by_layer.values() for report in of_layer]
        extra = {
            "attn": [weights],
            "inner_states": inner_states,
            "reports": {"decoder": reports},
        }
        return x, extra

    def _embed(
        self,
        tokens: Tensor,
        incremental_state: IncrementalState | None,
        documents: Tensor | None = None,
    ) -> tuple[Tensor, Batch]:
        """Input of the first layer [N, B, D], and what the layers know of its tokens.

        With a state, that is the newest token alone; or all of them, if the state is empty: the
        beginning of a text is read at once.
        """
        if not incremental_state:
            incremental_state = None
        if documents is None and self.separate_documents:
            # an end-of-sentence symbol stands before what follows it
            documents = tokens.eq(self.dictionary.eos()).long().cumsum(1)
        positions = None
        if self.embed_positions is not None:
            if documents is None:
                positions = self.embed_positions(tokens, incremental_state=incremental_state)
            else:
                last = slice(-1 if incremental_state is not None else 0, None)
                positions = self._positions_in(tokens, documents, last)
        if incremental_state is not None:
            tokens = tokens[:, -1:].contiguous()
            documents = None if documents is None else documents[:, -1:]
            if positions is not None:
                positions = positions[:, -1:]

        x = self.embed_scale * self.embed_tokens(tokens)
        if self.quant_noise is not None:
            x = self.quant_noise(x)
        if self.project_in_dim is not None:
            x = self.project_in_dim(x)
        if positions is not None:
            x = x + positions
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x)
        x = self.dropout_module(x).transpose(0, 1)

        padding_mask = tokens.eq(self.padding_idx)
        # A step on a GPU is too short to wait for its answer.
        if incremental_state is None or not tokens.is_cuda:
            padding_mask = any_padding(padding_mask)
        return x, Batch(padding_mask, documents)

    def _positions_in(self, tokens: Tensor, documents: Tensor, part: slice) -> Tensor:
        """Embeddings of the positions of a part of the tokens [B, n, D], which start again in
        each document."""
        positions = Batch(tokens.eq(self.padding_idx), documents).positions(tokens)
        positions = positions[:, part].clamp(min=0)
        some = tokens.new_full((1, tokens.size(1)), self.dictionary.unk())
        return self.embed_positions(some)[0][positions]
