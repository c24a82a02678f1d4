"""Means: each cluster, or what is not seen of it, as one key.

Of the n keys of a cluster, a query sees their mean with the logit ``q . mean_k / sqrt(E) + log n``
and the value ``mean_v``: what dense attention would give if the keys were alike. Keys that a full
ring has dropped stay visible this way, except to queries of their own cluster. Of a cluster from
which an index shows some keys, the mean has the weight of the others: its logit is the log-sum-exp
of theirs. Its value remains the mean of all; a causal one lags behind them. In training, the
gradient is that of the mean's own logit. (NSA and RetroInfer, both 2025, see blocks and clusters.)

Shape letters: K clusters, that of dropped keys among them, M chunks, S tokens of a chunk,
C = 2 E + 1 numbers of a sum: of keys, of values, and how many there are.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import dropout as dropped
from torch.nn.functional import pad

from ....kernels import cpu
from ....precision import at_least_float32, full_float32
from ...kind import Other, Result
from ...projections import QKV
from ...tokens import Tokens, for_each, gather_tokens

HIDDEN = torch.finfo(torch.float32).min / 2  # a logit: of -inf alone, a gradient would be NaN


@dataclass
class _Means(Other):
    #: clusters of which a query sees keys, int64 [B, H, N] each; their means are hidden, unless
    #: there is an index
    looked_into: tuple[Tensor, ...]
    keys: Tensor  # the cluster of each key, int64 [B, G, N]
    clusters: int  # K
    tokens: Tokens  # a batch, or those behind what is kept; without sinks
    blind: Tensor | None = None  # queries that see no mean, bool [B, H, N]; None: none

    def looked(self, q: Tensor) -> Tensor:
        """The clusters of which each query sees keys, [B, H, N, probes]."""
        return torch.stack(self.looked_into, dim=-1).expand(*q.shape[:3], -1)

    def softmax(self, logits: Tensor, looked: Tensor, rest: Tensor | None) -> Result:
        """Weights of means and their log-sum-exp. Logits are HIDDEN where a cluster has no mean,
        and may be overwritten. One that ``rest`` replaces gets the gradient."""
        if rest is None:
            logits = logits.scatter_(-1, looked, HIDDEN)
        else:
            mean = logits.gather(-1, looked)
            rest = rest.detach().clamp(min=HIDDEN).masked_fill(mean <= HIDDEN / 2, HIDDEN)
            logits = logits.scatter(-1, looked, rest + (mean - mean.detach()))
        weights = logits.softmax(-1)
        largest, at_largest = logits.max(-1, keepdim=True)
        return weights, (largest - weights.gather(-1, at_largest).log()).squeeze(-1)

    def result(self, heads: QKV, out: Tensor, lse: Tensor) -> Result:
        """Values and log-sum-exp [B, H, N], where padding and some queries see nothing."""
        if self.tokens.padding_mask is not None:
            lse = lse.masked_fill(self.tokens.padding_mask.unsqueeze(1), -torch.inf)
        lse = lse if self.blind is None else lse.masked_fill(self.blind, -torch.inf)
        return out.to(heads.q.dtype), lse


class MeansOfOthers(_Means):
    """Not causal: means of all keys of a row but the query's own, which it sees besides."""

    @full_float32()
    def attend(self, heads: QKV, kept: None, rest: Tensor | None) -> tuple[Result, None]:
        heads, mask = heads.repeated(), self.tokens.padding_mask
        q, k, v = map(at_least_float32, heads[:3])
        entries, cluster = _entries(k, v), for_each(q, self.keys).expand(q.shape[:3])
        if mask is not None:  # padding may be anything
            hidden = mask[:, None, :, None]
            q, k, v, entries = (t.masked_fill(hidden, 0.0) for t in (q, k, v, entries))
            cluster = cluster.masked_fill(mask.unsqueeze(1), 0)
        sums = entries.new_zeros(*q.shape[:2], self.clusters, entries.size(-1))
        own = cluster.unsqueeze(-1)
        sums = sums.scatter_add(2, own.expand_as(entries), entries)
        mean_k, mean_v, bias = _means(sums)
        scale, width = q.size(-1) ** -0.5, q.size(-1)
        logits = q @ (mean_k.mT * scale) + bias.unsqueeze(-2)
        # Take each query's own key out of the mean of its cluster.
        of_own = gather_tokens(sums, cluster)
        number = of_own[..., -1:] - 1  # of the others
        some = number.clamp(min=1)
        without = (q * (of_own[..., :width] - k)).sum(-1, keepdim=True)
        others = (without * scale / some + some.log()).masked_fill(number < 1, HIDDEN)
        logits = logits.scatter(-1, own, others)
        weights, lse = self.softmax(logits, self.looked(q), rest)
        weights = dropped(weights, heads.dropout)
        of_others = (gather_tokens(mean_v, cluster) - v) / some
        out = weights @ mean_v + weights.gather(-1, own) * of_others
        return self.result(heads, out, lse), None


class Places(NamedTuple):
    """Where tokens stand in the chunks of their text; a row may begin within one, its first."""

    slot: Tensor  # of each token, counted from the begin of the first chunk, int64 [B, N]
    #: from which chunk on its key is in the means, counted from the first, int64 [B, N]
    since: Tensor
    end: Tensor  # the chunk of the token that will follow, counted likewise, int64 [B]
    chunks: int  # M, of the longest row
    later: int  # the most chunks from that of a token to that which sees its key


