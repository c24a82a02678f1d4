"""Attentions to measure in one run: this project's, PyTorch's, and three from PyPI.

All take the layer's input and q, k, v with heads, so what is measured is attention alone, routing
included. Each is set so that a query can see about W keys, unless it is dense:

===============  ==================================================================================
dense            PyTorch's ``scaled_dot_product_attention``, by the backend that it chooses
dense-math       the same, by the backend that makes the N x N matrix
window           the W latest tokens
neural           the W latest of the query's cluster (causal), or two chunks of N / K (not causal)
neural+losses    the same, and the losses that teach the clusters
gated            the W latest of the query's cluster; the default model has it and windows
taught           the W / 2 latest of each of the query's two nearest clusters, as in generation
taught+losses    the same, 64 queries of each head that see every key, and the routing loss
local            ``local-attention``: blocks of W / 2; a query sees its own block up to itself, and
                 the block before
reformer         ``reformer-pytorch``: LSH, one round, buckets of W / 2; a query sees its own
                 bucket and the one before. Queries are keys too. It sees earlier tokens only, but
                 which of them depends on later tokens.
routing          ``routing-transformer``: N / W clusters, the W nearest tokens of each, with its
                 step of K-Means. Which tokens a query sees depends on later ones.
===============  ==================================================================================

Shape letters: B batch, H heads, N tokens, E head width, D = H E, S some queries.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention

from fairseq_clusterformer.attention import Batch, Shape, Tokens, parse_attention
from fairseq_clusterformer.attention.attend import attend
from fairseq_clusterformer.attention.kind import Seen
from fairseq_clusterformer.attention.options import attention_kinds
from fairseq_clusterformer.attention.projections import QKV
from fairseq_clusterformer.clustering import LOSSES, Report
from fairseq_clusterformer.kernels import Layout
from scripts.benchmarks.common import DTYPES, Unavailable, require_memory

SCOUTS = 64  # of taught heads, in training


@dataclass(frozen=True)
class Setting:
    """Sizes of an attention."""

    length: int
    batch: int = 1
    heads: int = 8
    width: int = 64
    window: int = 128
    clusters: int = 8
    dtype: str = "float32"
    device: str = "cpu"
    impl: str = "blocks"
    causal: bool = True
    layers: int = 1  # that hold what backward needs at the same time


class Attention(nn.Module):
    """One contestant. x is [B, N, D], and q, k and v are [B, H, N, E]."""

    def __init__(self, setting: Setting):
        super().__init__()
        self.setting = setting

    def forward(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The output [B, H, N, E], and scalar losses."""
        raise NotImplementedError

    def visible(self, x: Tensor, q: Tensor, k: Tensor, queries: Tensor) -> Tensor | None:
        """Which tokens the queries int64 [S] see, bool [B or 1, H or 1, S, N]; None: unknown."""
        return None

    def pairs(self, x: Tensor, q: Tensor, k: Tensor) -> int | None:
        """Visible query-key pairs over batch and heads; None: unknown."""
        return None

    def after_backward(self) -> None:
        """What else a training step does."""

    def _latest(self, queries: Tensor, window: int) -> Tensor:
        token = torch.arange(self.setting.length, device=queries.device)
        behind = queries.unsqueeze(-1) - token
        return ((behind >= 0) & (behind < window)).view(1, 1, *behind.shape)


class Dense(Attention):
    """PyTorch's, with the backend that it chooses."""

    def forward(self, x, q, k, v):
        return scaled_dot_product_attention(q, k, v, is_causal=self.setting.causal), []

    def visible(self, x, q, k, queries):
        if self.setting.causal:
            return self._latest(queries, self.setting.length)
        return queries.new_ones(1, 1, len(queries), self.setting.length).bool()

    def pairs(self, x, q, k):
        length = self.setting.length
        seen = length * (length + 1) // 2 if self.setting.causal else length**2
        return self.setting.batch * self.setting.heads * seen


class DenseMatrix(Dense):
    """PyTorch's, with the N x N matrix: one kept for each layer, three more at work."""

    def __init__(self, setting: Setting):
        matrix = setting.batch * setting.heads * setting.length**2
        needed = (setting.layers + 3) * matrix * DTYPES[setting.dtype].itemsize
        require_memory(needed, setting.device)
        super().__init__(setting)

    def forward(self, x, q, k, v):
        with nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
            return super().forward(x, q, k, v)


class Clustered(Attention):
    """This project's kinds: a router, and ranged attention."""

    def __init__(self, setting: Setting, kind: str, losses: bool = False):
        super().__init__(setting)
        self.losses = losses
        options = {"attention_window": setting.window, "num_clusters": setting.clusters}
        options["cluster_rule"] = "recent" if setting.causal else "chunk"
        options["cluster_exploration"] = 0.0  # or each call would route differently
        ((heads,),) = parse_attention(kind, num_layers=1, num_heads=1, defaults=options)
        shape = Shape(setting.heads * setting.width, setting.heads, setting.width, setting.causal)
        self.router = attention_kinds()[heads.kind].kind(heads.options, shape)

    def route(self, x: Tensor, q: Tensor, k: Tensor) -> Seen:
        """Who sees whom."""
        return self.router(Tokens(x, (q, k), Batch(), impl=self.setting.impl))

    def forward(self, x, q, k, v):
        seen, qkv = self.route(x, q, k), QKV(q, k, v)
        out, _ = attend(qkv, seen, self.router.rule, None)
        out, report = self.router.attended(out, qkv, seen)
        return out, self.losses_of(report)

    def losses_of(self, report: Report) -> list[Tensor]:
        """What teaches the clusters; nothing does in evaluation."""
        losses = [getattr(report, name) for name in LOSSES] if self.losses else []
        return [loss for loss in losses if loss is not None]

    def visible(self, x, q, k, queries):
        sight = self.route(x, q, k).sight
        alone = len(sight.layouts) == 1 and sight.own is None
        layout = sight.layouts[0]
        return visible_tokens(layout, queries) if alone else None

    def pairs(self, x, q, k):
        sight = self.route(x, q, k).sight
        seen = [(layout.hi - layout.lo).clamp(min=0) for layout in sight.layouts]
        shape = (self.setting.batch, self.setting.heads, -1)
        pairs = sum(int(count.expand(*shape).sum()) for count in seen)
        return pairs + (0 if sight.own is None else q[..., 0].numel())


