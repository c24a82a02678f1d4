"""Summaries: each cluster that a query does not look into, as one key.

Of the n keys of a cluster, a query sees their mean with the logit ``q . mean_k / sqrt(E) + log n``
and the value ``mean_v``: what dense attention would give if the keys were alike. Every key
contributes to some mean, at linear cost. Keys that a full ring has dropped stay visible this way,
except to queries of their own cluster. (NSA, Yuan et al. 2025, and RetroInfer, Chen et al. 2025,
attend to blocks and clusters alike.)

Causal: a text is cut into chunks of S tokens. The queries of a chunk see means of the keys that
are ``gap`` tokens or more before its begin: no key counts both here and in a near window. What
decoding keeps are sums, of a fixed size. Not causal: means of all keys of a row but the query's
own, which it sees besides.

Shape letters: B batch, H heads, J those of keys (in decoding; else H), N tokens, E head width, K
clusters, M chunks, S tokens of a chunk, C = 2 E + 1 numbers of a sum: of keys, of values, and how
many there are.
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import dropout as dropped
from torch.nn.functional import pad

from ..clustering import State
from ..kernels.cpu.step import InMeans
from ..precision import at_least_float32, full_float32
from .assignment import Assignment, Seeing, Tokens
from .parts import QKV, Part
from .rings import Entries, for_each
from .scouts import gather_tokens


class Places(NamedTuple):
    """Where tokens stand in the chunks of their text; a row may begin within one, its first."""

    slot: Tensor  # of each token, counted from the begin of the first chunk, int64 [B, N]
    #: from which chunk on its key is in the means, counted from the first, int64 [B, N]
    since: Tensor
    end: Tensor  # the chunk of the token that will follow, counted likewise, int64 [B]
    chunks: int  # M, of the longest row
    later: int  # the most chunks from that of a token to that which sees its key


@dataclass
class ClusterMeans(Part):
    """Means of the clusters that a query does not look into."""

    #: clusters of which a query sees keys, and no mean, int64 [B, H, N] each
    looked_into: tuple[Tensor, ...]
    clusters_of_keys: Tensor  # the cluster of each key, int64 [B, J, N], J heads or groups of them
    num_clusters: int  # K
    every: int | None  # S; None: not causal
    gap: int  # tokens between a chunk and the keys that it sees means of, and one more
    tokens: Tokens  # a batch, or those behind the state's
    state: State | None = None  # of the tokens before; None: a batch
    scouts: Tensor | None = None  # queries that see every key, and no mean, bool [B, H, N]
    stored: bool = False

    biased = True

    @classmethod
    def of(
        cls, kind: Seeing, tokens: Tokens, assignment: Assignment, state: State | None
    ) -> "ClusterMeans":
        """Of a kind with the option ``summaries``, and the clusters that it assigned."""
        ((probed, keys),) = assignment.rounds()
        if state is not None or keys is None:  # in decoding, heads may share keys
            (keys,) = assignment.keys()
        return cls(
            probed,
            keys,
            kind.num_clusters,
            kind.options.summaries if kind.causal else None,
            max(kind.gap, 1),
            tokens,
            state,
            None if assignment.scouts is None else assignment.scouts.queries,
        )

    @full_float32()
    def attend(self, qkv: QKV, joined: bool) -> list[tuple[Tensor, Tensor]]:
        q, at = qkv.q, self.places()
        sums, self.behind = self.sums(qkv, at)
        room = q.size(2) if self.every is None else self.every
        slot, slots = at.slot.unsqueeze(1), at.chunks * room
        in_order = self.tokens.padding_mask is None and not self.state  # slots are places

        def by_chunk(x: Tensor) -> Tensor:  # [B, H, N, ...] to [B, H, M, S, ...]
            if in_order:
                x = pad(x, (*(0, 0) * (x.dim() - 3), 0, slots - x.size(2)))
                return x.unflatten(2, (at.chunks, room))
            into = slot.view(*slot.shape, *(1,) * (x.dim() - 3)).expand_as(x)
            filled = x.new_zeros(*x.shape[:2], slots + 1, *x.shape[3:]).scatter(2, into, x)
            return filled[:, :, :-1].unflatten(2, (at.chunks, room))

        k, v, bias, none = (for_each(q, t) for t in _means(sums))
        scale = q.size(-1) ** -0.5
        in_chunks = by_chunk(at_least_float32(q))
        logits = in_chunks @ (k.mT * scale) + bias.unsqueeze(-2)
        hidden = none.unsqueeze(-2).expand_as(logits).clone()
        if self.every is None:  # take each query's own key out of the mean of its cluster
            cluster = by_chunk(self.clusters_of_keys.expand(q.shape[:3]))
            own_k, own_v = (by_chunk(at_least_float32(t)) for t in (qkv.k, qkv.v))
            of_own = partial(_of_cluster, cluster=cluster)
            number = of_own(sums[..., -1:]) - 1  # of the others
            rest = number.clamp(min=1)
            without = (in_chunks * (of_own(sums[..., : k.size(-1)]) - own_k)).sum(-1, keepdim=True)
            logits = logits.scatter(-1, cluster.unsqueeze(-1), without * scale / rest + rest.log())
            hidden.scatter_(-1, cluster.unsqueeze(-1), number < 1)
        for clusters in self.looked_into:
            hidden.scatter_(-1, by_chunk(clusters.expand(q.shape[:3])).unsqueeze(-1), True)
        least = torch.finfo(logits.dtype).min / 2  # of -inf alone, a gradient would be NaN
        logits = logits.masked_fill(hidden, least)
        weights = logits.softmax(-1)
        largest, at_largest = logits.max(-1, keepdim=True)
        # without another exponential
        lse = (largest - weights.gather(-1, at_largest).log()).squeeze(-1)
        weights = dropped(weights, qkv.dropout)
        out = weights @ v
        if self.every is None:
            weight = weights.gather(-1, cluster.unsqueeze(-1))
            out = out + weight * (of_own(v) - own_v) / rest
        # Back from slots to tokens.
        out, lse = out.flatten(2, 3), lse.flatten(2, 3)
        if in_order:
            out, lse = out[:, :, : q.size(2)], lse[:, :, : q.size(2)]
        else:
            slot = slot.clamp(max=slots - 1).expand(q.shape[:3])
            out, lse = gather_tokens(out, slot), lse.gather(2, slot)
        out = out.to(q.dtype)
        if self.tokens.padding_mask is not None:
            lse = lse.masked_fill(self.tokens.padding_mask.unsqueeze(1), -torch.inf)
        if self.scouts is not None:
            lse = lse.masked_fill(self.scouts, -torch.inf)
        return [(out, lse)]

    def look(self, qkv: QKV) -> list[Entries]:
        k, v, bias, hidden = _means(self._kept(qkv)[:, :, 0])  # of the token's chunk
        hidden = for_each(qkv.q, hidden)
        for clusters in self.looked_into:
            hidden = hidden.scatter(-1, clusters.expand(*hidden.shape[:2], 1), True)
        entries = torch.cat([k, bias.unsqueeze(-1), v], dim=-1).flatten(0, 1)
        return [Entries(entries, hidden.unsqueeze(2))]

    def for_cpu_step(self, q: Tensor) -> bool:
        sums = self.state.get("summaries")
        return sums is not None and sums.dtype == q.dtype and self.tokens.padding_mask is None

    def in_cpu_step(self, qkv: QKV) -> dict[str, InMeans]:
        at, sums = self.places(), self._kept(qkv)
        shape = len(sums), qkv.q.size(1), 1
        looked_into = torch.cat([c.expand(shape) for c in self.looked_into], dim=-1)
        cluster = self.clusters_of_keys.expand(*sums.shape[:2], 1)
        self.stored = True
        return {"means": InMeans(sums, looked_into, cluster, at.since, at.end)}

    def keep(self, qkv: QKV) -> State:
        if self.stored:
            return {"summaries": self.state["summaries"]}
        return {"summaries": self.behind if qkv.q.size(2) > 1 else self._kept_with(qkv)}

    def _kept(self, qkv: QKV) -> Tensor:
        """Sums that the chunk of one token sees, and what comes to them in each chunk behind it,
        [B, J, 1 + later, K, C]."""
        kept = self.state.get("summaries")
        if kept is None:
            chunks, wide = 1 + self.places().later, at_least_float32(qkv.k)
            sizes = chunks, self.num_clusters, 2 * qkv.k.size(-1) + 1
            kept = wide.new_zeros(*qkv.k.shape[:2], *sizes)
        return kept

    @full_float32()
    def _kept_with(self, qkv: QKV) -> Tensor:
        """The same behind the token, which no query of its chunk sees."""
        at, mask, kept = self.places(), self.tokens.padding_mask, self._kept(qkv)
        entry, since = _entries(qkv), at.since
        if mask is not None:
            entry = entry.masked_fill(mask[:, None, :, None], 0.0)
            since = since.masked_fill(mask, 0)
        place = since.unsqueeze(1) * self.num_clusters + self.clusters_of_keys
        flat, place = kept.flatten(2, 3), place.unsqueeze(-1).expand_as(entry)
        if torch.is_grad_enabled():
            flat = flat.scatter_add(2, place, entry)
        else:
            flat.scatter_add_(2, place, entry)
        kept = flat.view_as(kept)
        ends = at.end > 0  # the next token begins a chunk
        waits = ends.is_cuda or torch.compiler.is_compiling()
        if not waits and not ends.any():
            return kept
        now, coming = kept[:, :, :2].sum(2, keepdim=True), kept[:, :, 2:]
        later = torch.cat([now, coming, torch.zeros_like(now)], dim=2)
        return torch.where(ends.view(-1, 1, 1, 1, 1), later, kept)

    def places(self) -> Places:
        """Where the tokens stand; padding gets a slot and a chunk behind all others."""
        return self.tokens.batch.cached(("summaries", self.every, self.gap), self._places)

    def _places(self) -> Places:
        mask, (batch, length) = self.tokens.padding_mask, self.tokens.x.shape[:2]
        positions = self.tokens.positions.expand(batch, -1)
        if self.every is None:
            slot = torch.arange(length, device=positions.device).expand(batch, -1)
            since, end = torch.zeros_like(slot), slot.new_zeros(batch)
            found = Places(slot, since, end, chunks=1, later=0)
        else:
            first, number = positions[:, :1], length
            if mask is not None:
                number = (~mask).sum(1, keepdim=True)
                far = torch.iinfo(positions.dtype).max
                first = positions.masked_fill(mask, far).amin(1, keepdim=True)
                first = first.masked_fill(number == 0, 0)
            chunk = first // self.every
            found = Places(
                slot=positions - chunk * self.every,
                since=(positions + self.gap + self.every - 1) // self.every - chunk,
                end=((first + number) // self.every - chunk).squeeze(1),
                chunks=(length + self.every - 2) // self.every + 1,
                later=(2 * self.every - 2 + self.gap) // self.every,
            )
        if mask is None:
            return found
        slots = found.chunks * (length if self.every is None else self.every)
        return found._replace(
            slot=found.slot.masked_fill(mask, slots),
            since=found.since.masked_fill(mask, found.chunks + found.later + 1),
        )

    @full_float32()
    def sums(self, qkv: QKV, at: Places) -> tuple[Tensor, Tensor]:
        """Sums of keys and values by cluster, as the queries of each chunk see them.

        Returns:
            Sums of each chunk, at least float32 [B, J, M, K, C]; and, for the next tokens, those
            that their chunk sees, and what comes to them in each of the chunks behind it.
        """
        k, number = qkv.k, at.chunks + at.later + 1
        before = None if self.state is None else self.state.get("summaries")
        entries = _entries(qkv)
        place = at.since.unsqueeze(1) * self.num_clusters + self.clusters_of_keys
        place = place.clamp(max=number * self.num_clusters).unsqueeze(-1).expand_as(entries)
        sums = entries.new_zeros(*k.shape[:2], number * self.num_clusters + 1, entries.size(-1))
        sums = sums.scatter_add(2, place, entries)[:, :, :-1]
        sums = sums.unflatten(2, (number, self.num_clusters))
        if before is not None:
            sums = sums + pad(before, (0, 0, 0, 0, 0, number - before.size(2)))
        seen = sums.cumsum(2)
        end = at.end.view(-1, 1, 1, 1, 1)
        behind = end + torch.arange(1, at.later + 1, device=k.device).view(-1, 1, 1)
        now, coming = (
            x.gather(2, index.expand(-1, k.size(1), -1, *sums.shape[3:]))
            for x, index in ((seen, end), (sums, behind))
        )
        return seen[:, :, : at.chunks], torch.cat([now, coming], dim=2)


def _entries(qkv: QKV) -> Tensor:
    """What each key adds to a sum, at least float32 [B, J, N, C]."""
    k, v = qkv.k, qkv.v
    return at_least_float32(torch.cat([k, v, torch.ones_like(k[..., :1])], dim=-1))


def _means(sums: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mean keys and values [..., K, E], the log of how many keys there are, and where there are
    none [..., K]."""
    number = sums[..., -1]
    k, v = (sums[..., :-1] / number.clamp(min=1).unsqueeze(-1)).chunk(2, dim=-1)
    return k, v, number.clamp(min=1).log(), number == 0


def _of_cluster(x: Tensor, cluster: Tensor) -> Tensor:
    """Of numbers of clusters [B, H, M, K, C], those of each slot's, [B, H, M, S, C]."""
    return x.gather(3, cluster.unsqueeze(-1).expand(*cluster.shape, x.size(-1)))
