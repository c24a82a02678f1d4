"""Train one small model on recall from further away than a window reaches.

    python -m examples.language_model.recall near+gated --steps 5000 --cluster-temperature 0.2
    python -m scripts.experiments.run examples/language_model/recall.yaml --out RESULTS.jsonl

KIND is an attention spec as --attention takes it; `near` is a window of 8. --task is:

recall      A row holds pairs of a key and a value, scattered over its first tokens, then noise,
            and at its end the keys again, shuffled. At each, the model names the value of its
            pair. A guess is right in 1 of 16 cases; in 2 of 16 if the model sees which values
            there are. With --halvings 4, some training batches have more rows, of a half to a 16th
            of the length and of the pairs.
mqar        Multi-query associative recall with the data of Zoology (Arora et al. 2024, "Based",
            figure 2): 8,192 words, half of them keys. The pairs come first, the keys again
            anywhere behind them, among random words. Training rows have 64 to 256 tokens and 4 to
            64 pairs. With a short convolution, which shows the order, there are no positions.

Shape letters: B batch, N tokens, Q queries, G groups of heads that share an order.
"""

import json
import math
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from tqdm import tqdm

from fairseq_clusterformer.attention import Heads, MultiheadAttention, parse_attention
from fairseq_clusterformer.attention.inspect import tokens_seen
from fairseq_clusterformer.attention.past import tensors
from fairseq_clusterformer.cli.common import Parser, whole_number
from fairseq_clusterformer.cli.main import program
from fairseq_clusterformer.errors import UserError, bad_option
from fairseq_clusterformer.metrics.clusters import cluster_use, summary
from fairseq_clusterformer.outputs import write_aside

NAME = "python -m examples.language_model.recall"
HEADS, LAYERS, NEAR = 2, 2, 8
LEARNING_RATE, WARMUP = 1e-3, 100
TEST_ROWS, TEST_SEED = 512, 0  # --seed is 1 or more
TEST_TOGETHER = 64  # rows of a forward pass in evaluation, which bounds its memory
MQAR_WORDS, MQAR_POWER = 8192, 0.01
#: of Zoology: tokens, pairs and rows of its training data
MQAR_TRAINING = ((64, 4, 5), (128, 8, 1), (256, 16, 1), (256, 32, 1), (256, 64, 1))


