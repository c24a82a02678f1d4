"""fairseq's face of multi-head attention over layouts."""

from dataclasses import dataclass, field

import fairseq.modules
from fairseq.incremental_decoding_utils import with_incremental_state
from torch import Tensor, nn

from fairseq_clusterformer.attention import Batch, MultiheadAttention, Past
from fairseq_clusterformer.attention.past import each
from fairseq_clusterformer.clustering import Report

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
        past = self.get_incremental_state(incremental_state, "attention")
        if past is not None:
            past = past.reorder(new_order)
            self.set_incremental_state(incremental_state, "attention", past)