class Taught(Clustered):
    """Clusters that attention teaches."""

    def __init__(self, setting: Setting, losses: bool = False):
        window = max(2, setting.window // 2 + setting.causal)  # of each, the own key among them
        spec = f"taught(window={window},probes=2,scouts={SCOUTS if losses else 0})"
        super().__init__(setting, spec, losses)


def visible_tokens(layout: Layout, queries: Tensor) -> Tensor:
    """Which tokens some queries int64 [S] see by a layout, bool [B or 1, G, S, N]."""
    length = layout.lo.size(-1)
    slots = queries.expand(*layout.lo.shape[:2], -1)
    if layout.query_order is not None:
        slots = layout.query_order.argsort(-1)[..., queries]
    lo, hi = (t.expand(*slots.shape[:2], -1).gather(-1, slots) for t in (layout.lo, layout.hi))
    num_keys = length if layout.key_order is None else layout.key_order.size(-1)
    slot = torch.arange(num_keys, device=queries.device)
    seen = (slot >= lo.unsqueeze(-1)) & (slot < hi.unsqueeze(-1))
    if layout.key_order is None:
        return seen
    count = torch.zeros(*seen.shape[:-1], length, device=queries.device)
    return count.scatter_add_(-1, layout.key_order.unsqueeze(-2).expand_as(seen), seen.float()) > 0


class Local(Attention):
    def __init__(self, setting: Setting):
        super().__init__(setting)
        if not setting.causal:
            raise Unavailable("set up for causal attention only")
        from local_attention import LocalAttention

        self.block = max(1, setting.window // 2)
        how = {"causal": True, "look_backward": 1, "autopad": True, "use_rotary_pos_emb": False}
        self.attention = LocalAttention(self.block, **how)

    def forward(self, x, q, k, v):
        return self.attention(q, k, v), []

    def visible(self, x, q, k, queries):
        token = torch.arange(self.setting.length, device=queries.device)
        block = torch.div(token, self.block, rounding_mode="floor")
        near = block[queries].unsqueeze(-1) - block <= 1
        return near & self._latest(queries, self.setting.length)


class Reformer(Attention):
    def __init__(self, setting: Setting):
        super().__init__(setting)
        from reformer_pytorch import LSHAttention

        bucket = max(1, setting.window // 2)
        self.padding = -setting.length % (2 * bucket)
        self.attention = LSHAttention(bucket_size=bucket, n_hashes=1, causal=setting.causal)

    def forward(self, x, q, k, v):
        batch, heads, length, _ = q.shape
        qk, v = (pad(t.flatten(0, 1), (0, 0, 0, self.padding)) for t in (q, v))
        mask = None
        if self.padding:
            mask = torch.arange(qk.size(1), device=q.device).expand(len(qk), -1) < length
        out, _, _ = self.attention(qk, v, input_mask=mask)
        return out[:, :length].unflatten(0, (batch, heads)), []


class Routing(Attention):
    def __init__(self, setting: Setting):
        super().__init__(setting)
        from routing_transformer.routing_transformer import KmeansAttention

        clusters = max(1, setting.length // setting.window)
        sizes = (min(setting.window, setting.length), setting.heads, setting.width)
        self.attention = KmeansAttention(clusters, *sizes, causal=setting.causal)

    def forward(self, x, q, k, v):
        out, loss = self.attention(q, k, v)
        return out, [loss]

    def after_backward(self):
        if self.attention.kmeans.new_means is not None:
            self.attention.kmeans.update()


#: class and arguments by name
CONTESTANTS: dict[str, tuple[type[Attention], dict]] = {
    "dense": (Dense, {}),
    "dense-math": (DenseMatrix, {}),
    "window": (Clustered, {"kind": "window"}),
    "neural": (Clustered, {"kind": "neural"}),
    "neural+losses": (Clustered, {"kind": "neural", "losses": True}),
    "gated": (Clustered, {"kind": "gated"}),
    "taught": (Taught, {}),
    "taught+losses": (Taught, {"losses": True}),
    "local": (Local, {}),
    "reformer": (Reformer, {}),
    "routing": (Routing, {}),
}


def build(name: str, setting: Setting) -> Attention:
    """Make a contestant. Raises Unavailable: not installed, not for this device, or too large."""
    make, arguments = CONTESTANTS[name]
    try:
        attention = make(setting, **arguments)
    except ImportError as error:
        raise Unavailable(f"not installed: {error}") from None
    return attention.to(setting.device, DTYPES[setting.dtype])
