"""ClusterFormer's measurements of time and memory (Wang et al., ACL 2022), run again.

    python -m scripts.benchmarks.cf22 fig3 table4 --out efficiency
    python -m scripts.benchmarks.cf22 --quick

fig3    time of training and inference, N up to 2,000, batch 20       (section 4.6, figure 3)
fig4    memory of training, the same runs                             (section 4.6, figure 4)
table4  time and memory for k = 5 to 500 clusters, N = 1,500, batch 64    (section 4.4)
table7  time and memory, N up to 55,000, batch 2                      (appendix E)

A model is an encoder of 2 layers, 300 wide, and a classifier of 20 classes over the mean. The
paper gives these sizes for table 4 alone. It gives no number of heads (6 here) and no inner width
(1,200 here), and sqrt(N) clusters for table 7 alone, which figures 3 and 4 take here too. In its
table 7, memory grows by about 33 N x N matrices per sentence: 2 layers of 6 heads that keep 2 to 3
each.

transformer    PyTorch's attention with its N x N matrix, as in the paper's days
sdpa           PyTorch's attention today, with the backend it chooses; the paper does not have it
clusterformer  this project's ``neural`` with the chunk rule and both losses; every layer has its
               own centroids
reformer, routing    from PyPI, set to the 2 N / k keys that a query of clusterformer sees

A time is of one step: forward, and in training backward, without an optimizer. It is a median of
steps that the models of one size take in turns. The paper's times are of 1,000 steps or of a whole
training, so only the ratio to the Transformer can be compared; both ratios are printed. Memory is
the peak beyond the model and its input, on a CPU in a process of its own for each model. The
paper's memory is all that its GPU held.

Finished groups of rows stay in OUT/efficiency.json, and are not measured again unless --force. A
model that does not fit here has a row with what it would need. Models are first checked on a short
text; a model with wrong results is not timed, and the exit status is 1.
"""

import json
import math
import statistics
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fairseq_clusterformer.cli.common import Parser
from fairseq_clusterformer.errors import UserError, bad_option
from scripts.benchmarks import common
from scripts.benchmarks.check import check
from scripts.benchmarks.contestants import Setting, build
from scripts.experiments.provenance import provenance

LAYERS, HEADS, WIDTH, FFN, CLASSES = 2, 6, 50, 1200, 20
LOSS_WEIGHT = 0.1
# The paper's names, and those of scripts/benchmarks/contestants.py.
MODELS = {
    "transformer": "dense-math",
    "sdpa": "dense",
    "clusterformer": "neural+losses",
    "reformer": "reformer",
    "routing": "routing",
}
CHECKED_LENGTH = 192
COLUMNS = {
    "model": "",
    "N": "",
    "k": "",
    "training ms": ".0f",
    "spread": ".0%",
    "inference ms": ".0f",
    "memory MiB": ".0f",
    "training / transformer": ".2f",
    "paper training / transformer": ".2f",
    "memory / transformer": ".2f",
    "paper memory / transformer": ".2f",
}
TIME, MEMORY = "training ms", "memory MiB"
#: experiment: its rows, the horizontal axis, and the columns to draw
PICTURES = {
    "fig3": ("figures", ("N", "tokens"), (TIME, "inference ms")),
    "fig4": ("figures", ("N", "tokens"), (MEMORY,)),
    "table4": ("table4", ("k", "clusters"), (TIME, MEMORY)),
    "table7": ("table7", ("N", "tokens"), (TIME, MEMORY)),
}

# The paper's seconds and MiB. Of figures 3 and 4, section 4.6 gives the reductions at N = 2,000;
# in table 7, its Transformer ends at N = 7,500.
FIGURES = {
    2000: {
        "transformer": (1.0, 1.0),
        "clusterformer": (1 - 0.514, 1 - 0.538),
        "routing": (1 - 0.418, 1 - 0.608),
        "reformer": (1 - 0.144, 1 - 0.318),
    }
}
TABLE4 = {
    1: (263.5, 21268),  # the Transformer
    5: (197.9, 10980),
    10: (169.4, 9312),
    20: (153.6, 8542),
    30: (147.6, 8282),
    60: (150.4, 8072),
    100: (151.7, 7920),
    300: (170.0, 7830),
    500: (194.4, 8444),
}
_TABLE7_MODELS = ("transformer", "reformer", "routing", "clusterformer")
_TABLE7 = {
    2500: ((46.5, 3271), (30.7, 2699), (24.8, 2129), (30.2, 2257)),
    5000: ((127.6, 7663), (51.2, 3807), (38.5, 2467), (44.8, 2689)),
    7500: ((260.9, 15519), (72.3, 4795), (58.5, 2841), (60.4, 3165)),
}
TABLE7 = {n: dict(zip(_TABLE7_MODELS, row, strict=True)) for n, row in _TABLE7.items()}
TABLE7_LENGTHS = (*TABLE7, 10000, 15000, 25000, 35000, 45000, 55000)


