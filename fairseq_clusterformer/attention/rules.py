"""From an assignment to layouts: which keys of its cluster a query sees.

The rule "recent" is the one that is causal, and that decoding follows token by token
(:mod:`fairseq_clusterformer.attention.rings`).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from ..kernels import Layout, Own
from .assignment import Assignment, Seeing, Tokens
from .layout import (
    chunk_layout,
    own_chunk_layout,
    recent_layouts,
    top_layout,
    window_layouts,
    without_own,
)
from .scouts import hidden_from, scout_layouts

# Bias of a key that counts only where a query sees nothing else: next to any other its weight is
# 0, and float16 still holds the logit.
LAST_RESORT = -5e4


class Visible(NamedTuple):
    """Who sees whom in a batch."""

    #: the results of several are joined by their log-sum-exp, as if each query had one softmax
    #: over all that it sees (what two layouts show it counts twice)
    layouts: tuple[Layout, ...]
    own: Own | None  # the query's own key, where no layout shows it
    #: layouts by which scouts see every key, which are among the others
    of_scouts: tuple[Layout, ...] = ()


def own_bias(kind: Seeing) -> float:
    """Bias of the query's own key where it is seen besides others."""
    return LAST_RESORT if kind.self_key == "fallback" else 0.0


def route(kind: Seeing, tokens: Tokens, assignment: Assignment) -> Visible:
    """The layouts of a batch. Raises ValueError: :func:`check_clusters`."""
    check_clusters(kind, tokens, assignment)
    of_rule = recent if kind.rule == "recent" else _chunk
    by_cluster, near, own = of_rule(kind, tokens, assignment, kind.num_clusters)
    if assignment.key_bias is not None:
        by_cluster = [replace(layout, key_bias=assignment.key_bias) for layout in by_cluster]
    scouts, of_scouts = assignment.scouts, ()
    if scouts is not None:
        of_scouts = scout_layouts(
            scouts.queries, causal=kind.causal, gap=kind.gap, batch=tokens.batch
        )
        by_cluster = [*hidden_from(scouts.queries, by_cluster), *of_scouts]
    return Visible((*by_cluster, *near), own, of_scouts)


def check_clusters(kind: Seeing, tokens: Tokens, assignment: Assignment) -> None:
    """Clusters that the kind does not have would show keys of others, or memory that is no key.
    Raises ValueError: what was assigned, and K. On CUDA, which is not waited for, and in a graph
    of ``torch.compile`` it is torch's assertion."""
    count = kind.num_clusters
    for clusters in (c for probed, keys in assignment.rounds() for c in (*probed, keys)):
        if clusters is None:
            continue
        wrong = (clusters < 0) | (clusters >= count)
        if tokens.padding_mask is not None:
            wrong = wrong & ~tokens.padding_mask.unsqueeze(1)
        problem, allowed = f"{type(kind).__name__} assigned cluster", f"allowed: 0 to {count - 1}"
        if torch.compiler.is_compiling() or clusters.device.type != "cpu":
            torch._assert_async(~wrong.any(), f"{problem}s that it does not have; {allowed}")
        elif wrong.any():
            raise ValueError(f"{problem} {clusters[wrong][0]}; {allowed}")


_Seen = tuple[Sequence[Layout], Sequence[Layout], Own | None]  # by cluster, by position, itself


def recent(kind: Seeing, tokens: Tokens, assignment: Assignment, num_clusters: int) -> _Seen:
    """The latest keys of its cluster that are ``gap`` tokens back or more, and those that are
    nearer by position; not causal: on either side.

    Args:
        num_clusters: that the assignment names.
    """
    x, batch, gap = tokens.x, tokens.batch, kind.gap
    if assignment.query is None:
        return window_layouts(x, kind.cluster_window, causal=kind.causal, batch=batch), (), None
    layouts: list[Layout] = []
    for probed, keys in assignment.rounds():
        for queries in probed:
            layouts += recent_layouts(
                queries,
                num_clusters,
                kind.cluster_window,
                causal=kind.causal,
                gap=gap,
                batch=batch,
                key_clusters=keys,
                impl=tokens.impl,
            )
    if gap == 0:
        own = None
        if kind.self_key == "always" and assignment.key is not None:  # else its cluster shows it
            ((probed, keys),) = assignment.rounds()
            own = Own(hidden=torch.stack([queries == keys for queries in probed]).any(0))
        elif kind.self_key == "fallback":
            own = Own(LAST_RESORT)
        return layouts, (), own
    if gap == 1:
        return layouts, (), Own(own_bias(kind))
    near = gap if kind.causal else gap - 1
    window = window_layouts(x, near, causal=kind.causal, batch=batch)
    if kind.self_key != "fallback":
        return layouts, window, None
    sides = without_own(window[0])
    return layouts, sides[:1] if kind.causal else sides, Own(LAST_RESORT)


def _chunk(kind: Seeing, tokens: Tokens, assignment: Assignment, num_clusters: int) -> _Seen:
    """A chunk of the tokens sorted by cluster: not causal, for where it begins depends on all."""
    layouts: list[Layout] = []
    options = {"padding_mask": tokens.padding_mask, "impl": tokens.impl}
    for (queries, *_), _ in assignment.rounds():
        if kind.chunk_rule == "top_keys":
            layouts.append(top_layout(queries, assignment.similarity, **options))
        elif kind.chunk_rule == "own_chunk":
            layouts.append(own_chunk_layout(queries, num_clusters, kind.window, **options))
        else:
            causal = kind.causal
            layouts.append(chunk_layout(queries, num_clusters, earlier_only=causal, **options))
    if kind.self_key != "fallback" or kind.chunk_rule == "top_keys":
        return layouts, (), None
    return [side for layout in layouts for side in without_own(layout)], (), Own(LAST_RESORT)
