"""The layout of an attention: an order of queries and keys, and a range of keys for each query.

It is all that a kernel knows: not why an order was chosen, nor what is causal, nor what is
padding.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """Orders and ranges of one attention.

    Attributes:
        lo: first key slot that a query slot sees, int64 [B, G, N].
        hi: one past the last key slot, int64 [B, G, N]; ``hi <= lo`` sees nothing. ``lo`` and
            ``hi`` are non-decreasing within a run of query slots, which lets neighbouring
            queries share blocks of keys; any ranges with 0 <= lo and hi <= M are correct, runs
            are what is fast.
        query_order: token at each query slot, int64 [B, G, N], a permutation; None: identity.
        key_order: token at each key slot, int64 [B, G, M]; None: identity (then M = N). With
            M = N it is a permutation; with any other M a token may stand in several slots, or
            in none.
        num_queries: query slots that hold a real token, int64 [B, G], the first ones of each
            row; None: all of them.
        num_keys: the same for key slots.
        key_bias: added to the logits of a key, floating point [B, G, N] in token order.
        earlier_only: besides the ranges, hide keys whose token stands after the query's
            (CF22 eq. 13). Only for comparison: the ranges themselves may depend on later tokens.
        reach: no range is longer, as far as is known without asking the device (a window, say);
            None: nothing is known. A hint by which tiles are chosen; results do not depend on it.

    B and G may be 1 where all rows or heads agree.
    """

    lo: Tensor
    hi: Tensor
    query_order: Tensor | None = None
    key_order: Tensor | None = None
    num_queries: Tensor | None = None
    num_keys: Tensor | None = None
    key_bias: Tensor | None = None
    earlier_only: bool = False
    reach: int | None = None

    def check(self) -> None:
        """What attention trusts: ranges within the key slots, orders that name tokens, and those
        of N slots each token once. It waits for the device.

        Raises:
            ValueError: the first number that is wrong, and what is allowed.
        """
        length = self.lo.size(-1)
        slots = length if self.key_order is None else self.key_order.size(-1)
        seen = self.hi > self.lo
        self._check("lo", self.lo, seen & (self.lo < 0), "0 or more")
        self._check("hi", self.hi, seen & (self.hi > slots), f"up to {slots}, the key slots")
        for name, most in (("num_queries", length), ("num_keys", slots)):
            if (count := getattr(self, name)) is not None:
                self._check(name, count, (count < 0) | (count > most), f"0 to {most}")
        for name in ("query_order", "key_order"):
            if (order := getattr(self, name)) is None:
                continue
            wrong = (order < 0) | (order >= length)
            self._check(name, order, wrong, f"tokens, 0 to {length - 1}")
            if order.size(-1) == length:
                found = order.sort(-1).values
                twice = found != torch.arange(length, device=order.device)
                self._check(name, found, twice, "a permutation")

    @staticmethod
    def _check(name: str, numbers: Tensor, wrong: Tensor, allowed: str) -> None:
        if wrong.any():
            number = numbers.expand_as(wrong)[wrong][0]
            raise ValueError(f"layout.{name} has {number}; allowed: {allowed}")


TENSORS = ("lo", "hi", "query_order", "key_order", "num_queries", "num_keys")
"""Layout's first fields: orders and ranges, without a bias."""
