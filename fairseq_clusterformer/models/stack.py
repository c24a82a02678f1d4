"""What encoders and decoders over clustered layers share: attention, reports, positions."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import fairseq.modules
import torch
import torch.distributed as dist
from fairseq.distributed import fsdp_wrap
from fairseq.incremental_decoding_utils import with_incremental_state
from fairseq.models.transformer import TransformerConfig
from fairseq.modules import SinusoidalPositionalEmbedding
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from fairseq.modules.quant_noise import quant_noise
from fairseq.utils import get_activation_fn, make_positions
from torch import Tensor, nn
from torch.nn.functional import pad

from fairseq_clusterformer.attention import AttentionPlan, Batch, MultiheadAttention, Past
from fairseq_clusterformer.attention.options import OptionError
from fairseq_clusterformer.attention.past import each
from fairseq_clusterformer.clustering import Report
from fairseq_clusterformer.clustering.kmeans import workers
from fairseq_clusterformer.products import mapped

from .options import flagged

# Tokens of which a feed-forward block of 3,072 makes 25 MB: more is asked of the system anew each
# time. A GPU is kept busy by more.
AT_ONCE_CPU, AT_ONCE_GPU = 1 << 11, 1 << 16
State = dict[str, Past | dict[str, Tensor | None]]  # of our modules and fairseq's, by their names


@dataclass
class SegmentState:
    """What layers keep of the segments of a text before, in training: constants, whose size does
    not grow with the text. No dictionary: workers would be given copies."""

    layers: dict[nn.Module, Past] = field(default_factory=dict)
    tokens: int = 0  # of each row, padding included


@with_incremental_state
class SelfAttention(MultiheadAttention):
    """Attention of a fairseq layer: time first, with fairseq's state and its checkpoints."""

    def forward(
        self,
        x: Tensor,
        batch: Batch | Tensor | None = None,
        incremental_state: State | SegmentState | None = None,
        centroids: Tensor | None = None,
    ) -> tuple[Tensor, list[Report]]:
        """Self-attention of x [N, B, D], or of its newest tokens alone where there is a state:
        fairseq's, in evaluation, or that of the segments before. The ``batch`` may be a mask, bool
        [B, N], True for padding; the layer before hands the centroids on, [B, K, D]. Returns the
        output [N, B, D], and a report for each kind (none with fairseq's state)."""
        x = x.transpose(0, 1).contiguous()
        if incremental_state is None:
            out, reports = super().forward(x, batch, centroids)
            return out.transpose(0, 1), reports
        if isinstance(incremental_state, SegmentState):
            past = incremental_state.layers.get(self, Past())
            out, past, reports = self.following(x, past, batch, reported=True)
            incremental_state.layers[self] = each(past, Tensor.detach)
            return out.transpose(0, 1), reports
        past = self.get_incremental_state(incremental_state, "attention")
        out, past = self.step(x, past, batch)
        self.set_incremental_state(incremental_state, "attention", past)
        return out.transpose(0, 1), []

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """Also take checkpoints with q, k and v in one, or with more heads of keys and values."""
        fairseq.modules.MultiheadAttention.upgrade_state_dict_named(self, state_dict, name)
        self.average_heads(state_dict, name + "." if name else "")

    def reorder_incremental_state(self, incremental_state: State, new_order: Tensor) -> None:
        """Follow a beam search's choice of hypotheses, int64 [new batch * beam]."""
        if (past := self.get_incremental_state(incremental_state, "attention")) is not None:
            self.set_incremental_state(incremental_state, "attention", past.reorder(new_order))


class LayerForm(NamedTuple):
    """What fairseq's layers do not offer; attention apart."""

    #: "layer", or "rms" (of the root of the mean square alone, Zhang and Sennrich 2019)
    norm: str = "layer"
    eps: float = 1e-5  # of the norms
    #: the inner activation is multiplied by a second projection (Shazeer 2020); with the
    #: activation ``swish`` this is SwiGLU
    gated: bool = False
    biases: bool = True  # feed-forward maps and norms have some; a norm of the form "rms" has none

    def give(self, module: nn.Module) -> None:
        """Norms and biases of this form, in a layer or a stack that fairseq has built."""
        norm = nn.RMSNorm if self.norm == "rms" else partial(nn.LayerNorm, bias=self.biases)
        for name, child in module.named_children():
            if isinstance(child, nn.LayerNorm):
                setattr(module, name, norm(child.normalized_shape, self.eps))
            elif isinstance(child, nn.Linear) and not self.biases:
                child.bias = None