class Entry(NamedTuple):
    """A model, and its number of clusters."""

    model: str
    clusters: int


class Group(NamedTuple):
    """Models that take turns: they share the experiment, the length and the batch."""

    experiment: str
    length: int
    batch: int
    entries: tuple[Entry, ...]


class Layer(nn.Module):
    """Attention and feed-forward, each followed by a layer norm, as in Vaswani et al."""

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
    """A query sees 2 N / k keys in every model that is not dense."""
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


def shortened(setting: Setting) -> Setting:
    """A short text of about the same proportions."""
    length = min(CHECKED_LENGTH, setting.length)
    clusters = min(setting.clusters, length // 4)
    window = 2 * -(-length // clusters)
    return replace(setting, length=length, clusters=clusters, window=window, batch=1)


def measure_memory(model: str, setting: Setting) -> float:
    """MiB beyond the model and its input, at the peak of a training step."""
    steps = Steps(model, setting)
    Steps(model, shortened(setting)).training()  # libraries allocate what they need once
    before = common.memory_before(setting.device)
    steps.training()
    return common.peak_memory(setting.device) - before


def check_model(model: str, setting: Setting) -> None:
    """Raises CheckFailed or Unavailable."""
    short = shortened(setting)
    torch.manual_seed(0)
    shape = (1, short.length, HEADS, WIDTH)
    q, k, v = (
        torch.randn(shape, device=short.device).transpose(1, 2).requires_grad_() for _ in range(3)
    )
    x = torch.randn(1, short.length, HEADS * WIDTH, device=short.device)
    check(build(MODELS[model], short), x, q, k, v)


def measure(group: Group, args: Namespace) -> list[dict]:
    """Rows of a group; a model that cannot run has its reason in its row."""
    rows, ready = [], {}
    for entry in group.entries:
        row = {"model": entry.model, "N": group.length, "k": entry.clusters}
        rows.append(row)
        setting = setting_of(group, entry, args.device, args.impl)
        try:
            check_model(entry.model, setting)
            steps = Steps(entry.model, setting)
            row[MEMORY] = common.measured_memory(
                measure_memory, args.device, model=entry.model, setting=setting
            )
            if row[MEMORY] * common.MIB > common.available_memory(args.device):
                raise common.Unavailable(f"would need {row[MEMORY] / 1024:.3g} GiB")
            steps.training()
            steps.inference()
            ready[entry] = steps
        except (common.Unavailable, torch.OutOfMemoryError) as error:
            row["not run"] = str(error).splitlines()[0] if str(error) else "out of memory"
        except common.CheckFailed as error:
            row["wrong"] = str(error)
    for name in ("training", "inference"):
        runs = {entry: getattr(steps, name) for entry, steps in ready.items()}
        for entry, times in common.interleaved(runs, args.repeats, args.device).items():
            row = rows[group.entries.index(entry)]
            row[f"{name} ms"] = statistics.median(times) * 1e3
            row[f"{name} seconds of each"] = times
    return [add_ratios(row, rows, group.experiment) for row in rows]


def add_ratios(row: dict, rows: list[dict], experiment: str) -> dict:
    """Add ratios to the Transformer, of our numbers and of the paper's."""
    row["paper training / transformer"], row["paper memory / transformer"] = paper(
        experiment, row["model"], row["N"], row["k"]
    )
    if "training ms" not in row:
        return row
    row["spread"] = common.spread(row["training seconds of each"])
    dense = next((r for r in rows if r["model"] == "transformer" and "training ms" in r), None)
    if dense is not None:
        for name in ("training", "inference"):
            times, others = (r[f"{name} seconds of each"] for r in (row, dense))
            row[f"{name} / transformer"] = common.median_ratio(times, others)
        row["memory / transformer"] = row["memory MiB"] / dense["memory MiB"]
    return row


def paper(experiment: str, model: str, length: int, clusters: int) -> tuple:
    """The paper's time and memory as ratios to its Transformer's; None where it has none."""
    if experiment == "table4":
        dense = TABLE4[1]
        found = TABLE4.get(clusters) if model in ("transformer", "clusterformer") else None
    else:
        row = (FIGURES if experiment == "figures" else TABLE7).get(length, {})
        dense, found = row.get("transformer"), row.get(model)
    return (None, None) if found is None else (found[0] / dense[0], found[1] / dense[1])


def groups(args: Namespace) -> list[Group]:
    """Groups to measure; figures 3 and 4 are one set of runs."""
    quick = args.quick
    found = []
    if {"fig3", "fig4"} & set(args.experiments):
        lengths = (128, 256) if quick else (250, 500, 1000, 1500, 2000)
        found += [all_models("figures", n, args.batch or (2 if quick else 20)) for n in lengths]
    if "table4" in args.experiments:
        length, batch = (192, 2) if quick else (1500, 64)
        counts = (5, 20, 60) if quick else tuple(TABLE4)[1:]
        entries = [Entry("transformer", 1), *(Entry("clusterformer", k) for k in counts)]
        found.append(Group("table4", length, args.batch or batch, tuple(entries)))
    if "table7" in args.experiments:
        lengths = (250, 500) if quick else TABLE7_LENGTHS
        found += [all_models("table7", n, args.batch or 2) for n in lengths]
    return [g for g in found if args.max_length is None or g.length <= args.max_length]


def all_models(experiment: str, length: int, batch: int) -> Group:
    clusters = math.isqrt(length)
    return Group(experiment, length, batch, tuple(Entry(model, clusters) for model in MODELS))


def load(path: Path) -> list[dict]:
    """Rows of finished groups.

    Raises:
        UserError: the file is something else.
    """
    if not path.exists():
        return []
    try:
        rows = json.loads(path.read_text())["rows"]
        _ = [row["group"] for row in rows]
    except (ValueError, KeyError, TypeError):
        allowed = "a folder whose efficiency.json, if there is one, was written by this command"
        raise bad_option("--out", path.parent, allowed, f"{path.name} is something else") from None
    return rows


def draw(out: Path, rows: list[dict], experiments: list[str], settings: str) -> None:
    """Draw the pictures of some experiments from their rows."""
    for name in experiments:
        experiment, x, columns = PICTURES[name]
        chosen = [r for r in rows if r["group"]["experiment"] == experiment and "spread" in r]
        if name == "table4":  # the Transformer has no clusters: its line is level
            dense, others = chosen[:1], chosen[1:]
            chosen = [{**row, "k": other["k"]} for row in dense for other in others] + others
        common.plot_rows(
            out / f"{name}.png",
            chosen,
            {column: column.replace(" ms", ", ms").replace(" MiB", ", MiB") for column in columns},
            x=x,
            series="model",
            title=f"One step of an encoder: {settings.partition(', no padding')[0]}",
        )


def make_parser() -> Parser:
    numbers = {
        "--max-length": (None, "leave out longer texts"),
        "--batch": (None, "instead of the paper's"),
    }
    parser = common.make_parser("scripts.benchmarks.cf22", __doc__, numbers)
    parser.add_argument("experiments", nargs="*", metavar="EXPERIMENT", help=", ".join(PICTURES))
    parser.add_argument("--quick", action="store_true", help="small sizes, to see it work")
    parser.add_argument("--force", action="store_true", help="measure finished groups again")
    parser.add_argument("--out", type=Path, default=Path("efficiency"), help="%(default)s")
    return parser


def main(argv: list[str] | None = None) -> int:
    parser = make_parser()
    args = parser.parse_args(argv)
    for name in args.experiments:
        if name not in PICTURES:
            parser.error(f"EXPERIMENT is {name}; allowed: {', '.join(PICTURES)}")
    args.experiments = args.experiments or list(PICTURES)
    common.settle_device(parser, args)
    path = args.out / "efficiency.json"
    try:
        done = load(path)
        args.out.mkdir(parents=True, exist_ok=True)
    except (UserError, OSError) as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 1
    settings = (
        f"{LAYERS} layers, D = {HEADS * WIDTH}, H = {HEADS}, ffn {FFN}, float32, "
        "no padding, no dropout, one step"
    )
    here = provenance("", threads=torch.get_num_threads(), device=args.device)
    shown = []
    print(common.table_head(COLUMNS))
    for group in groups(args):
        key = {
            "experiment": group.experiment,
            "N": group.length,
            "batch": group.batch,
            "models": [[entry.model, entry.clusters] for entry in group.entries],
            "repeats": args.repeats,
            "machine": ", ".join(
                here[k] for k in ("machine", "cpu", "gpu", "torch") if here.get(k)
            ),
            "impl": args.impl,
        }
        rows = [row for row in done if row["group"] == key]
        if args.force or not rows:
            rows = [row | {"group": key} for row in measure(group, args)]
            done = [row for row in done if row["group"] != key] + rows
            common.write_record(path, parser.prog, args.device, settings, done)
        print(f"{group.experiment}, batch {group.batch}:")
        for row in rows:
            print(common.table_row(row, COLUMNS), flush=True)
        shown += rows
    draw(args.out, shown, args.experiments, settings)
    return 1 if any("wrong" in row for row in shown) else 0


if __name__ == "__main__":
    sys.exit(main())
