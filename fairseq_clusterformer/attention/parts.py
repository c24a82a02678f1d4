"""What a query sees is a list of parts, under one softmax.

Shape letters: B batch, H heads of a kind, J heads of keys and values, E head width, N tokens.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..clustering import State
from ..kernels import Layout, Own, chosen, join
from ..kernels.cpu import step
from ..precision import at_least_float32
from .assignment import Tokens
from .projections import Rotary
from .rings import Entries


class QKV(NamedTuple):
    """Queries, keys and values of a kind's heads, with their positions."""

    q: Tensor  # [B, H, N, E]
    k: Tensor  # like v [B, J, N, E], each for H / J queries; of a batch, J = H
    v: Tensor
    dropout: float = 0.0  # of the attention weights
    biased: bool = False  # entries that are kept have a bias
    rotary: Rotary | None = None  # how queries and keys are turned
    # Makes keys and values of the same tokens whose states get no gradient.
    detached: Callable[[], tuple[Tensor, Tensor]] | None = None

    def repeated(self) -> "QKV":
        """With keys and values for each query."""
        times = self.q.size(1) // self.k.size(1)
        if times == 1:
            return self
        k, v = (t.repeat_interleave(times, dim=1) for t in (self.k, self.v))
        return self._replace(k=k, v=v)


class Part:
    """Keys that a query sees, in training and in decoding.

    A part is made for each call: of a batch; or in decoding, with the state that :meth:`keep`
    returned for the tokens before. In decoding :meth:`keep` is called last.
    """

    biased = False  # whether its entries have a bias
    # Of a batch, for who looks on: single keys that are seen, and the own key if it is in none.
    layouts: Sequence[Layout] = ()
    own: Own | None = None
    tokens: Tokens  # that it is made for

    def attend(self, qkv: QKV, joined: bool) -> list[tuple[Tensor, Tensor]]:
        """What a batch, or several tokens behind the state's, attend to: values [B, H, N, E] and
        their log-sum-exp [B, H, N], once or more; ``joined``: these are not the only results."""
        raise NotImplementedError

    def look(self, qkv: QKV) -> list[Entries]:
        """What one token behind the state's may attend to."""
        raise NotImplementedError

    def for_cpu_step(self, q: Tensor) -> bool:
        """Whether :func:`~fairseq_clusterformer.kernels.cpu.step.step` knows what these queries,
        on a CPU, see of this part; what is kept must have their dtype."""
        return False

    def in_cpu_step(self, qkv: QKV) -> dict[str, Any]:
        """Arguments of that function, by name. It also keeps the token, so that :meth:`keep` only
        returns the state."""
        raise NotImplementedError

    def keep(self, qkv: QKV) -> State:
        """The state behind the tokens that were attended from."""
        raise NotImplementedError


def attend(parts: Sequence[Part], qkv: QKV) -> Tensor:
    """Values [B, H, N, E] that a batch, or several tokens behind others, attend to."""
    joined = len(parts) > 1
    results = [result for part in parts for result in part.attend(qkv, joined)]
    return join(results)[0].to(qkv.q.dtype)


def attend_behind(parts: Sequence[Part], qkv: QKV) -> tuple[Tensor, State]:
    """Values [B, H, N, E] that one or more tokens behind others attend to, and the state."""
    if any(part.biased for part in parts):
        qkv = qkv._replace(biased=True)
    if qkv.q.size(2) > 1:
        out = attend(parts, qkv)
    else:
        out = _in_one_kernel(parts, qkv)
        if out is None:
            out = _softmax(qkv.q, [entries for part in parts for entries in part.look(qkv)])
    return out, {name: t for part in parts for name, t in part.keep(qkv).items()}


def _in_one_kernel(parts: Sequence[Part], qkv: QKV) -> Tensor | None:
    """Values [B, H, 1, E] that one token attends to, where a kernel knows all that it sees."""
    q = qkv.q
    if q.is_cuda or torch.is_grad_enabled() or torch.compiler.is_compiling():
        return None
    if not all(part.for_cpu_step(q) for part in parts):
        return None
    if chosen(parts[0].tokens.impl, q) != "cpu" or not step.can_step(q):
        return None
    return step.step(q, **{k: v for part in parts for k, v in part.in_cpu_step(qkv).items()})


def _softmax(q: Tensor, seen: Sequence[Entries]) -> Tensor:
    """Values [B, H, 1, E] that queries attend to, by one softmax over all that they see."""
    (batch, heads, _, width), dtype = q.shape, q.dtype
    q = at_least_float32(q) / math.sqrt(width)
    if seen[0].entries.size(-1) > 2 * width:  # the bias is one more number of the key
        q = pad(q, (0, 1), value=1.0)
    each = [at_least_float32(part.entries) for part in seen]
    logits = []
    for part, entries in zip(seen, each, strict=True):
        # Heads that share keys stand side by side, as queries of one product.
        rows = q.reshape(len(entries), -1, q.size(-1))
        found = torch.bmm(rows, entries[..., : q.size(-1)].mT)
        if part.hidden is not None:
            groups = part.hidden.size(1)
            by_group = found.view(batch, groups, heads // groups, found.size(-1))
            by_group.masked_fill_(part.hidden, torch.finfo(found.dtype).min)
        logits.append(found.view(batch, heads, found.size(-1)))
    sizes = [found.size(-1) for found in logits]
    weights = torch.softmax(torch.cat(logits, dim=-1), dim=-1).split(sizes, dim=-1)
    some, out = any(part.some or part.hidden is None for part in seen), 0.0
    for part, entries, weight in zip(seen, each, weights, strict=True):
        if not some:  # where nothing is seen, all weights are alike
            hidden = part.hidden.expand(-1, -1, heads // part.hidden.size(1), -1)
            weight = weight.masked_fill(hidden.reshape(weight.shape), 0.0)
        rows = weight.reshape(len(entries), batch * heads // len(entries), weight.size(-1))
        out = out + torch.bmm(rows, entries[..., -width:]).view(batch, heads, 1, width)
    return out.to(dtype)