FAIRSEQS = LayerForm()


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """The function of fairseq's name; GELU in the precision of its input, and "swish", too."""
    ours = {"swish": nn.functional.silu, "gelu": nn.functional.gelu}
    return ours.get(name) or get_activation_fn(name)


def planned(
    module: type[MultiheadAttention], plan: AttentionPlan, *sizes: int, **how: Any
) -> MultiheadAttention:
    """The attention of a layer, with what all layers of a plan have; or ValueError."""
    try:
        return module(*sizes, **how, form=plan.form, kernel=plan.kernel)
    except OptionError as error:
        raise flagged(error) from None


class ClusteredLayer:
    """Mixin before a fairseq Transformer layer: attention of layer ``number`` of a plan."""

    causal: bool

    def __init__(self, cfg, *args, plan: AttentionPlan, number: int, form: LayerForm = FAIRSEQS):
        self.plan, self.kinds = plan, plan.layers[number]
        super().__init__(cfg, *args)
        # fairseq takes a class for the function, and a copy in float32 for what torch does inside
        self.activation_fn = activation(cfg.activation_fn)
        self.fc_gated = None
        if form.gated:
            noise = self.quant_noise, self.quant_noise_block_size
            self.fc_gated = self.build_fc1(*reversed(self.fc1.weight.shape), *noise)
        if form != FAIRSEQS:
            form.give(self)

    def normed(self, norm: nn.Module, x: Tensor) -> Tensor:
        """What a sublayer reads of x."""
        return norm(x) if self.normalize_before else x

    def added(self, norm: nn.Module, x: Tensor, change: Tensor) -> Tensor:
        """What follows a sublayer that read x, and made a change of it."""
        x = self.residual_connection(self.dropout_module(change), x)
        return x if self.normalize_before else norm(x)

    def fed_forward(self, x: Tensor) -> Tensor:
        """What follows the feed-forward block over x [N, B, D]."""
        at_once, norm, out = at_once_in(self, x.device), self.final_layer_norm, []
        inner_norm, scale = (getattr(self, name, None) for name in ("ffn_layernorm", "w_resid"))
        for part in [x] if at_once is None else x.split(max(1, at_once // x.size(1))):
            change = self.activation_dropout_module(self.activated(self.normed(norm, part)))
            if inner_norm is not None:  # NormFormer, as the next
                change = inner_norm(change)
            residual = part if scale is None else scale * part
            out.append(self.added(norm, residual, mapped(self.fc2, change)))
        return out[0] if len(out) == 1 else torch.cat(out)

    def activated(self, x: Tensor) -> Tensor:
        """The inner activation of the feed-forward block."""
        out = self.activation_fn(mapped(self.fc1, x))
        if self.fc_gated is None:
            return out
        gates = mapped(self.fc_gated, x)
        return out * gates if torch.is_grad_enabled() else out.mul_(gates)

    def build_self_attention(self, embed_dim, cfg, add_bias_kv=False, add_zero_attn=False):
        side = cfg.decoder if self.causal else cfg.encoder
        how = {"kinds": self.kinds, "causal": self.causal, "dropout": cfg.attention_dropout}
        module = planned(SelfAttention, self.plan, embed_dim, side.attention_heads, **how)
        noise = self.quant_noise, self.quant_noise_block_size
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            setattr(module, name, quant_noise(getattr(module, name), *noise))
        return module


class ClusteredStack:
    """Mixin before a fairseq encoder or decoder whose ``layers`` are :class:`ClusteredLayer`."""

    num_updates: int | None = None

    def __init__(self, *args, plan: AttentionPlan, form: LayerForm = FAIRSEQS, **kwargs):
        self.plan, self.form, self._planned = plan, form, 0
        super().__init__(*args, **kwargs)
        if form != FAIRSEQS:
            form.give(self)
        table = getattr(self, "embed_positions", None)
        if isinstance(table, SinusoidalPositionalEmbedding):
            size = len(table.weights)
            self.embed_positions = Sinusoids(table.embedding_dim, table.padding_idx, size)

    def build_layer(self, layer: type[ClusteredLayer], cfg: TransformerConfig, *args) -> nn.Module:
        """The next layer, as fairseq wraps it for activation checkpointing and FSDP."""
        built = layer(cfg, *args, plan=self.plan, number=self._planned, form=self.form)
        self._planned += 1
        if cfg.checkpoint_activations:
            built = checkpoint_wrapper(built, offload_to_cpu=cfg.offload_activations)
        # As in fairseq: a checkpointed layer is wrapped for FSDP whatever its size.
        smallest = 0 if cfg.checkpoint_activations else cfg.min_params_to_wrap
        return fsdp_wrap(built, min_num_params=smallest)

    def all_layers(self) -> Iterator[ClusteredLayer]:
        """Every layer: in training, iterating over layers with LayerDrop leaves some out."""
        return self.layers.children()

    def reports_of(self, layer: ClusteredLayer, fields: list[Tensor | None]) -> list[Report]:
        """The reports of a layer that ran, of their fields in a flat list, which is all that an
        activation checkpoint can return; in training, its kinds remember them."""
        size = len(Report._fields)
        reports = [Report(*fields[i : i + size]) for i in range(0, len(fields), size)]
        if self.training:
            layer.self_attn.observe(reports)
        return reports

    def exchange(self) -> None:
        """Let each worker remember what all have observed since the last update, by one all-gather
        whose size does not depend on LayerDrop. Idempotent: workers exchange sums, and learners
        use only ratios."""
        routers = [router for layer in self.all_layers() for router in layer.self_attn.routers]
        learners = [r.learner for r in routers if r.learner is not None and r.learner.exchanges]
        if not learners or workers() == 1:
            return
        pending = [learner.take() for learner in learners]
        sizes, own = [*map(len, pending)], torch.cat(pending)
        of_all = [torch.empty_like(own) for _ in range(workers())]
        dist.all_gather(of_all, own)
        for everything in of_all:
            for learner, observation in zip(learners, everything.split(sizes), strict=True):
                learner.observe(observation)

    consolidate = exchange  # called by all workers before the first saves what all observed

    def set_num_updates(self, num_updates: int) -> None:
        """Called by fairseq before every forward pass: a new number begins a new update."""
        if num_updates != self.num_updates:
            self.exchange()
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


class Sinusoids(SinusoidalPositionalEmbedding):
    """fairseq's; an exported graph computes what it would look up, and grows no table."""

    def forward(self, input: Tensor, *args, **kwargs) -> Tensor:
        if torch.compiler.is_exporting():
            return self.at(make_positions(input, self.padding_idx))
        return super().forward(input, *args, **kwargs)

    def at(self, rows: Tensor) -> Tensor:
        """Rows of fairseq's table [..., D], by their numbers, int64 [...]."""
        half = self.embedding_dim // 2
        rate = torch.arange(half, dtype=torch.float32, device=rows.device)
        rate = torch.exp(rate * -(math.log(10_000) / (half - 1)))
        angle = rows.unsqueeze(-1) * rate
        found = torch.cat([angle.sin(), angle.cos()], dim=-1)
        return pad(found, (0, self.embedding_dim % 2)).to(self.weights.dtype)


def at_once_in(module: nn.Module, device: torch.device) -> int | None:
    """Chunk size (tokens) for what treats tokens one by one in inference; None in training:
    activations are kept anyway, and chunks would change the order of dropout draws."""
    if module.training or torch.is_grad_enabled() or torch.compiler.is_compiling():
        return None
    return AT_ONCE_CPU if device.type == "cpu" else AT_ONCE_GPU
