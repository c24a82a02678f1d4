#!/usr/bin/env python3
"""Train every kind of attention on recall from further away than a window reaches.

    python scripts/recall_task.py
    python scripts/recall_task.py --kinds near+neural --seeds 1 2 3 --out results.json

A row holds 8 pairs of a key and a value, scattered over its first 40 tokens, then noise, and at
its end the 8 keys again, shuffled: at each, the model names the value of its pair. What can be
learned without seeing the pairs is 1 in 16; a model that sees which values there are, but not
which key each belongs to, gets 2 in 16.

A SPEC of ``--kinds`` is an attention spec as ``--attention`` takes it. ``near`` is a kind that
this script registers itself: a window of 8, for local heads beside clustered ones. Kinds that
learn clusters by losses are trained once for each combination of ``--cluster-normalizer`` and
``--loss-weights``.
Model size, steps and rows are the same for all. With ``--out``, what has a result there is not
trained again, so the command can be stopped and given again.

Shape letters: B batch, N tokens, Q queries, D model width, G groups of heads that share an order.
"""

import argparse
import json
import math
import os
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from itertools import product
from pathlib import Path
from typing import NamedTuple

import torch
from data_folder import write_aside
from torch import Tensor, nn
from tqdm import tqdm

sys.path.append(str(Path(__file__).resolve().parents[1]))

from fairseq_clusterformer.attention import (  # noqa: E402
    AttentionConfig,
    Full,
    Lsh,
    MultiheadAttention,
    RoutingAttention,
    Strided,
    Window,
    parse_attention,
    register_attention,
)
from fairseq_clusterformer.attention.base import NORMALIZERS, SIMILARITIES  # noqa: E402
from fairseq_clusterformer.clustering import cluster_use  # noqa: E402
from fairseq_clusterformer.kernels import Layout  # noqa: E402