@dataclass
class MeansSoFar(_Means):
    """Causal: a text is cut into chunks of S tokens. The queries of a chunk see means of the keys
    that are ``gap`` tokens or more before its begin, of which no near window shows any. Kept are
    the sums that the chunk of the next token sees, and what comes to them in each chunk behind, at
    least float32 [B, J, 1 + later, K, C]."""

    every: int = 1  # S
    gap: int = 1  # tokens between a chunk and the keys that it sees means of, and one more

    @full_float32()
    def attend(
        self, heads: QKV, kept: Tensor | None, rest: Tensor | None
    ) -> tuple[Result, Tensor]:
        q, at, one = at_least_float32(heads.q), self.places(), heads.q.size(2) == 1
        sums, behind = self._sums(heads, at, kept)
        learns = torch.is_grad_enabled() or heads.dropout > 0 or torch.compiler.is_compiling()
        if not learns and self.tokens.impl in ("auto", "cpu") and cpu.can_run("means", q):
            out, lse = cpu.means(q, sums, at.slot // self.every, self.looked(q), rest)
            return self.result(heads, out, lse), behind
        slot, slots = at.slot.unsqueeze(1), 1 if one else at.chunks * self.every
        in_order = one or (self.tokens.padding_mask is None and kept is None)  # slots are places

        def by_chunk(x: Tensor) -> Tensor:  # [B, H, N, C] to [B, H, M, S, C]
            if in_order:
                filled = pad(x, (0, 0, 0, slots - x.size(2))) if slots > x.size(2) else x
            else:
                filled = x.new_zeros(*x.shape[:2], slots + 1, x.size(-1))
                filled = filled.scatter(2, slot.unsqueeze(-1).expand_as(x), x)[:, :, :-1]
            return filled.unflatten(2, (at.chunks, -1))

        k, v, bias = (for_each(q, t) for t in _means(sums))
        logits = by_chunk(q) @ (k.mT * q.size(-1) ** -0.5) + bias.unsqueeze(-2)
        rest = None if rest is None else by_chunk(rest)
        weights, lse = self.softmax(logits, by_chunk(self.looked(q)), rest)
        out, lse = (dropped(weights, heads.dropout) @ v).flatten(2, 3), lse.flatten(2, 3)
        if in_order:  # back from slots to tokens
            out, lse = out[:, :, : q.size(2)], lse[:, :, : q.size(2)]
        else:
            slot = slot.clamp(max=slots - 1).expand(q.shape[:3])
            out, lse = gather_tokens(out, slot), lse.gather(2, slot)
        return self.result(heads, out, lse), behind

    def in_cpu_step(self, heads: QKV, kept: Tensor | None) -> tuple[dict[str, Any], Tensor] | None:
        if self.tokens.padding_mask is not None or kept is None or kept.dtype != heads.q.dtype:
            return None
        at = self.places()  # it knows the clusters
        return {"sums": kept, "since": at.since, "ends": at.end}, kept

    def places(self) -> Places:
        """Where the tokens stand; padding gets a slot and a chunk behind all others."""
        return self.tokens.batch.cached(("means", self.every, self.gap), self._places)

    def _places(self) -> Places:
        mask, every = self.tokens.padding_mask, self.every
        batch, length = self.tokens.x.shape[:2]
        positions = self.tokens.positions.expand(batch, -1)
        first, number = positions[:, :1], length
        if mask is not None:
            number = (~mask).sum(1, keepdim=True)
            far = torch.iinfo(positions.dtype).max
            first = positions.masked_fill(mask, far).amin(1, keepdim=True)
            first = first.masked_fill(number == 0, 0)
        chunk = first // every
        slot, since = positions - chunk * every, -(-(positions + self.gap) // every) - chunk
        end = ((first + number) // every - chunk).squeeze(1)
        chunks, later = (length + every - 2) // every + 1, (2 * every - 2 + self.gap) // every
        if mask is not None:
            slot = slot.masked_fill(mask, chunks * every)
            since = since.masked_fill(mask, chunks + later + 1)
        return Places(slot, since, end, chunks, later)

    def _sums(self, heads: QKV, at: Places, kept: Tensor | None) -> tuple[Tensor, Tensor]:
        """Sums of keys and values by cluster, as the queries of each chunk see them, at least
        float32 [B, J, M, K, C]; and those that are kept."""
        k, number = heads.k, at.chunks + at.later + 1
        entries = _entries(k, heads.v)
        place = at.since.unsqueeze(1) * self.clusters + for_each(k, self.keys)
        place = place.clamp(max=number * self.clusters).unsqueeze(-1).expand_as(entries)
        rows = number * self.clusters + 1
        if kept is None:
            sums = entries.new_zeros(*k.shape[:2], rows, entries.size(-1))
        else:
            kept = kept.flatten(2, 3)
            sums = pad(kept, (0, 0, 0, rows - kept.size(2)))
        sums = sums.scatter_add_(2, place, entries)[:, :, :-1]
        sums = sums.unflatten(2, (number, self.clusters))
        seen = sums.cumsum(2)
        end = at.end.view(-1, 1, 1, 1, 1)
        behind = end + torch.arange(1, at.later + 1, device=k.device).view(-1, 1, 1)
        now, coming = (
            x.gather(2, index.expand(-1, k.size(1), -1, *sums.shape[3:]))
            for x, index in ((seen, end), (sums, behind))
        )
        return seen[:, :, : at.chunks], torch.cat([now, coming], dim=2)


def _entries(k: Tensor, v: Tensor) -> Tensor:
    """What each key adds to a sum, at least float32 [B, J, N, C]."""
    return at_least_float32(torch.cat([k, v, torch.ones_like(k[..., :1])], dim=-1))


def _means(sums: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean keys and values [..., K, E], and the log of how many keys there are [..., K]."""
    number = sums[..., -1]
    k, v = (sums[..., :-1] / number.clamp(min=1).unsqueeze(-1)).chunk(2, dim=-1)
    return k, v, number.clamp(min=1).log().masked_fill(number == 0, HIDDEN)
