"""The cache of step-by-step decoding: our decoder's own state, of bounded size."""

from collections.abc import Callable

from torch import Tensor
from transformers import Cache


class ClusterformerCache(Cache):
    """What a decoder keeps from token to token: rings of W keys and values for each cluster. Its
    size is bounded however long the text, except for layers of the kind full."""

    def __init__(self):
        super().__init__(layers=[])
        self.reset()

    def reset(self) -> None:
        #: of fairseq's modules, by their names; the batch comes first in each tensor
        self.state: dict[str, dict[str, Tensor | None]] = {}
        self.tokens = 0  # how many were seen, padding included

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(t.nbytes for t in self._tensors())

    def _tensors(self) -> list[Tensor]:
        kept = (t for module in self.state.values() for t in module.values())
        return [t for t in kept if t is not None]

    @property
    def batch_size(self) -> int:
        """B; -1 before the first token."""
        tensors = self._tensors()
        return len(tensors[0]) if tensors else -1

    @property
    def real(self) -> Tensor | int:
        """How many tokens of each row were seen without padding, int64 [B, 1], or of all."""
        return self.state.get("seen", {}).get("real", self.tokens)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens that were seen, whether or not their keys are still kept."""
        return self.tokens

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """-1: a text of any length fits."""
        return -1

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Follow a beam search's choice of hypotheses, int64 [B]."""
        self._each(lambda t: t.index_select(0, beam_idx.to(t.device)))

    batch_select_indices = reorder_cache

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._each(lambda t: t.repeat_interleave(repeats, dim=0))

    def _each(self, change: Callable[[Tensor], Tensor]) -> None:
        self.state = {
            module: {name: None if t is None else change(t) for name, t in kept.items()}
            for module, kept in self.state.items()
        }

    @property
    def is_linear(self) -> list[bool]:
        """Of one layer, as if all were: generation then reads what the cache has not seen."""
        return [False]

    @property
    def is_croppable(self) -> bool:
        """False: what a ring has dropped is gone."""
        return False

    def crop(self, tokens_to_remove: int) -> None:
        """Always raises ValueError."""
        problem = "a ring has dropped its oldest keys and cannot be turned back"
        allowed = "generation without an assistant"
        raise ValueError(f"crop({tokens_to_remove}): {problem}; allowed: {allowed}")

    def __repr__(self) -> str:
        return f"ClusterformerCache({self.tokens} tokens, {self.num_bytes:,} bytes)"