LENGTH = 96
PAIRS = 8
PAIRS_END = 40  # pairs lie before this position
SYMBOLS = 16  # different keys, different values, different noise tokens
GAP = LENGTH - PAIRS - PAIRS_END  # every query is further than this from every pair
WIDTH, HEADS, LAYERS, NEAR = 64, 2, 2, 8
BATCH, LEARNING_RATE, WARMUP = 32, 1e-3, 100
TEST_ROWS, TEST_SEED = 512, 0  # --seeds begin at 1
WITHOUT_LOSSES = (Full, Lsh, RoutingAttention, Strided)
KINDS = ("full", "window", "near", "neural", "near+neural")


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
    """What differs between runs, besides the seed; options of the command line in the singular."""

    kind: str
    cluster_normalizer: str = "average"
    loss_weight: float = 0.1
    num_clusters: int = 8
    attention_window: int = 24
    cluster_similarity: str = "cosine"
    cluster_temperature: float = 0.1
    cluster_exploration: float = 0.1
    value_first: bool = False
    steps: int = 2000

    def attention(self) -> AttentionConfig:
        return AttentionConfig(
            window=self.attention_window,
            num_clusters=self.num_clusters,
            cluster_similarity=self.cluster_similarity,
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
        kinds = parse_attention(setting.kind, num_layers=LAYERS, num_heads=HEADS)
        self.layers = nn.ModuleList(Layer(k, setting.attention()) for k in kinds)
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
    curve, begin = {}, time.perf_counter()
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
            curve[step] = result["accuracy"]
            progress.set_postfix(loss=f"{loss.item():.3f}", accuracy=f"{curve[step]:.3f}")
    return {**result, "curve": curve, "seconds": round(time.perf_counter() - begin)}


def clustering_losses(reports: list[list]) -> Tensor | float:
    """Sum of both losses of CF22 (eq. 6 and 11), each a mean over the layers that cluster."""
    clustered = [r for of_layer in reports for r in of_layer if r.sorting_loss is not None]
    losses = [report.clustering_loss + report.sorting_loss for report in clustered]
    return torch.stack(losses).mean() if losses else 0.0


@torch.no_grad()
def evaluate(model: Model, value_first: bool = False) -> dict:
    """Accuracy, cluster use, and the share of queries that see their pair, layer by layer."""
    layouts: list[list[Layout]] = [[] for _ in model.layers]
    hooks = [
        router.register_forward_hook(lambda _, __, out, to=to: to.extend(out.layouts))
        for layer, to in zip(model.layers, layouts, strict=True)
        for router in layer.attention.routers
    ]
    rows = make_rows(TEST_ROWS, torch.Generator().manual_seed(TEST_SEED), value_first)
    logits, reports = model.eval()(rows.tokens)
    model.train()
    for hook in hooks:
        hook.remove()
    sizes = [r.cluster_sizes for rs in reports for r in rs if r.cluster_sizes is not None]
    seen = [pairs_seen(of_layer, rows) for of_layer in layouts]
    return {
        "accuracy": (logits.argmax(-1) == rows.answers).float().mean().item(),
        "effective clusters": [cluster_use(s).effective.item() for s in sizes],
        "sees its pair": [own for own, _ in seen],
        "sees another pair": [other for _, other in seen],
    }


def pairs_seen(layouts: list[Layout], rows: Rows) -> tuple[float, float]:
    """Share of queries that see their own pair in a layer, and the mean over the other pairs."""
    seen = torch.zeros(len(rows.tokens), LENGTH, LENGTH, dtype=torch.bool)
    for layout in layouts:
        seen |= seen_tokens(layout).any(1)
    seen = seen[:, -PAIRS:]
    at = rows.pairs_at.unsqueeze(1).expand(-1, PAIRS, -1)
    seen = seen.gather(-1, at).float()  # [B, Q, Q]
    own = seen.diagonal(dim1=1, dim2=2).mean()
    other = (seen.mean() * PAIRS - own) / (PAIRS - 1)
    return own.item(), other.item()


def seen_tokens(layout: Layout) -> Tensor:
    """Which key tokens each query token sees, bool [B, G, N, N]."""
    length = layout.lo.size(-1)
    identity = torch.arange(length).view(1, 1, -1)
    key_order = identity if layout.key_order is None else layout.key_order
    query_order = identity if layout.query_order is None else layout.query_order
    slot = torch.arange(key_order.size(-1))
    seen = (slot >= layout.lo.unsqueeze(-1)) & (slot < layout.hi.unsqueeze(-1))
    of_token = torch.zeros(*seen.shape[:-1], length)
    of_token.scatter_add_(-1, key_order.unsqueeze(-2).expand_as(seen), seen.float())
    row = query_order.argsort(-1).unsqueeze(-1).expand_as(of_token)
    return of_token.gather(-2, row) > 0


def settings(args: argparse.Namespace) -> list[Setting]:
    """What the command line asks for, in its order.

    Raises:
        ValueError: an option's value is not allowed, with the option and what is.
    """
    shared = {f.name: getattr(args, f.name) for f in fields(Setting)[3:]}
    wanted = []
    for kind in dict.fromkeys(args.kinds):
        parse_attention(kind, num_layers=LAYERS, num_heads=HEADS, option="--kinds")
        model = Model(Setting(kind, **shared))
        routers = [list(layer.attention.routers) for layer in model.layers]
        if not all(isinstance(r, WITHOUT_LOSSES) for of_layer in routers for r in of_layer):
            choices = product(args.cluster_normalizer, args.loss_weights)
            wanted += [Setting(kind, *choice, **shared) for choice in choices]
            continue
        wanted.append(Setting(kind, **shared))
        reach = sum(max(r.window or LENGTH for r in of_layer) - 1 for of_layer in routers)
        local = all(isinstance(router, Window) for of_layer in routers for router in of_layer)
        if local and reach > GAP:
            raise ValueError(
                f"--attention-window is {args.attention_window}: with --kinds {kind} a query is "
                f"reached from {reach} tokens away; allowed: {GAP // LAYERS + 1} or less"
            )
    return wanted


def command(setting: Setting, seed: int) -> str:
    """The command line of one run; options of their default value are left out."""
    words = ["python", "scripts/recall_task.py", "--kinds", setting.kind, "--seeds", seed]
    words += ["--cluster-normalizer", setting.cluster_normalizer]
    words += ["--loss-weights", setting.loss_weight]
    for field in fields(Setting)[3:]:
        value = getattr(setting, field.name)
        if value != field.default:
            words.append("--" + field.name.replace("_", "-"))
            words += [] if value is True else [value]
    return shlex.join(map(str, words))


def table(results: list[dict]) -> str:
    """Markdown: a row for each setting, over its seeds; options that never vary have no column."""
    groups: dict[Setting, list[dict]] = {}
    for result in results:
        groups.setdefault(Setting(**result["setting"]), []).append(result)
    options = [
        f.name
        for f in fields(Setting)[3:]
        if any(getattr(setting, f.name) != f.default for setting in groups)
    ]
    head = ["kind", "normaliser", "mu = nu", *options, "seeds", "accuracy", "effective clusters"]
    head += [f"sees its pair, layer {i + 1} (another)" for i in range(LAYERS)]
    lines = ["| " + " | ".join(name.replace("_", " ") for name in head) + " |"]
    lines.append("| --- |" + " ---: |" * (len(head) - 1))
    for setting, group in groups.items():
        clustered = bool(group[0]["effective clusters"])
        cells = [setting.kind]
        cells += [setting.cluster_normalizer, setting.loss_weight] if clustered else ["-", "-"]
        cells += [getattr(setting, name) for name in options]
        cells += [len(group), spread([r["accuracy"] for r in group])]
        uses = [statistics.mean(r["effective clusters"]) for r in group if clustered]
        cells.append(f"{statistics.mean(uses):.1f}" if clustered else "-")
        for i in range(LAYERS):
            own = statistics.mean(r["sees its pair"][i] for r in group)
            other = statistics.mean(r["sees another pair"][i] for r in group)
            cells.append(f"{own:.2f} ({other:.2f})")
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def spread(values: list[float]) -> str:
    """Mean, and the range where there are several."""
    if len(values) == 1:
        return f"{values[0]:.3f}"
    return f"{statistics.mean(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def load(path: Path | None) -> dict[tuple[Setting, int], dict]:
    """Results of earlier runs, by setting and seed.

    Raises:
        ValueError: the folder is missing, or the file is not one that this script wrote.
    """
    if path is None or (path.parent.is_dir() and not path.exists()):
        return {}
    try:
        results = json.loads(path.read_text())
        if not isinstance(results, list):
            raise TypeError(type(results))
        for result in results:  # older than the option: of runs without
            result["setting"].setdefault("cluster_exploration", 0.0)
        table(results)
        return {(Setting(**result["setting"]), result["seed"]): result for result in results}
    except (OSError, ValueError, TypeError, LookupError):
        raise ValueError(
            f"--out is {path}; allowed: a new file in a folder that exists, or results of this "
            "script"
        ) from None


def save(path: Path | None, results: list[dict]) -> None:
    """Write the whole file or none of it."""
    if path is not None:
        write_aside(path, json.dumps(results, indent=1) + "\n")


def number(kind: type, low: float) -> Callable[[str], float]:
    """An argparse type: a finite number that is ``low`` or more."""
    name = {int: "a whole number", float: "a number"}[kind]

    def parse(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not low <= value < math.inf:
            raise argparse.ArgumentTypeError(f"it is {text!r}; allowed: {name}, {low} or more")
        return value

    return parse


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    count, weight = number(int, 1), number(float, 0)

    def add(name: str, help: str, **options) -> None:
        options.setdefault("default", getattr(Setting, name[2:].replace("-", "_"), None))
        parser.add_argument(name, help=help + " (default: %(default)s)", **options)

    add("--kinds", "attention specs", nargs="+", default=KINDS, metavar="SPEC")
    add("--seeds", "of weights and rows", nargs="+", type=count, default=(1, 2))
    add("--steps", "updates of a run", type=count)
    add("--cluster-normalizer", "", nargs="+", choices=NORMALIZERS, default=NORMALIZERS)
    add("--loss-weights", "mu = nu", nargs="+", type=weight, default=(0.1, 0.0), metavar="MU")
    add("--attention-window", "of kinds other than near", type=count, metavar="W")
    add("--num-clusters", "clusters of a layer", type=count, metavar="K")
    add("--cluster-similarity", "phi of CF22 eq. 2", choices=SIMILARITIES)
    add("--cluster-temperature", "divides phi", type=weight, metavar="T")
    add(
        "--cluster-exploration",
        "share of gated keys that training puts in a drawn cluster",
        type=weight,
        metavar="SHARE",
    )
    add("--value-first", "a pair is value, key", action="store_true")
    add("--out", "JSON file that keeps results", type=Path, metavar="FILE")
    return parser


def main(arguments: list[str]) -> int:
    """Run the command; a user's mistake is one line on stderr and a status other than 0."""
    args = make_parser().parse_args(arguments)
    try:
        wanted = list(product(settings(args), dict.fromkeys(args.seeds)))
        done = load(args.out)
    except ValueError as error:
        print(f"recall_task.py: error: {error}", file=sys.stderr)
        return 1
    for i, (setting, seed) in enumerate(wanted, start=1):
        if (setting, seed) in done:
            continue
        print(f"run {i} of {len(wanted)}: {command(setting, seed)}", file=sys.stderr, flush=True)
        done[setting, seed] = {
            "setting": asdict(setting),
            "seed": seed,
            **train(setting, seed),
            "command": command(setting, seed),
            "machine": f"{platform.machine()}, {torch.get_num_threads()} thread(s), "
            f"{os.cpu_count()} cores",
            "date": time.strftime("%Y-%m-%d"),
        }
        save(args.out, list(done.values()))
    print(table([done[run] for run in wanted]))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)  # the shell's status for a run ended by SIGINT