@dataclass(frozen=True)
class Setting:
    """What differs between runs: the options of the command. ``pairs`` lie before ``pairs_end``;
    there are ``symbols`` different keys, as many values, and as many noise tokens."""

    kind: str
    task: str = "recall"
    width: int = 64
    length: int = 96
    pairs: int = 8
    pairs_end: int = 40
    symbols: int = 16
    attention_window: int = 24
    num_clusters: int = 8
    cluster_normalizer: str = "average"
    cluster_temperature: float | None = None
    cluster_exploration: float = 0.1
    loss_weight: float = 0.1
    short_convolution: int = 0
    copying_start: bool = False
    batch: int = 32
    halvings: int = 0
    steps: int = 2000
    seed: int = 1

    def __post_init__(self):
        if self.task not in TASKS:
            raise bad_option("--task", self.task, ", ".join(TASKS))
        _, _, most, least = self.sizes()
        if not 2 <= self.pairs <= most:
            raise bad_option("--pairs", self.pairs, f"2 to {most}")
        if self.length < least:
            raise bad_option("--length", self.length, f"{least} or more")
        halves = self.task == "recall" and self.pairs >> self.halvings >= 2
        if self.halvings and not halves:
            most = f"0, and with --task recall as many as leave 2 of {self.pairs} pairs"
            raise bad_option("--halvings", self.halvings, most)

    def sizes(self) -> tuple[int, int, int, int]:
        """How many words and answers there are; the most pairs and the least length."""
        symbols, end = self.symbols, self.pairs_end
        if self.task == "mqar":
            return MQAR_WORDS, MQAR_WORDS, MQAR_WORDS // 2, 4 * self.pairs
        most = min(symbols, end // 2)
        return 3 * symbols, symbols, most, self.pairs + end


class Rows(NamedTuple):
    """Rows of the task, int64."""

    tokens: Tensor  # [B, N]; values come first, then keys, then noise
    answers: Tensor  # the value that belongs to each query, [B, Q]
    pairs_at: Tensor  # position of the second token of that pair, which can know both, [B, Q]
    queries_at: Tensor  # [B, Q]


def draw(rows: int, of: int, count: int, generator: torch.Generator) -> Tensor:
    """Different numbers below ``of`` in each row, int64 [rows, count]."""
    return torch.rand(rows, of, generator=generator).argsort(-1)[:, :count]


def make_rows(setting: Setting, rows: int, generator: torch.Generator) -> Rows:
    """Draw rows; keys differ from each other within a row, and values do."""
    pairs, symbols = setting.pairs, setting.symbols
    keys, values = (draw(rows, symbols, pairs, generator) for _ in range(2))
    first = 2 * draw(rows, setting.pairs_end // 2, pairs, generator)
    asked = draw(rows, pairs, pairs, generator)
    noise = (2 * symbols, 3 * symbols)
    tokens = torch.randint(*noise, (rows, setting.length), generator=generator)
    tokens.scatter_(1, first, symbols + keys).scatter_(1, first + 1, values)
    tokens[:, -pairs:] = symbols + keys.gather(1, asked)
    queries = torch.arange(setting.length - pairs, setting.length).expand(rows, -1)
    return Rows(tokens, values.gather(1, asked), first.gather(1, asked) + 1, queries)


def make_mqar(setting: Setting, rows: int, generator: torch.Generator) -> Rows:
    """Draw rows as Zoology does. A query's distance from the pairs follows a power law."""
    pairs, half = setting.pairs, MQAR_WORDS // 2
    keys, values = (draw(rows, half, pairs, generator) for _ in range(2))
    places = (setting.length - 2 * pairs) // 2
    share = torch.arange(1, places + 1).double() ** (MQAR_POWER - 1)
    gaps = torch.multinomial(share.expand(rows, -1), pairs, generator=generator)
    queries = 2 * pairs + 2 * gaps
    tokens = torch.randint(MQAR_WORDS, (rows, setting.length), generator=generator)
    tokens[:, : 2 * pairs : 2], tokens[:, 1 : 2 * pairs : 2] = keys + half, values
    tokens.scatter_(1, queries, keys + half)
    return Rows(tokens, values, (2 * torch.arange(pairs) + 1).expand(rows, -1), queries)


TASKS = {"recall": make_rows, "mqar": make_mqar}


def training_rows(setting: Setting, generator: torch.Generator) -> Rows:
    """Draw a batch to learn from; of a 2 ** n-th part of the length, as many more rows."""
    if setting.task == "mqar":
        share = torch.tensor([float(rows) for *_, rows in MQAR_TRAINING])
        length, pairs, _ = MQAR_TRAINING[int(torch.multinomial(share, 1, generator=generator))]
        setting = replace(setting, length=length, pairs=pairs)
    if setting.halvings:
        part = 2 ** int(torch.randint(setting.halvings + 1, (), generator=generator))
        names = ("length", "pairs", "pairs_end")
        smaller = {name: getattr(setting, name) // part for name in names}
        setting = replace(setting, batch=setting.batch * part, halvings=0, **smaller)
    return TASKS[setting.task](setting, setting.batch, generator)


class Layer(nn.Module):
    """A pre-norm Transformer layer over ``MultiheadAttention``."""

    def __init__(self, kinds: tuple[Heads, ...], setting: Setting):
        super().__init__()
        width, names = setting.width, ("short_convolution", "copying_start")
        more = {name: getattr(setting, name) for name in names}
        self.attention = MultiheadAttention(width, HEADS, kinds=kinds, causal=True, **more)
        self.attention_norm = nn.LayerNorm(width)
        maps = nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width)
        self.feed_forward = nn.Sequential(nn.LayerNorm(width), *maps)

    def forward(self, x: Tensor) -> tuple[Tensor, list]:
        out, reports = self.attention(self.attention_norm(x))
        return (x := x + out) + self.feed_forward(x), reports


class Model(nn.Module):
    """Embeddings in fairseq's scale, two layers, a classifier or the embeddings again."""

    def __init__(self, setting: Setting):
        super().__init__()
        self.setting, width = setting, setting.width
        words, values, *_ = setting.sizes()
        self.embed = nn.Embedding(words, width)  # variance 1, as fairseq's
        self.tied = setting.task == "mqar"  # words and answers share their embeddings
        longest = max(setting.length, *(size for size, *_ in MQAR_TRAINING))
        has_positions = not (self.tied and setting.short_convolution)
        rate = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
        angle = torch.arange(longest).unsqueeze(-1) * rate
        positions = torch.cat([angle.sin(), angle.cos()], -1)
        self.register_buffer("positions", positions if has_positions else torch.zeros(1, width))
        spec, own = re.sub(r"\bnear\b", f"window({NEAR})", setting.kind), ("cluster", "num", "att")
        own = {name: value for name, value in vars(setting).items() if name.startswith(own)}
        how = {"option": "KIND", "num_layers": LAYERS, "num_heads": HEADS}
        kinds = parse_attention(spec, defaults=own, **how)
        self.layers = nn.ModuleList(Layer(of_layer, setting) for of_layer in kinds)
        self.norm = nn.LayerNorm(width)
        if not self.tied:
            self.classify = nn.Linear(width, values)

    def forward(self, tokens: Tensor, queries_at: Tensor) -> tuple[Tensor, list[list]]:
        """Logits of the values at the queries [B, Q, values], and each layer's reports."""
        x, reports = self.embed(tokens) + self.positions[: tokens.size(1)], []
        for layer in self.layers:
            x, of_layer = layer(x)
            reports.append(of_layer)
        x = self.norm(x.gather(1, queries_at.unsqueeze(-1).expand(-1, -1, x.size(-1))))
        if self.tied:  # embeddings have variance 1
            return x @ self.embed.weight.T / math.sqrt(x.size(-1)), reports
        return self.classify(x), reports

    @torch.no_grad()
    def state_size(self) -> int:
        """``state`` in the result: numbers that decoding keeps of a row of --length."""
        x = torch.zeros(1, self.setting.length, self.setting.width)
        pasts = [layer.attention.step(x)[1] for layer in self.layers]
        return sum(t.numel() for p in pasts for t in tensors(p) if t.is_floating_point())


def train(setting: Setting) -> dict:
    """One run: its accuracy and what its queries see."""
    torch.manual_seed(setting.seed)
    model, rows_drawn = Model(setting).train(), torch.Generator().manual_seed(setting.seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98))
    curve, begin = [], time.perf_counter()
    about = f"{setting.kind}, seed {setting.seed}"
    for step in (progress := tqdm(range(1, setting.steps + 1), desc=about, mininterval=1)):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, step / WARMUP)
        rows = training_rows(setting, rows_drawn)
        logits, reports = model(rows.tokens, rows.queries_at)
        total = loss = nn.functional.cross_entropy(logits.flatten(0, 1), rows.answers.flatten())
        if (found := summary({"decoder": sum(reports, [])})) is not None:
            both = found["clustering_loss"] + found["sorting_loss"]  # CF22 eq. 6 and 11
            total = loss + setting.loss_weight * both + found["routing_loss"]
        optimizer.zero_grad()
        total.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for layer, of_layer in zip(model.layers, reports, strict=True):
            layer.attention.observe(of_layer)
            layer.attention.commit()
        optimizer.step()
        if step % 500 == 0 or step == setting.steps:
            result = evaluate(model)
            curve.append([step, result["accuracy"]])
            progress.set_postfix(loss=f"{loss.item():.3f}", accuracy=f"{result['accuracy']:.3f}")
    return {**result, "curve": curve, "seconds": round(time.perf_counter() - begin)}


