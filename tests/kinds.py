"""Every kind of attention, as the conformance suite runs it: one line a form.

By default the last form of each kind is tested, in each mode, without Triton's interpreter; the
others are marked ``matrix``.
"""

import re
from itertools import cycle

import pytest
import torch

from fairseq_clusterformer.attention import (
    Batch,
    MultiheadAttention,
    Past,
    any_padding,
    parse_attention,
)
from fairseq_clusterformer.clustering import LOSSES

WINDOW = 5
CLUSTERS = 3
WIDTH = 16
HEADS = 4

# As specs write them; window and clusters are WINDOW and CLUSTERS unless they say otherwise.
CAUSAL = {
    "full": "full",
    "window": "window",
    "neural": "neural",
    "neural, running normaliser": "neural(normalizer=running)",
    "neural, dot": "neural(similarity=dot,temperature=1)",
    "neural, many clusters": "neural(clusters=100)",
    "neural, gap": "neural(gap=3)",
    "gated": "gated",
    "gated, gap": "gated(gap=4)",
    "taught": "taught",
    "taught, probes, gap": "taught(probes=2,gap=3,routing_convolution=0)",
    "taught, summaries": "taught(summaries=4,routing_convolution=0)",
    "taught, summaries, probes, gap": "taught(summaries=3,probes=2,gap=6)",
    "taught, by heads": "taught(routes_by=heads)",
    "window+taught, by heads, dropped keys, gap": "window+taught(routes_by=heads,drop_keys=0.5,"
    "routing_convolution=0,gap=2)",
    "taught, dropped keys, summaries, probes": "taught(drop_keys=0.4,summaries=4,probes=2)",
    "window+neural": "window+neural",
    "lsh": "lsh",
    "lsh, gap": "lsh(gap=3)",
    "window+lsh, many buckets": "window+lsh(clusters=100,rounds=3)",
    "routing": "routing",
    "window+routing, many clusters, gap": "window+routing(clusters=100,gap=2)",
    "xl": "xl",
    "window+xl, short segments": "window+xl(window=2)",
    "xl, long memory": "xl(memory=7)",
    "strided": "strided",
    "strided, fixed": "strided(pattern=fixed)",
    "strided, fixed, gap": "strided(pattern=fixed,gap=5)",
    "kmeans": "kmeans(interval=1)",
    "window+kmeans, many clusters, gap": "window+kmeans(clusters=100,gap=3)",
    "window, sinks": "window(sinks=2)",
    "gated, sinks, gap": "gated(sinks=3,gap=4)",
    "taught, sinks, summaries, probes": "taught(sinks=2,summaries=3,probes=2,gap=2)",
    "window+taught, clusters of keys": "window+taught(clusters_per=kv-head,probes=2,gap=3,"
    "routing_convolution=0)",
    "taught, clusters of keys": "taught(clusters_per=kv-head,sinks=2,summaries=3,probes=2,gap=3)",
    "window+lsh, sinks, gap": "window+lsh(sinks=2,gap=2)",
    "xl, sinks": "xl(sinks=1)",
    "kmeans, index": "kmeans(interval=1,index=2)",
    "routing, index, gap": "routing(index=2,gap=3,sinks=1)",
    "neural, index": "neural(index=3)",
    "taught, index, sinks, summaries": "taught(index=4,probes=2,gap=3,sinks=2,summaries=3)",
    "taught, index": "taught(index=3,probes=2,gap=2)",
    "window+taught, index, sinks, clusters of keys": "window+taught(index=4,probes=2,gap=3,"
    "sinks=2,clusters_per=kv-head)",
}
BIDIRECTIONAL = {
    "full": "full",
    "window": "window",
    "neural, chunk": "neural(rule=chunk)",
    "neural, recent": "neural",
    "neural, gap": "neural(gap=3)",
    "neural, chunk, centroids handed on": "neural(rule=chunk,own_centroids=false)",
    "neural, chunk, many clusters": "neural(rule=chunk,clusters=100)",
    "gated": "gated",
    "gated, gap": "gated(gap=2)",
    "taught": "taught",
    "taught, summaries": "taught(summaries=4)",
    "taught, by heads": "taught(routes_by=heads)",
    "taught, dropped keys": "taught(drop_keys=0.5,routes_by=heads)",
    "taught, clusters of keys": "taught(clusters_per=kv-head,probes=2,gap=3)",
    "window+neural": "window+neural(rule=chunk)",
    "lsh, chunk": "lsh(rule=chunk)",
    "lsh, recent": "lsh",
    "window+lsh, chunk, many buckets": "window+lsh(rule=chunk,clusters=100)",
    "lsh, gap": "lsh(gap=3)",
    "routing, chunk": "routing(rule=chunk)",
    "routing, recent": "routing",
    "routing, gap": "routing(gap=2)",
    "window+routing, chunk, many clusters": "window+routing(rule=chunk,clusters=100)",
    "xl": "xl",
    "strided": "strided",
    "strided, fixed": "strided(pattern=fixed)",
    "kmeans, chunk": "kmeans(rule=chunk,interval=1)",
    "kmeans, recent": "kmeans(interval=1)",
    "window+kmeans, chunk, many clusters": "window+kmeans(rule=chunk,clusters=100)",
    "kmeans, index": "kmeans(interval=1,index=2)",
    "routing, index": "routing(index=3,gap=2)",
    "taught, index": "taught(index=3,probes=2,gap=2)",
    "taught, index, summaries": "taught(index=3,probes=2,summaries=4)",
}

