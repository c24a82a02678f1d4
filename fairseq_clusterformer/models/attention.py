"""fairseq's face of multi-head attention over layouts."""

import fairseq.modules
from fairseq.incremental_decoding_utils import with_incremental_state
from torch import Tensor

from fairseq_clusterformer.attention import Batch, MultiheadAttention
from fairseq_clusterformer.clustering import Report


@with_incremental_state
class SelfAttention(MultiheadAttention):
    """Stands where fairseq's layers call ``MultiheadAttention``: same signature, time first."""

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        key_padding_mask: Batch | Tensor | None = None,
        incremental_state: dict[str, dict[str, Tensor | None]] | None = None,
        need_weights: bool = False,
        static_kv: bool = False,
        attn_mask: Tensor | None = None,
        need_head_weights: bool = False,
        centroids: Tensor | None = None,
    ) -> tuple[Tensor, list[Report]]:
        """Self-attention.

        Args:
            query: [N, B, D]; with ``incremental_state``, the newest tokens alone, in evaluation.
            key, value: None or ``query`` itself.
            key_padding_mask: bool [B, N], True where a token is padding; or the batch, which also
                says what belongs to which document.
            attn_mask: ignored: the kinds of attention know what is causal.
            centroids: handed on by the layer before, [B, K, D].

        Returns:
            The output [N, B, D], and in the place of attention weights, which never exist as a
            matrix, a report for each kind (none when decoding step by step).

        Raises:
            ValueError: keys other than the queries.
        """
        if any(t is not None and t is not query for t in (key, value)):
            raise ValueError("key or value is not query: this is self-attention only")
        x = query.transpose(0, 1).contiguous()
        if incremental_state is None:
            out, reports = super().forward(x, key_padding_mask, centroids)
        else:
            state = self.get_incremental_state(incremental_state, "attention") or {}
            out, state = self.step(x, state, key_padding_mask)
            self.set_incremental_state(incremental_state, "attention", state)
            reports = []
        return out.transpose(0, 1), reports

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """Also take checkpoints that have q, k and v as one in_proj_weight, or more heads of keys
        and values."""
        fairseq.modules.MultiheadAttention.upgrade_state_dict_named(self, state_dict, name)
        self.average_heads(state_dict, name + "." if name else "")

    def reorder_incremental_state(
        self, incremental_state: dict[str, dict[str, Tensor | None]], new_order: Tensor
    ) -> None:
        """Follow a beam search's choice of hypotheses, int64 [new batch * beam]."""
        state = self.get_incremental_state(incremental_state, "attention")
        if state is not None:
            state = {name: t.index_select(0, new_order) for name, t in state.items()}
            self.set_incremental_state(incremental_state, "attention", state)
