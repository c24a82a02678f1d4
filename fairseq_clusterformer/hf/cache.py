"""The cache of step-by-step decoding: our decoder's own state, of bounded size."""

from torch import Tensor
from transformers import Cache

from fairseq_clusterformer.attention.past import each, tensors
from fairseq_clusterformer.models.attention import State


class ClusterformerCache(Cache):
    """What a decoder keeps from token to token: rings of W keys and values for each cluster. Its
    size is bounded however long the text, except for layers of the kind full."""

    is_linear = (False,)  # of one layer, as if all were: what the cache has not seen is read
    is_croppable = False  # what a ring has dropped is gone

    def __init__(self):
        super().__init__(layers=[])
        self.reset()

    def reset(self) -> None:
        #: a past, or what fairseq's modules keep, by their names
        self.state: State = {}
        self.tokens = 0  # how many were seen, padding included

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(t.nbytes for t in tensors(self.state))

    @property
    def real(self) -> Tensor | int:
        """How many tokens of each row were seen without padding, int64 [B, 1], or of all."""
        return self.state.get("seen", {}).get("real", self.tokens)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens that were seen, whether or not their keys are still kept."""
        return self.tokens

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Follow a beam search's choice of hypotheses, int64 [B]."""
        self.state = each(self.state, lambda t: t.index_select(0, beam_idx.to(t.device)))

    batch_select_indices = reorder_cache

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.state = each(self.state, lambda t: t.repeat_interleave(repeats, dim=0))

    def crop(self, tokens_to_remove: int) -> None:
        """Always raises ValueError."""
        problem = f"crop({tokens_to_remove}): a ring has dropped its oldest keys and"
        raise ValueError(f"{problem} cannot be turned back; allowed: no assistant")

    def __repr__(self) -> str:
        return f"ClusterformerCache({self.tokens} tokens, {self.num_bytes:,} bytes)"
