#!/usr/bin/env python3
"""ClusterFormer's measurements of time and memory (Wang et al., ACL 2022), run again.

    python scripts/reproduce_efficiency.py fig3 table4 --out efficiency
    python scripts/reproduce_efficiency.py --quick

fig3    time of training and inference, N up to 2,000, batch 20       (section 4.6, figure 3)
fig4    memory of training, the same runs                             (section 4.6, figure 4)
table4  time and memory for k = 5 to 500 clusters, N = 1,500, batch 64    (section 4.4)
table7  time and memory, N up to 55,000, batch 2                      (appendix E)

A model is an encoder of 2 layers, 300 wide, and a classifier of 20 classes over the mean. The
paper names these sizes for table 4 alone; it names no heads (6 here) and no inner width (1,200
here), and sqrt(N) clusters for table 7 alone, which figures 3 and 4 take here too. Its table 7
grows by about 33 N x N matrices of a sentence, as 2 layers of 6 heads do that keep 2 to 3 each.

transformer    PyTorch's attention with its N x N matrix, as in the paper's days
sdpa           PyTorch's attention today, by the backend it chooses; the paper has none
clusterformer  this project's ``neural`` by the chunk rule, with both losses; every layer has its
               own centroids
reformer, routing    from PyPI, set to the 2 N / k keys that a query of clusterformer sees

A time is of one step (forward, in training also backward; no optimizer), a median of steps that
the models of one size take in turns; the paper's are of 1,000 steps or of a whole training, so
what can be compared is the ratio to the Transformer, and that is printed beside ours. Memory is
the peak beyond the model and its input, each model in a process of its own on a CPU; the paper's
is all that its GPU held.

Finished groups of rows stay in OUT/efficiency.json and are not measured again unless --force. A
model that does not fit here has a row that says what it would need. Models are checked on a short
text first (--quick does nothing else differently than smaller sizes): what computes wrong results
is not timed, and the exit status is 1.
"""

import json
import math
import statistics
import sys
from argparse import Namespace
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from fairseq_clusterformer.cli.common import Parser, whole_number
from fairseq_clusterformer.errors import UserError
from scripts.benchmarks.common import (
    MIB,
    CheckFailed,
    Unavailable,
    add_device_options,
    available_memory,
    in_own_process,
    interleaved,
    machine,
    markdown,
    median_ratio,
    peak_memory,
    plot_panels,
    settle_device,
    spread,
    write_record,
)
from scripts.benchmarks.contestants import Setting, build, check

LAYERS, HEADS, WIDTH, FFN, CLASSES = 2, 6, 50, 1200, 20
LOSS_WEIGHT = 0.1
# Contestants of attention_contestants.py by the paper's names.
MODELS = {
    "transformer": "dense-math",
    "sdpa": "dense",
    "clusterformer": "neural+losses",
    "reformer": "reformer",
    "routing": "routing",
}
CHECKED_LENGTH = 192
COLUMNS = ("model", "N", "k", "training ms", "spread", "inference ms", "memory MiB")
COLUMNS += ("training / transformer", "paper", "memory / transformer", "paper")

# What the paper prints. Figures: the reductions that section 4.6 names at N = 2,000.
PAPER_2000 = {
    "transformer": (1.0, 1.0),
    "clusterformer": (1 - 0.514, 1 - 0.538),
    "routing": (1 - 0.418, 1 - 0.608),
    "reformer": (1 - 0.144, 1 - 0.318),
}
TABLE4_TRANSFORMER = (263.5, 21268)  # seconds, MiB
TABLE4 = {
    5: (197.9, 10980),
    10: (169.4, 9312),
    20: (153.6, 8542),
    30: (147.6, 8282),
    60: (150.4, 8072),
    100: (151.7, 7920),
    300: (170.0, 7830),
    500: (194.4, 8444),
}
TABLE7_LENGTHS = (2500, 5000, 7500, 10000, 15000, 25000, 35000, 45000, 55000)
TABLE7 = {
    "transformer": ((46.5, 127.6, 260.9), (3271, 7663, 15519)),
    "reformer": (
        (30.7, 51.2, 72.3, 89.0, 135.0, 252.1),
        (2699, 3807, 4795, 6067, 9515, 15867),
    ),
    "routing": (
        (24.8, 38.5, 58.5, 69.8, 114.9, 207.2, 343.4, 490.1, 684.6),
        (2129, 2467, 2841, 3189, 3779, 5477, 7451, 9117, 11397),
    ),
    "clusterformer": (
        (30.2, 44.8, 60.4, 77.2, 115.4, 197.1, 277.2, 375.6, 461.3),
        (2257, 2689, 3165, 3623, 4435, 6839, 9647, 12553, 15695),
    ),
}


