"""A fairseq Transformer decoder whose layers choose which tokens see which."""

import logging
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from fairseq.distributed import fsdp_wrap
from fairseq.models.transformer import TransformerConfig, TransformerDecoderBase
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from fairseq.modules.quant_noise import quant_noise
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase
from torch import Tensor

from fairseq_clusterformer.attention import AttentionConfig
from fairseq_clusterformer.clustering import Report, cluster_use

from .attention import SelfAttention

logger = logging.getLogger(__name__)

IncrementalState = dict[str, dict[str, Tensor | None]]


class ClusterformerDecoderLayer(TransformerDecoderLayerBase):
    """fairseq's decoder layer with self-attention of given kinds, whose reports it returns.

    Args:
        cfg: fairseq's options.
        no_encoder_attn: without attention to an encoder.
        kinds: of self-attention, dividing the heads.
        attention: options of the kinds.
    """

    def __init__(
        self,
        cfg: TransformerConfig,
        no_encoder_attn: bool = False,
        *,
        kinds: tuple[str, ...],
        attention: AttentionConfig,
    ):
        self.kinds = kinds
        self.attention_config = attention
        super().__init__(cfg, no_encoder_attn)

    def build_self_attention(self, embed_dim, cfg, add_bias_kv=False, add_zero_attn=False):
        module = SelfAttention(
            embed_dim,
            cfg.decoder.attention_heads,
            kinds=self.kinds,
            config=self.attention_config,
            causal=True,
            dropout=cfg.attention_dropout,
        )
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            projection = getattr(module, name)
            noisy = quant_noise(projection, self.quant_noise, self.quant_noise_block_size)
            setattr(module, name, noisy)
        return module

    def forward(
        self,
        x: Tensor,
        encoder_out: Tensor | None = None,
        encoder_padding_mask: Tensor | None = None,
        incremental_state: IncrementalState | None = None,
        self_attn_padding_mask: Tensor | None = None,
        need_attn: bool = False,
        need_head_weights: bool = False,
    ) -> tuple[Tensor | None, ...]:
        """One layer.

        Args:
            x: [N, B, D].
            encoder_out: [S, B, D of the encoder].
            encoder_padding_mask: bool [B, S].
            self_attn_padding_mask: bool [B, N].
            need_attn, need_head_weights: return the weights of the attention to the encoder.

        Returns:
            The output [N, B, D], the weights of the attention to the encoder or None, and the
            fields of the reports of self-attention one after another: a flat tuple of tensors, for
            that is what an activation checkpoint can return with gradients.
        """
        residual = x
        if self.normalize_before:
            x = self.self_attn_layer_norm(x)
        x, reports = self.self_attn(
            query=x,
            key_padding_mask=self_attn_padding_mask,
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
        return x, weights, *(field for report in reports for field in report)


class ClusterformerDecoder(TransformerDecoderBase):
    """fairseq's decoder over :class:`ClusterformerDecoderLayer`; no [N, N] mask is ever made.

    Args:
        cfg, dictionary, embed_tokens, no_encoder_attn, output_projection: as fairseq's.
        kinds: of attention, for each layer.
        attention: options of the kinds.
    """

    def __init__(
        self,
        cfg: TransformerConfig,
        dictionary,
        embed_tokens,
        no_encoder_attn: bool = False,
        output_projection=None,
        *,
        kinds: list[tuple[str, ...]],
        attention: AttentionConfig,
    ):
        self._kinds_to_build = iter(kinds)
        self.attention_config = attention
        self.num_updates: int | None = None
        super().__init__(cfg, dictionary, embed_tokens, no_encoder_attn, output_projection)

    @property
    def leaks_future(self) -> bool:
        """Whether later tokens change earlier outputs, so that nothing can be generated."""
        return any(not layer.self_attn.can_step for layer in self._all_layers())

    def build_decoder_layer(self, cfg, no_encoder_attn=False):
        layer = ClusterformerDecoderLayer(
            cfg,
            no_encoder_attn,
            kinds=next(self._kinds_to_build),
            attention=self.attention_config,
        )
        if cfg.checkpoint_activations:
            layer = checkpoint_wrapper(layer, offload_to_cpu=cfg.offload_activations)
        # As in fairseq: a checkpointed layer is wrapped for FSDP whatever its size.
        smallest = 0 if cfg.checkpoint_activations else cfg.min_params_to_wrap
        return fsdp_wrap(layer, min_num_params=smallest)

    def extract_features_scriptable(
        self,
        prev_output_tokens: Tensor,
        encoder_out: dict[str, list[Tensor]] | None,
        incremental_state: IncrementalState | None = None,
        full_context_alignment: bool = False,
        alignment_layer: int | None = None,
        alignment_heads: int | None = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Features [B, N, D] and extra outputs, as fairseq's.

        ``extra["clustering"]`` is None, or a dict of float32 scalars: ``clustering_loss`` and
        ``sorting_loss`` (means over the layers that cluster, so that their weights mean the same
        at any depth), and the statistics of :func:`cluster_use`.

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
        x, padding_mask = self._embed(prev_output_tokens, incremental_state)

        weights = None
        reports: list[Report] = []
        by_layer: dict[int, list[Report]] = {}
        inner_states = [x]
        for i, layer in enumerate(self.layers):
            x, layer_weights, *fields = layer(
                x,
                encoder,
                encoder_padding_mask,
                incremental_state,
                self_attn_padding_mask=padding_mask,
                need_attn=i == alignment_layer,
                need_head_weights=i == alignment_layer,
            )
            inner_states.append(x)
            if layer_weights is not None and i == alignment_layer:
                weights = layer_weights[:alignment_heads].float().mean(dim=0).to(x)
            size = len(Report._fields)
            of_layer = [Report(*fields[j : j + size]) for j in range(0, len(fields), size)]
            by_layer[id(layer)] = of_layer
            reports += of_layer
        if self.training:
            self._observe(by_layer)

        if self.layer_norm is not None:
            x = self.layer_norm(x)
        x = x.transpose(0, 1)
        if self.project_out_dim is not None:
            x = self.project_out_dim(x)
        extra = {"attn": [weights], "inner_states": inner_states, "clustering": summary(reports)}
        return x, extra

    def _embed(
        self, tokens: Tensor, incremental_state: IncrementalState | None
    ) -> tuple[Tensor, Tensor | None]:
        """Input of the first layer [N, B, D], and the mask [B, N] if anything is padding."""
        positions = None
        if self.embed_positions is not None:
            positions = self.embed_positions(tokens, incremental_state=incremental_state)
        if incremental_state is not None:
            tokens = tokens[:, -1:].contiguous()
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
        return x, padding_mask if padding_mask.any() else None

    def _observe(self, by_layer: dict[int, list[Report]]) -> None:
        """Let the routers remember what those of all workers observed in this batch.

        One exchange for all layers, of the same size everywhere: LayerDrop may have dropped other
        layers elsewhere.
        """
        routers, observations = [], []
        for layer in self._all_layers():
            reports = by_layer.get(id(layer), [Report()] * len(layer.self_attn.routers))
            for router, report in zip(layer.self_attn.routers, reports, strict=True):
                nothing = router.nothing_observed()
                if nothing is not None:
                    seen = report.observation
                    observations.append(nothing if seen is None else seen.detach().to(nothing))
                    routers.append(router)
        if not routers:
            return
        sizes = [len(observation) for observation in observations]
        for everything in gather(torch.cat(observations)):
            for router, observation in zip(routers, everything.split(sizes), strict=True):
                router.observe(observation)

    def set_num_updates(self, num_updates: int) -> None:
        """Called by fairseq before every forward pass: a new number begins a new update."""
        if num_updates != self.num_updates:
            for layer in self._all_layers():
                layer.self_attn.commit()
        self.num_updates = num_updates

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str):
        """Also take a dense checkpoint: routers that are wholly absent start anew."""
        super().upgrade_state_dict_named(state_dict, name)
        # The trainer sets the number before it loads: what the checkpoint's last update observed
        # is still to be committed when the next one begins.
        self.num_updates = None
        for i, layer in enumerate(self._all_layers()):
            prefix = f"{name}.layers.{i}.self_attn.routers."
            if not any(key.startswith(prefix) for key in state_dict):
                if layer.self_attn.routers.state_dict():
                    logger.info("layer %d: the checkpoint has no clusters; they start anew", i)
                for key, tensor in layer.self_attn.routers.state_dict().items():
                    state_dict[prefix + key] = tensor
        return state_dict

    def _all_layers(self) -> Iterator[ClusterformerDecoderLayer]:
        """Every layer: in training, iterating over layers with LayerDrop leaves some out."""
        return self.layers.children()


def gather(tensor: Tensor) -> list[Tensor]:
    """The tensor of each worker, in the order of their ranks; alone: one's own."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return [tensor]
    everyone = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, tensor)
    return everyone


def summary(reports: list[Report]) -> dict[str, Tensor] | None:
    """Means over the reports that have losses; None if no layer clusters."""
    reports = [r for r in reports if r.cluster_sizes is not None]
    if not reports:
        return None

    def mean(values: list[Tensor]) -> Tensor:
        return torch.stack(values).mean()

    uses = [cluster_use(r.cluster_sizes.detach()) for r in reports]
    statistics = {
        f"cluster_{name}": mean([getattr(use, name) for use in uses])
        for name in ("entropy", "effective", "largest", "empty")
    }
    return {
        "clustering_loss": mean([r.clustering_loss for r in reports]),
        "sorting_loss": mean([r.sorting_loss for r in reports]),
        **statistics,
    }