@torch.no_grad()
def evaluate(model: Model) -> dict:
    """Accuracy, cluster use, and the share of queries that see their pair, layer by layer."""
    setting, drawn = model.eval().setting, torch.Generator().manual_seed(TEST_SEED)
    rows = TASKS[setting.task](setting, TEST_ROWS, drawn)
    right, sizes, pairs = [], [], []
    for part in map(Rows, *(x.split(TEST_TOGETHER) for x in rows)):
        logits, reports = model(part.tokens, part.queries_at)
        right.append(logits.argmax(-1) == part.answers)
        found = (r.cluster_sizes for of_layer in reports for r in of_layer)
        sizes.append([size for size in found if size is not None])
        by_layer: dict[str, list[Tensor]] = {}
        for name, seen in tokens_seen(model, part.tokens, part.queries_at).items():
            by_layer.setdefault(name.rpartition(".routers.")[0], []).append(seen)
        pairs.append([pairs_seen(of_layer, part) for of_layer in by_layer.values()])
    model.train()
    own, other = torch.tensor(pairs).mean(0).T.tolist()
    use = [cluster_use(sum(of_layer)) for of_layer in zip(*sizes, strict=True)]
    return {
        "accuracy": torch.cat(right).float().mean().item(),
        "state": model.state_size(),
        "effective clusters": [u.effective.item() for u in use],
        "sees its pair": own,
        "sees another pair": other,
    }


def pairs_seen(seen_by_heads: list[Tensor], rows: Rows) -> tuple[float, float]:
    """Share of queries that see their pair, and of the others, by bool [B, G, N, N] of heads."""
    pairs, length = rows.answers.size(1), rows.tokens.size(1)
    seen = torch.cat([of.expand(len(rows.tokens), -1, -1, -1) for of in seen_by_heads], 1).any(1)
    seen = seen.gather(1, rows.queries_at.unsqueeze(-1).expand(-1, -1, length))
    at = rows.pairs_at.unsqueeze(1).expand(-1, pairs, -1)
    seen = seen.gather(-1, at).float()  # [B, Q, Q]
    own = seen.diagonal(dim1=1, dim2=2).mean()
    other = (seen.mean() * pairs - own) / (pairs - 1)
    return own.item(), other.item()


def main(arguments: Sequence[str]) -> int:
    parser = Parser(prog=NAME, description=__doc__)
    parser.add("kind KIND", "an attention spec")
    for field in fields(Setting)[1:]:
        name, kind = f"--{field.name.replace('_', '-')}", type(field.default)
        if kind is bool:
            parser.add(name, "default: off")
        else:
            kind = {int: whole_number, type(None): float}.get(kind, kind)
            parser.add(f"{name} X", "", type=kind, default=field.default)
    parser.add("--json FILE", "also write the result here")
    options = vars(parser.parse_args(arguments))
    path = options.pop("json")
    try:
        result = train(Setting(**options))
    except ValueError as error:  # what attention refuses
        raise UserError(str(error)) from None
    if path is not None:
        write_aside(path, json.dumps(result) + "\n")
    print(f"accuracy {result['accuracy']:.3f} after {options['steps']} updates")
    return 0


if __name__ == "__main__":
    sys.exit(program(NAME, main, sys.argv[1:]))
