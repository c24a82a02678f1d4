"""What encoders and decoders over clustered layers share: reports, averages, checkpoints."""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from fairseq.distributed import fsdp_wrap
from fairseq.models.transformer import TransformerConfig
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from fairseq.modules.quant_noise import quant_noise
from torch import Tensor, nn

from fairseq_clusterformer.attention import AttentionConfig
from fairseq_clusterformer.clustering import Report

from .attention import SelfAttention

# In tokens: a feed-forward block of 3,072 makes 50 MB of 4,096, and a GPU is kept busy by more.
AT_ONCE_CPU, AT_ONCE_GPU = 1 << 12, 1 << 16


class ClusteredLayer:
    """Mixin before a fairseq Transformer layer: self-attention of given kinds.

    Args:
        cfg, *args: of the layer.
        kinds: of self-attention, dividing the heads.
        attention: options of the kinds.
    """

    #: of a decoder's layers
    causal: bool

    def __init__(self, cfg, *args, kinds: tuple[str, ...], attention: AttentionConfig):
        self.kinds = kinds
        self.attention_config = attention
        super().__init__(cfg, *args)

    def build_self_attention(self, embed_dim, cfg, add_bias_kv=False, add_zero_attn=False):
        side = cfg.decoder if self.causal else cfg.encoder
        module = SelfAttention(
            embed_dim,
            side.attention_heads,
            kinds=self.kinds,
            config=self.attention_config,
            causal=self.causal,
            dropout=cfg.attention_dropout,
        )
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            projection = getattr(module, name)
            noisy = quant_noise(projection, self.quant_noise, self.quant_noise_block_size)
            setattr(module, name, noisy)
        return module


class ClusteredStack:
    """Mixin before a fairseq encoder or decoder whose ``layers`` are :class:`ClusteredLayer`.

    Args:
        *args, **kwargs: of the encoder or decoder.
        kinds: of attention, for each layer.
        attention: options of the kinds.
    """

    num_updates: int | None = None

    def __init__(self, *args, kinds: list[tuple[str, ...]], attention: AttentionConfig, **kwargs):
        self._kinds_to_build = iter(kinds)
        self.attention_config = attention
        super().__init__(*args, **kwargs)

    def build_layer(self, layer: type[ClusteredLayer], cfg: TransformerConfig, *args) -> nn.Module:
        """The next layer, as fairseq wraps it for activation checkpointing and FSDP."""
        built = layer(
            cfg, *args, kinds=next(self._kinds_to_build), attention=self.attention_config
        )
        if cfg.checkpoint_activations:
            built = checkpoint_wrapper(built, offload_to_cpu=cfg.offload_activations)
        # As in fairseq: a checkpointed layer is wrapped for FSDP whatever its size.
        smallest = 0 if cfg.checkpoint_activations else cfg.min_params_to_wrap
        return fsdp_wrap(built, min_num_params=smallest)

    def all_layers(self) -> Iterator[ClusteredLayer]:
        """Every layer: in training, iterating over layers with LayerDrop leaves some out."""
        return self.layers.children()

    def observe(self, by_layer: dict[int, list[Report]]) -> None:
        """Let the routers remember what those of all workers observed in this batch.

        One exchange for all layers, of the same size everywhere: LayerDrop may have dropped other
        layers elsewhere.

        Args:
            by_layer: reports of the layers that ran, by their ``id``.
        """
        routers, observations = [], []
        for layer in self.all_layers():
            reports = by_layer.get(id(layer), [Report()] * len(layer.self_attn.routers))
            for router, report in zip(layer.self_attn.routers, reports, strict=True):
                if router.observes_alone:
                    if report.observation is not None:
                        router.observe(report.observation)
                    continue
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
            for layer in self.all_layers():
                layer.self_attn.commit()
        self.num_updates = num_updates

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str):
        """As fairseq's; called before a checkpoint is loaded."""
        super().upgrade_state_dict_named(state_dict, name)
        # The trainer sets the number before it loads: what the checkpoint's last update observed
        # is still to be committed when the next one begins.
        self.num_updates = None
        return state_dict


def at_once_in(module: nn.Module, device: torch.device) -> int | None:
    """Tokens that a layer works on at once where it can go on portion by portion; None: all, in
    training, which keeps everything anyway and draws dropout in one order."""
    if module.training or torch.is_grad_enabled():
        return None
    return AT_ONCE_CPU if device.type == "cpu" else AT_ONCE_GPU


def pack(reports: list[Report]) -> list[Tensor | None]:
    """The reports' fields one after another: an activation checkpoint can return a flat tuple of
    tensors with gradients."""
    return [field for report in reports for field in report]


def unpack(fields: list[Tensor | None]) -> list[Report]:
    """The inverse of :func:`pack`."""
    size = len(Report._fields)
    return [Report(*fields[j : j + size]) for j in range(0, len(fields), size)]


def gather(tensor: Tensor) -> list[Tensor]:
    """The tensor of each worker, in the order of their ranks; alone: one's own."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return [tensor]
    everyone = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, tensor)
    return everyone