FLAGS = {"window": "attention_window", "clusters": "num_clusters", "rounds": "hash_rounds"}
FLAGS["index"] = "cluster_index"

# Kinds that carry more than rings from token to token, which no document of a row may begin with.
CARRIED_ON = (
    "neural, running normaliser",
    "taught",
    "taught, summaries",
    "taught, summaries, probes, gap",
    "taught, dropped keys, summaries, probes",
    "taught, sinks, summaries, probes",
    "taught, clusters of keys",
    "taught, index",
    "taught, index, sinks, summaries",
    "window+taught, index, sinks, clusters of keys",
)

# By the kernel blocks every kind; by triton those whose layouts differ: its interpreter is slow.
CAUSAL_BY_TRITON = ("neural, many clusters", "gated", "window+neural", "lsh")
BIDIRECTIONAL_BY_TRITON = ("window+neural", "routing, chunk")


def every_causal_kind(**others):
    """A parametrisation by ``kind``; ``others`` as in :func:`_by`."""
    return _by(("kind",), [(kind,) for kind in CAUSAL], others)


def every_kind(**others):
    """By ``kind`` and ``causal``."""
    cases = [(kind, True) for kind in CAUSAL] + [(kind, False) for kind in BIDIRECTIONAL]
    return _by(("kind", "causal"), cases, others)


def every_causal_kind_and_kernel(**others):
    """By ``impl`` and ``kind``."""
    cases = [("blocks", kind) for kind in CAUSAL] + [("triton", kind) for kind in CAUSAL_BY_TRITON]
    return _by(("impl", "kind"), cases, others)


def every_kind_and_kernel(**others):
    """By ``impl``, ``kind`` and ``causal``."""
    cases = [("blocks", kind, True) for kind in CAUSAL]
    cases += [("triton", kind, True) for kind in CAUSAL_BY_TRITON]
    cases += [("blocks", kind, False) for kind in BIDIRECTIONAL]
    cases += [("triton", kind, False) for kind in BIDIRECTIONAL_BY_TRITON]
    return _by(("impl", "kind", "causal"), cases, others)


