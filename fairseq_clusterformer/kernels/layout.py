"""The layout of an attention: orders of queries and keys, and a range of keys for each query. A
kernel does not know why an order was chosen, nor what is causal or padding."""

import os
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """Orders and ranges of one attention.

    Attributes:
        lo, hi: first key slot that a query slot sees, and one past the last, int64 [B, G, N];
            ``hi <= lo`` sees nothing. Any with 0 <= lo and hi <= M are correct; what is fast are
            runs of query slots in which both do not decrease, for neighbours share keys then.
        query_order: token at each query slot, int64 [B, G, N], a permutation; None: identity.
        key_order: token at each key slot, int64 [B, G, M]; None: identity (then M = N). With
            M = N it is a permutation; with any other M a token may stand in several slots, or
            in none.
        num_queries, num_keys: slots that hold a real token, the first ones of each row, int64 [B,
            G]; None: all of them.
        key_bias: added to the logits of a key, floating point [B, G, N] in token order.
        earlier_only: besides the ranges, hide keys whose token stands after the query's
            (CF22 eq. 13). Only for comparison: the ranges themselves may depend on later tokens.

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

    @property
    def slots(self) -> int:
        """M, key slots."""
        return (self.lo if self.key_order is None else self.key_order).size(-1)

    def check(self) -> None:
        """Check what attention trusts, which waits for the device: ranges lie within the key
        slots, orders name tokens, and an order of N slots names each token once. Raises
        ValueError: the first number that is wrong, and what is allowed."""
        length, slots, seen = self.lo.size(-1), self.slots, self.hi > self.lo
        checks = [
            ("lo", self.lo, seen & (self.lo < 0), "0 or more"),
            ("hi", self.hi, seen & (self.hi > slots), f"up to {slots}, the key slots"),
        ]
        for name, most in (("num_queries", length), ("num_keys", slots)):
            if (count := getattr(self, name)) is not None:
                checks.append((name, count, (count < 0) | (count > most), f"0 to {most}"))
        for name in ("query_order", "key_order"):
            if (order := getattr(self, name)) is None:
                continue
            wrong, allowed = (order < 0) | (order >= length), f"tokens, 0 to {length - 1}"
            if order.size(-1) == length:
                order, allowed = order.sort(-1).values, f"a permutation of 0 to {length - 1}"
                wrong = order != torch.arange(length, device=order.device)
            checks.append((name, order, wrong, allowed))
        for name, numbers, wrong, allowed in checks:
            if wrong.any():
                number = numbers.expand_as(wrong)[wrong][0]
                raise ValueError(f"layout.{name} has {number}; allowed: {allowed}")


class Own(NamedTuple):
    """Each query's own key, seen besides the layouts."""

    bias: float = 0.0  # added to its logit
    #: of queries that do not see it so, bool [B, 1 or H, N]; None: no query
    hidden: Tensor | None = None
    #: what dropout multiplies its weight by, [B, H, N]; None: there is none
    drops: Tensor | None = None

    def within(self, padding_mask: Tensor | None) -> "Own":
        """Hidden at padding [B, N], too."""
        if padding_mask is None:
            return self
        padding = padding_mask.unsqueeze(1)
        return self._replace(hidden=padding if self.hidden is None else self.hidden | padding)


class Call(NamedTuple):
    """What a kernel is given."""

    q: Tensor  # like k and v, [B, H, N, E]
    k: Tensor
    v: Tensor
    key_bias: Tensor | None  # [B, 1 or H, N]
    #: names the masks of dropout, which the backward pass draws again; None: there are none
    seed: Tensor | None
    layout: Layout
    dropout: float
    own: Own | None = None  # each query's own key, besides the layout


TENSORS = ("lo", "hi", "query_order", "key_order", "num_queries", "num_keys")
"""Layout's first fields: orders and ranges, without a bias."""


def sort_by_cluster(clusters: Tensor, num_clusters: int) -> tuple[Tensor, Tensor]:
    """Tokens by cluster, int64 [..., N] in [0, K), then by position: exact and stable. Returns the
    token at each slot, and ``cluster * N + token`` of each slot; int64 [..., N]. On a CPU it is
    numpy's radix sort of up to 32,768 clusters, else torch's sort, which torch.compile traces."""
    length, traced = clusters.size(-1), torch.compiler.is_compiling()
    if clusters.is_cpu and num_clusters <= 1 << 15 and not traced:  # of 16 bits: radix, stable
        numbers = clusters.to(torch.int16).numpy()
        order = torch.from_numpy(np.argsort(numbers, axis=-1, kind="stable"))
        return order, clusters.gather(-1, order).mul_(length).add_(order)
    codes = clusters * length + torch.arange(length, device=clusters.device)
    codes, order = codes.sort(dim=-1)
    return order, codes


def validate(call: Call) -> None:
    """Check the shapes, dtypes and devices that every kernel relies on. What the layout holds is
    checked only where the environment has ``CLUSTERFORMER_CHECK_LAYOUTS=1``. Raises ValueError:
    what was given and what is allowed."""
    q, k, v, key_bias, _, layout, dropout, _ = call
    if q.dim() != 4 or not q.is_floating_point() or q.numel() == 0:
        allowed = "floating point [batch, heads, tokens, head width], each 1 or more"
        raise ValueError(f"q is {_describe(q)}; allowed: {allowed}")
    for name, x in (("k", k), ("v", v)):
        if (x.shape, x.dtype, x.device) != (q.shape, q.dtype, q.device):
            raise ValueError(f"{name} is {_describe(x)}; allowed: like q, {_describe(q)}")
    if not 0.0 <= dropout < 1.0:
        raise ValueError(f"dropout is {dropout}; allowed: 0 <= dropout < 1")
    batch, heads, length, _ = q.shape
    given = [(f"layout.{name}", getattr(layout, name)) for name in TENSORS]
    sizes = [(length,), (length,), (length,), (layout.slots,), (), (), (length,)]
    for (name, x), size in zip([*given, ("key_bias", key_bias)], sizes, strict=True):
        if x is None:
            continue
        kind = "floating point" if name == "key_bias" else "int64"
        fits = x.is_floating_point() if name == "key_bias" else x.dtype == torch.long
        fits &= x.device == q.device and x.dim() == 2 + len(size) and x.shape[2:] == size
        if not fits or x.size(0) not in (1, batch) or x.size(1) not in (1, heads):
            shape = ", ".join([f"1 or {batch}", f"1 or {heads}", *map(str, size)])
            allowed = f"{kind} [{shape}] on {q.device}"
            raise ValueError(f"{name} is {_describe(x)}; allowed: {allowed}")
    if os.environ.get("CLUSTERFORMER_CHECK_LAYOUTS") == "1" and not torch.compiler.is_compiling():
        layout.check()


def _describe(x: Tensor) -> str:
    return f"{x.dtype} {tuple(x.shape)} on {x.device}"