@dataclass(frozen=True)
class Entry:
    """One model of a group that is measured side by side."""

    model: str
    clusters: int


@dataclass(frozen=True)
class Group:
    """Models of one experiment that share length and batch."""

    experiment: str
    length: int
    batch: int
    entries: tuple[Entry, ...]


class Layer(nn.Module):
    """Attention and feed-forward, each before a layer norm, as Vaswani et al. have it."""

    def __init__(self, attention: nn.Module):
        super().__init__()
        dim = HEADS * WIDTH
        self.attention = attention
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.ffn = nn.Sequential(nn.Linear(dim, FFN), nn.ReLU(), nn.Linear(FFN, dim))
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2))

    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """x [B, N, D] to the same, and the losses of the attention."""
        q, k, v = (
            t.unflatten(-1, (HEADS, WIDTH)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1)
        )
        out, losses = self.attention(x, q, k, v)
        x = self.norms[0](x + self.out(out.transpose(1, 2).flatten(2)))
        return self.norms[1](x + self.ffn(x)), losses


class Classifier(nn.Module):
    """An encoder over embedded tokens [B, N, D], and classes of their mean."""

    def __init__(self, model: str, setting: Setting):
        super().__init__()
        self.layers = nn.ModuleList(
            Layer(build(MODELS[model], setting, LAYERS)) for _ in range(LAYERS)
        )
        self.classes = nn.Linear(HEADS * WIDTH, CLASSES)
        self.to(setting.device)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [B, classes], and the weighted loss of the layers."""
        total = x.new_zeros(())
        for layer in self.layers:
            x, losses = layer(x)
            total = total + LOSS_WEIGHT / LAYERS * sum(losses, start=x.new_zeros(()))
        return self.classes(x.mean(1)), total


class Steps:
    """A model with a batch, and its training and inference steps."""

    def __init__(self, model: str, setting: Setting):
        torch.manual_seed(0)
        self.x = torch.randn(setting.batch, setting.length, HEADS * WIDTH, device=setting.device)
        self.target = torch.arange(setting.batch, device=setting.device) % CLASSES
        self.model = Classifier(model, setting)

    def training(self) -> None:
        self.model.train()
        logits, loss = self.model(self.x)
        (nn.functional.cross_entropy(logits, self.target) + loss).backward()
        self.model.zero_grad(set_to_none=True)
        for layer in self.model.layers:
            layer.attention.after_backward()

    @torch.no_grad()
    def inference(self) -> None:
        self.model.eval()
        self.model(self.x)


def setting_of(group: Group, entry: Entry, device: str, impl: str) -> Setting:
    """What a query sees is 2 N / k, for every model that is not dense."""
    return Setting(
        length=group.length,
        batch=group.batch,
        heads=HEADS,
        width=WIDTH,
        window=2 * -(-group.length // entry.clusters),
        clusters=entry.clusters,
        device=device,
        impl=impl,
        causal=False,
    )


def measure_memory(model: str, setting: Setting) -> float:
    """MiB beyond the model and its input, at the peak of a training step."""
    steps = Steps(model, setting)
    short = min(CHECKED_LENGTH, setting.length)
    small = replace(setting, length=short, batch=1, window=min(setting.window, short))
    Steps(model, small).training()  # libraries allocate what they need once
    if setting.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated() / MIB
    else:
        before = peak_memory(setting.device)
    steps.training()
    return peak_memory(setting.device) - before


def check_model(model: str, setting: Setting) -> None:
    """Raises CheckFailed or Unavailable; on a short text of the same proportions."""
    short = replace(
        setting,
        length=min(CHECKED_LENGTH, setting.length),
        clusters=min(setting.clusters, CHECKED_LENGTH // 4),
        batch=1,
    )
    short = replace(short, window=2 * -(-short.length // short.clusters))
    torch.manual_seed(0)
    shape = (1, short.length, HEADS, WIDTH)
    q, k, v = (
        torch.randn(shape, device=short.device).transpose(1, 2).requires_grad_() for _ in range(3)
    )
    x = torch.randn(1, short.length, HEADS * WIDTH, device=short.device)
    check(build(MODELS[model], short), x, q, k, v)


def measure(group: Group, args: Namespace) -> list[dict]:
    """Rows of a group: what can be run, in turns; the rest with the reason."""
    rows, ready = [], {}
    for entry in group.entries:
        row = {"model": entry.model, "N": group.length, "k": entry.clusters}
        rows.append(row)
        setting = setting_of(group, entry, args.device, args.impl)
        try:
            check_model(entry.model, setting)
            steps = Steps(entry.model, setting)
            if setting.device == "cuda":
                row["memory MiB"] = measure_memory(entry.model, setting)
            else:
                row["memory MiB"] = in_own_process(
                    measure_memory, model=entry.model, setting=setting
                )
            if row["memory MiB"] * MIB > available_memory(args.device):
                raise Unavailable(f"would need {row['memory MiB'] / 1024:.3g} GiB")
            steps.training()
            steps.inference()
            ready[entry] = steps
        except (Unavailable, torch.OutOfMemoryError) as error:
            row["not run"] = str(error).splitlines()[0] if str(error) else "out of memory"
        except CheckFailed as error:
            row["wrong"] = str(error)
    for name in ("training", "inference"):
        runs = {entry: getattr(steps, name) for entry, steps in ready.items()}
        for entry, times in interleaved(runs, args.repeats, args.device).items():
            row = rows[group.entries.index(entry)]
            row[f"{name} ms"] = statistics.median(times) * 1e3
            row[f"{name} seconds of each"] = times
    return [add_ratios(row, rows, group.experiment) for row in rows]


def add_ratios(row: dict, rows: list[dict], experiment: str) -> dict:
    """Ours to the Transformer's, and the paper's own ratios."""
    row["paper training / transformer"], row["paper memory / transformer"] = paper(
        experiment, row["model"], row["N"], row["k"]
    )
    if "training ms" not in row:
        return row
    row["spread"] = spread(row["training seconds of each"])
    dense = next((r for r in rows if r["model"] == "transformer" and "training ms" in r), None)
    if dense is not None:
        for name in ("training", "inference"):
            times, others = (r[f"{name} seconds of each"] for r in (row, dense))
            row[f"{name} / transformer"] = median_ratio(times, others)
        row["memory / transformer"] = row["memory MiB"] / dense["memory MiB"]
    return row


def paper(experiment: str, model: str, length: int, clusters: int) -> tuple:
    """The paper's time and memory as ratios to its Transformer's; None where it has none."""
    if experiment == "figures":
        return PAPER_2000.get(model, (None, None)) if length == 2000 else (None, None)
    if experiment == "table4":
        found, dense = TABLE4.get(clusters), TABLE4_TRANSFORMER
        if model == "transformer":
            found = dense
        if model not in ("transformer", "clusterformer") or found is None:
            return None, None
        return found[0] / dense[0], found[1] / dense[1]
    if length not in TABLE7_LENGTHS or model not in TABLE7:
        return None, None
    place = TABLE7_LENGTHS.index(length)
    columns = zip(TABLE7[model], TABLE7["transformer"], strict=True)
    return tuple(
        found[place] / dense[place] if place < min(len(found), len(dense)) else None
        for found, dense in columns
    )


def groups(args: Namespace) -> list[Group]:
    """What is to be measured; figures 3 and 4 are one set of runs."""
    quick = args.quick
    found = []
    if {"fig3", "fig4"} & set(args.experiments):
        lengths = (128, 256) if quick else (250, 500, 1000, 1500, 2000)
        found += [all_models("figures", n, args.batch or (2 if quick else 20)) for n in lengths]
    if "table4" in args.experiments:
        length = 192 if quick else 1500
        counts = (5, 20, 60) if quick else tuple(TABLE4)
        entries = [Entry("transformer", 1), *(Entry("clusterformer", k) for k in counts)]
        batch = args.batch or (2 if quick else 64)
        found.append(Group("table4", length, batch, tuple(entries)))
    if "table7" in args.experiments:
        lengths = (250, 500) if quick else TABLE7_LENGTHS
        found += [all_models("table7", n, args.batch or 2) for n in lengths]
    return [g for g in found if args.max_length is None or g.length <= args.max_length]


def all_models(experiment: str, length: int, batch: int) -> Group:
    clusters = math.isqrt(length)
    return Group(experiment, length, batch, tuple(Entry(model, clusters) for model in MODELS))


def load(path: Path, force: bool) -> list[dict]:
    """Finished groups; with ``force``, they are kept until they are measured again.

    Raises:
        UserError: something else is there.
    """
    if not path.exists():
        return []
    try:
        done = json.loads(path.read_text())["rows"]
        _ = [row["group"] for row in done]
    except (ValueError, KeyError, TypeError):
        if force:
            return []
        raise UserError(
            f"{path} holds something else than this script's rows; allowed: another --out, or "
            "--force to write over it"
        ) from None
    return done


def show(rows: list[dict]) -> None:
    formats = ("", "", "", ".0f", ".0%", ".0f", ".0f", ".2f", ".2f", ".2f", ".2f")
    keys = list(COLUMNS)
    keys[8], keys[10] = "paper training / transformer", "paper memory / transformer"
    for row in rows:
        reason = row.get("not run") or row.get("wrong")
        if reason is not None:
            what = "not run" if "not run" in row else "WRONG, not timed"
            print(markdown([row["model"], row["N"], row["k"], f"{what}: {reason}"]), flush=True)
            continue
        cells = [row.get(key) for key in keys]
        cells = [None if c is None else format(c, f) for c, f in zip(cells, formats, strict=True)]
        print(markdown(cells), flush=True)


def draw(out: Path, rows: list[dict], experiments: list[str]) -> None:
    panels = {
        "fig3": ("figures", [("training ms", "training, ms"), ("inference ms", "inference, ms")]),
        "fig4": ("figures", [("memory MiB", "memory, MiB")]),
        "table4": ("table4", [("training ms", "training, ms"), ("memory MiB", "memory, MiB")]),
        "table7": ("table7", [("training ms", "training, ms"), ("memory MiB", "memory, MiB")]),
    }
    for name in experiments:
        experiment, columns = panels[name]
        chosen = [r for r in rows if r["group"]["experiment"] == experiment and "spread" in r]
        x = ("k", "clusters") if experiment == "table4" else ("N", "tokens")
        if chosen:
            plot_panels(out / f"{name}.png", chosen, columns, x=x, series="model")


def make_parser() -> Parser:
    parser = Parser(prog="reproduce_efficiency.py", description=__doc__)
    names = ["fig3", "fig4", "table4", "table7"]
    parser.add_argument("experiments", nargs="*", metavar="EXPERIMENT", help=", ".join(names))
    parser.add_argument("--quick", action="store_true", help="small sizes, to see it work")
    parser.add_argument("--max-length", type=whole_number, help="leave out longer texts")
    parser.add_argument("--batch", type=whole_number, help="instead of the paper's")
    parser.add_argument("--repeats", type=whole_number, default=3)
    parser.add_argument("--force", action="store_true", help="measure what is there again")
    parser.add_argument("--out", type=Path, default=Path("efficiency"), help="%(default)s")
    add_device_options(parser)
    parser.set_defaults(names=names)
    return parser


def main(argv: list[str] | None = None) -> int:
    parser = make_parser()
    args = parser.parse_args(argv)
    for name in args.experiments:
        if name not in args.names:
            parser.error(f"EXPERIMENT is {name}; allowed: {', '.join(args.names)}")
    args.experiments = args.experiments or args.names
    settle_device(parser, args)
    path = args.out / "efficiency.json"
    try:
        args.out.mkdir(parents=True, exist_ok=True)
        done = load(path, args.force)
    except (UserError, OSError) as error:
        print(f"reproduce_efficiency.py: error: {error}", file=sys.stderr)
        return 1
    settings = (
        f"{LAYERS} layers, D = {HEADS * WIDTH}, H = {HEADS}, ffn {FFN}, float32, "
        "no padding, no dropout, one step"
    )
    shown = []
    print(markdown(COLUMNS) + "\n" + markdown(["---", *["---:"] * (len(COLUMNS) - 1)]))
    for group in groups(args):
        key = {
            "experiment": group.experiment,
            "N": group.length,
            "batch": group.batch,
            "models": [[entry.model, entry.clusters] for entry in group.entries],
            "repeats": args.repeats,
            "machine": machine(args.device),
            "impl": args.impl,
        }
        rows = [row for row in done if row["group"] == key]
        if args.force or not rows:
            rows = [row | {"group": key} for row in measure(group, args)]
            done = [row for row in done if row["group"] != key] + rows
            write_record(path, args.device, settings, done)
        print(f"{group.experiment}, batch {group.batch}:")
        show(rows)
        shown += rows
    draw(args.out, shown, args.experiments)
    return 1 if any("wrong" in row for row in shown) else 0


if __name__ == "__main__":
    sys.exit(main())