def _by(names: tuple[str, ...], cases: list[tuple], others: dict[str, list]):
    """Each case with one of the values of each other, which take turns among the cases that are
    tested by default, and among the others of one kind."""
    params, turns = [], {}
    for case in cases:
        forms = BIDIRECTIONAL if False in case else CAUSAL
        name = next(part for part in case if part in forms)
        last = [form for form in forms if family(form) == family(name)][-1]
        rest = "triton" in case or name != last
        group = rest and ("triton" if "triton" in case else family(name))
        of_others = turns.setdefault(group, [cycle(values) for values in others.values()])
        marks = [pytest.mark.matrix] if rest else []
        params.append(pytest.param(*case, *map(next, of_others), marks=marks))
    return pytest.mark.parametrize((*names, *others), params, ids=_id)


def _id(value: object) -> str | None:
    return str(value).removeprefix("torch.") if isinstance(value, torch.dtype) else None


def family(name: str) -> str:
    """The kind of that name from the tables, without its options."""
    return name.split(",")[0].removeprefix("window+")


class HandedOn(MultiheadAttention):
    """Always given the same centroids."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        centroids = torch.randn(1, self.routers[0].rule.clusters, WIDTH)
        self.register_buffer("given", centroids, persistent=False)

    def forward(self, x, batch=None, centroids=None):
        return super().forward(x, batch, self.given.expand(len(x), -1, -1))


def build(
    kind: str, *, causal: bool, dtype=torch.float64, impl: str = "blocks", of=None, **options
) -> MultiheadAttention:
    """A layer of the kind, in evaluation, whose moving averages have seen some batches.

    Args:
        of: options of the layer besides its kinds.
        options: of the kinds, whatever their spec says.
    """
    spec = (CAUSAL if causal else BIDIRECTIONAL)[kind]
    if options.get("clusters") == 1:
        options["probes"] = 1
    for name, value in options.items():
        spec = re.sub(rf"\b{name}=[\w.]+", f"{name}={value}", spec)
    options = {"window": WINDOW, "clusters": CLUSTERS, **options}
    layer = HandedOn if "own_centroids=false" in spec else MultiheadAttention
    defaults = {FLAGS.get(name, name): value for name, value in options.items()}
    (kinds,) = parse_attention(spec, num_layers=1, num_heads=HEADS, defaults=defaults)
    module = layer(WIDTH, HEADS, kinds=kinds, causal=causal, kernel="blocks", **(of or {})).to(
        dtype
    )
    for _ in range(3):
        _, reports = module(torch.randn(2, 30, WIDTH, dtype=dtype))
        module.observe(reports)
        module.commit()
    module.impl = impl
    return module.eval()


def losses_of(reports: list) -> list[torch.Tensor]:
    """All that teaches clusters besides the task."""
    losses = [getattr(report, name) for report in reports for name in LOSSES]
    return [loss for loss in losses if loss is not None]


def pads(lengths: list[int], total: int, side: str) -> torch.Tensor:
    """Padding mask, bool [B, total], with that many real tokens a row."""
    place = torch.arange(total).expand(len(lengths), -1)
    real = torch.tensor(lengths).unsqueeze(-1)
    return place < total - real if side == "left" else place >= real


def by_steps(
    module, x, mask=None, documents=None, order_at=None, portions=()
) -> tuple[torch.Tensor, Past]:
    """Outputs [B, N, D] of portions of these sizes and of single steps behind them, and what they
    keep; the rows may get another order, (number of the first token, new order of the batch)."""
    past, outputs, t = Past(), [], 0
    sizes = iter(portions or ())
    while t < x.size(1):
        if order_at is not None and t == order_at[0]:
            rows, order_at = order_at[1], None
            x, mask, *outputs = (None if o is None else o[rows] for o in (x, mask, *outputs))
            past = past.reorder(rows)
        part = slice(t, t := min(t + next(sizes, 1), x.size(1)))
        hidden, numbers = (None if o is None else o[:, part] for o in (mask, documents))
        hidden = None if hidden is None else any_padding(hidden)
        out, past = module.step(x[:, part], past, Batch(hidden, numbers))
        outputs.append(out)
    return torch.cat(outputs, dim=1), past
