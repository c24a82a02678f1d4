"""The recall task: its rows, a model, and one training.

Importing this registers the kind ``near``.

Shape letters: B batch, N tokens, Q queries, D model width, G groups of heads that share an order.
"""

import math
import time
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from tqdm import tqdm

from fairseq_clusterformer.attention import (
    AttentionConfig,
    MultiheadAttention,
    Window,
    parse_attention,
    register_attention,
)
from fairseq_clusterformer.attention.inspect import tokens_seen
from fairseq_clusterformer.clustering import cluster_use
from fairseq_clusterformer.errors import bad_option

LENGTH = 96
PAIRS = 8
PAIRS_END = 40  # pairs lie before this position
SYMBOLS = 16  # different keys, different values, different noise tokens
GAP = LENGTH - PAIRS - PAIRS_END  # every query is further than this from every pair
WIDTH, HEADS, LAYERS, NEAR = 64, 2, 2, 8
BATCH, LEARNING_RATE, WARMUP = 32, 1e-3, 100
TEST_ROWS, TEST_SEED = 512, 0  # --seed is 1 or more


@register_attention("near")
class Near(Window):
    """A window of 8, whatever ``--attention-window`` says."""

    def __init__(self, config: AttentionConfig, **kwargs):
        super().__init__(config, **kwargs)
        self.window = NEAR


class Rows(NamedTuple):
    """Rows of the task, int64.

    Attributes:
        tokens: [B, N]; values are 0 up to SYMBOLS, then come keys, then noise.
        answers: the value that belongs to each query, [B, Q]; the queries are the last Q tokens.
        pairs_at: position of the second token of that pair, which can know both, [B, Q].
    """

    tokens: Tensor
    answers: Tensor
    pairs_at: Tensor


def make_rows(rows: int, generator: torch.Generator, value_first: bool = False) -> Rows:
    """Draw rows; keys differ from each other within a row, and values do.

    Args:
        rows: B.
        value_first: a value stands right before its key, not right after.
    """

    def draw(count: int, of: int) -> Tensor:
        return torch.rand(rows, of, generator=generator).argsort(-1)[:, :count]

    keys, values = SYMBOLS + draw(PAIRS, SYMBOLS), draw(PAIRS, SYMBOLS)
    first = 2 * draw(PAIRS, PAIRS_END // 2)
    asked = draw(PAIRS, PAIRS)
    tokens = torch.randint(2 * SYMBOLS, 3 * SYMBOLS, (rows, LENGTH), generator=generator)
    keys_at, values_at = (first + 1, first) if value_first else (first, first + 1)
    tokens.scatter_(1, keys_at, keys).scatter_(1, values_at, values)
    tokens[:, -PAIRS:] = keys.gather(1, asked)
    return Rows(tokens, values.gather(1, asked), first.gather(1, asked) + 1)


@dataclass(frozen=True)
class Setting:
    """What differs between runs, apart from the seed: the options of the command."""

    kind: str
    cluster_normalizer: str = "average"
    loss_weight: float = 0.1
    num_clusters: int = 8
    attention_window: int = 24
    cluster_temperature: float = 0.1
    cluster_exploration: float = 0.1
    value_first: bool = False
    steps: int = 2000

    def attention(self) -> AttentionConfig:
        return AttentionConfig(
            window=self.attention_window,
            num_clusters=self.num_clusters,
            cluster_temperature=self.cluster_temperature,
            cluster_exploration=self.cluster_exploration,
            cluster_normalizer=self.cluster_normalizer,
            kernel="reference",
        )


class Layer(nn.Module):
    """A pre-norm Transformer layer over ``MultiheadAttention``."""

    def __init__(self, kinds: tuple[str, ...], config: AttentionConfig):
        super().__init__()
        self.attention = MultiheadAttention(WIDTH, HEADS, kinds=kinds, config=config, causal=True)
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 4 * WIDTH),
            nn.ReLU(),
            nn.Linear(4 * WIDTH, WIDTH),
        )

    def forward(self, x: Tensor) -> tuple[Tensor, list]:
        out, reports = self.attention(self.attention_norm(x))
        x = x + out
        return x + self.feed_forward(x), reports


class Model(nn.Module):
    """Token and position embeddings in fairseq's scale, two layers, a classifier of values."""

    def __init__(self, setting: Setting):
        super().__init__()
        self.embed = nn.Embedding(3 * SYMBOLS, WIDTH)  # of variance 1, as fairseq's once scaled
        rate = torch.exp(torch.arange(0, WIDTH, 2) * (-math.log(10000.0) / WIDTH))
        angle = torch.arange(LENGTH).unsqueeze(-1) * rate
        self.register_buffer("positions", torch.cat([angle.sin(), angle.cos()], -1))
        kinds = parse_attention(setting.kind, num_layers=LAYERS, num_heads=HEADS, option="KIND")
        self.layers = nn.ModuleList(Layer(k, setting.attention()) for k in kinds)
        routers = [list(layer.attention.routers) for layer in self.layers]
        reach = sum(max(r.window or LENGTH for r in of_layer) - 1 for of_layer in routers)
        local = all(isinstance(router, Window) for of_layer in routers for router in of_layer)
        if local and reach > GAP:
            problem = f"a query of {setting.kind} is reached from {reach} tokens away"
            allowed = f"{GAP // LAYERS + 1} or less"
            raise bad_option("--attention-window", setting.attention_window, allowed, problem)
        self.norm = nn.LayerNorm(WIDTH)
        self.classify = nn.Linear(WIDTH, SYMBOLS)

    def forward(self, tokens: Tensor) -> tuple[Tensor, list[list]]:
        """Logits of the values at the queries [B, Q, SYMBOLS], and each layer's reports."""
        x, reports = self.embed(tokens) + self.positions, []
        for layer in self.layers:
            x, of_layer = layer(x)
            reports.append(of_layer)
        return self.classify(self.norm(x[:, -PAIRS:])), reports


def train(setting: Setting, seed: int) -> dict:
    """One run: its accuracy and what its queries see."""
    torch.manual_seed(seed)
    model = Model(setting).train()
    rows_drawn = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98))
    curve, begin = [], time.perf_counter()
    progress = tqdm(
        range(1, setting.steps + 1), desc=f"{setting.kind}, seed {seed}", mininterval=1
    )
    for step in progress:
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, step / WARMUP)
        rows = make_rows(BATCH, rows_drawn, setting.value_first)
        logits, reports = model(rows.tokens)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), rows.answers.flatten())
        total = loss + setting.loss_weight * clustering_losses(reports)
        optimizer.zero_grad()
        total.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for layer, of_layer in zip(model.layers, reports, strict=True):
            layer.attention.observe(of_layer)
            layer.attention.commit()
        optimizer.step()
        if step % 500 == 0 or step == setting.steps:
            result = evaluate(model, setting.value_first)
            curve.append([step, result["accuracy"]])
            progress.set_postfix(loss=f"{loss.item():.3f}", accuracy=f"{result['accuracy']:.3f}")
    return {**result, "curve": curve, "seconds": round(time.perf_counter() - begin)}


def clustering_losses(reports: list[list]) -> Tensor | float:
    """Sum of both losses of CF22 (eq. 6 and 11), each a mean over the layers that cluster."""
    clustered = [r for of_layer in reports for r in of_layer if r.sorting_loss is not None]
    losses = [report.clustering_loss + report.sorting_loss for report in clustered]
    return torch.stack(losses).mean() if losses else 0.0


@torch.no_grad()
def evaluate(model: Model, value_first: bool = False) -> dict:
    """Accuracy, cluster use, and the share of queries that see their pair, layer by layer."""
    rows = make_rows(TEST_ROWS, torch.Generator().manual_seed(TEST_SEED), value_first)
    logits, reports = model.eval()(rows.tokens)
    by_layer: dict[str, list[Tensor]] = {}
    for name, seen in tokens_seen(model, rows.tokens).items():
        by_layer.setdefault(name.rpartition(".routers.")[0], []).append(seen)
    model.train()
    sizes = [r.cluster_sizes for rs in reports for r in rs if r.cluster_sizes is not None]
    pairs = [pairs_seen(of_layer, rows) for of_layer in by_layer.values()]
    return {
        "accuracy": (logits.argmax(-1) == rows.answers).float().mean().item(),
        "effective clusters": [cluster_use(s).effective.item() for s in sizes],
        "sees its pair": [own for own, _ in pairs],
        "sees another pair": [other for _, other in pairs],
    }


def pairs_seen(seen_by_heads: list[Tensor], rows: Rows) -> tuple[float, float]:
    """Share of queries that see their own pair in a layer, and the mean over the other pairs.

    Args:
        seen_by_heads: which tokens each query of some heads sees, bool [B, G, N, N].
    """
    seen = torch.zeros(len(rows.tokens), LENGTH, LENGTH, dtype=torch.bool)
    for of_heads in seen_by_heads:
        seen |= of_heads.any(1)
    seen = seen[:, -PAIRS:]
    at = rows.pairs_at.unsqueeze(1).expand(-1, PAIRS, -1)
    seen = seen.gather(-1, at).float()  # [B, Q, Q]
    own = seen.diagonal(dim1=1, dim2=2).mean()
    other = (seen.mean() * PAIRS - own) / (PAIRS - 1)
    return own.item(), other.item()
