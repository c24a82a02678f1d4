"""ClusterFormer's measurements of time and memory (Wang et al., ACL 2022), run again.

    python -m examples.efficiency.cf22 figures --json RESULT.json --plot RESULT.png
    python -m examples.efficiency.cf22 table7 --max-length 5000

figures    training, inference and memory, N up to 2,000, batch 20   (section 4.6, figures 3 and 4)
table4     training and memory for k = 5 to 500 clusters, N = 1,500, batch 64         (section 4.4)
table7     training and memory, N up to 55,000, batch 2                                (appendix E)

The paper gives no number of heads (6 here), no inner width (1,200 here), and sqrt(N) clusters for
table 7 alone, which figures 3 and 4 take here too. A query of every clustered model sees as many
keys. A time is of one step, a median of steps in turns, and memory is the peak beyond the model
and its input; so only ratios to the Transformer can be compared with the paper's.
"""

import math
import statistics
import sys
from argparse import Namespace
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from scripts.benchmarks import common
from scripts.benchmarks.attention import Contestant
from scripts.benchmarks.contestants import Setting, build

LAYERS, HEADS, WIDTH, FFN, CLASSES = 2, 6, 50, 1200, 20
LOSS_WEIGHT = 0.1
# The paper's names, and those of scripts/benchmarks/contestants.py; the paper has no sdpa.
MODELS = {"transformer": "dense-math", "sdpa": "dense", "clusterformer": "neural+losses"}
MODELS |= {"reformer": "reformer", "routing": "routing"}
CHECKED_LENGTH = 192
COLUMNS = common.columns(
    "model | N | k | training ms: .0f | spread: .0% | inference ms: .0f | "
    "memory MiB: .0f | training / transformer: .2f | memory / transformer: .2f"
)
TIME, INFERENCE, MEMORY = "training ms", "inference ms", "memory MiB"
LONG = (2500, 5000, 7500, 10000, 15000, 25000, 35000, 45000, 55000)
#: of each experiment lengths, batch, and in its picture the horizontal axis and the columns
EXPERIMENTS = {
    "figures": ((250, 500, 1000, 1500, 2000), 20, ("N", "tokens"), (TIME, INFERENCE, MEMORY)),
    "table4": ((1500,), 64, ("k", "clusters"), (TIME, MEMORY)),
    "table7": (LONG, 2, ("N", "tokens"), (TIME, MEMORY)),
}
CLUSTERS = (5, 10, 20, 30, 60, 100, 300, 500)  # of table 4


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
        qkv = self.qkv(x).unflatten(-1, (3, HEADS, WIDTH)).permute(2, 0, 3, 1, 4)
        out, losses = self.attention(x, *qkv)
        x = self.norms[0](x + self.out(out.transpose(1, 2).flatten(2)))
        return self.norms[1](x + self.ffn(x)), losses


class Classifier(nn.Module):
    """An encoder over embedded tokens, classes of their mean, and a batch to train it with."""

    def __init__(self, model: str, setting: Setting):
        super().__init__()
        torch.manual_seed(0)
        self.x = torch.randn(setting.batch, setting.length, HEADS * WIDTH, device=setting.device)
        self.target = torch.arange(setting.batch, device=setting.device) % CLASSES
        layers = (Layer(build(MODELS[model], setting)) for _ in range(LAYERS))
        self.layers = nn.ModuleList(layers)
        self.classes = nn.Linear(HEADS * WIDTH, CLASSES)
        self.to(setting.device)

    def forward(self) -> Tensor:
        """The batch's loss, with the weighted losses of the layers."""
        x, total = self.x, self.x.new_zeros(())
        for layer in self.layers:
            x, losses = layer(x)
            total = total + LOSS_WEIGHT / LAYERS * sum(losses, start=x.new_zeros(()))
        return total + nn.functional.cross_entropy(self.classes(x.mean(1)), self.target)

    def training_step(self) -> None:
        self.train()
        self().backward()
        self.zero_grad(set_to_none=True)
        for layer in self.layers:
            layer.attention.after_backward()

    @torch.no_grad()
    def inference_step(self) -> None:
        self.eval()
        self()


def settings_of(args: Namespace, length: int) -> list[tuple[str, Setting]]:
    """Models that take turns at one length. In the clustered ones, a query sees 2 N / k keys."""
    models = [(model, math.isqrt(length)) for model in MODELS]
    if args.experiment == "table4":
        models = [("transformer", 1), *(("clusterformer", clusters) for clusters in CLUSTERS)]
    shared = {"length": length, "batch": args.batch, "heads": HEADS, "width": WIDTH}
    shared |= {"device": args.device, "impl": args.impl, "causal": False, "layers": LAYERS}
    windows = {k: 2 * -(-length // k) for _, k in models}
    return [(model, Setting(**shared, window=windows[k], clusters=k)) for model, k in models]


def shortened(setting: Setting) -> Setting:
    length = min(CHECKED_LENGTH, setting.length)
    clusters = min(setting.clusters, length // 4)
    window = 2 * -(-length // clusters)
    return replace(setting, length=length, clusters=clusters, window=window, batch=1)


def measure_memory(model: str, setting: Setting) -> float:
    """MiB beyond the model and its input, at the peak of a training step."""
    classifier = Classifier(model, setting)
    Classifier(model, shortened(setting)).training_step()  # libraries allocate what they need once
    before = common.memory_before(setting.device)
    classifier.training_step()
    return common.peak_memory(setting.device) - before


def measure(args: Namespace, length: int) -> list[dict]:
    """Rows of one length, with ratios to the Transformer, or why a model cannot run."""
    rows, ready, ratio = [], {}, "/ transformer"
    for number, (model, setting) in enumerate(settings_of(args, length)):
        rows.append(row := {"model": model, "N": length, "k": setting.clusters})
        with common.reason_in(row):
            Contestant(MODELS[model], shortened(setting)).check()
            classifier = Classifier(model, setting)
            request = {"model": model, "setting": setting}
            row[MEMORY] = common.measured_memory(measure_memory, args.device, **request)
            common.require_memory(row[MEMORY] * common.MIB, args.device)
            classifier.training_step()
            classifier.inference_step()
            ready[number] = classifier
    for name in ("training", "inference"):
        runs = {number: getattr(model, f"{name}_step") for number, model in ready.items()}
        times = common.interleaved(runs, args.repeats, args.device)
        for number, own in times.items():
            row = rows[number]
            row |= {f"{name} ms": statistics.median(own) * 1e3, f"{name} seconds of each": own}
            if name == "training":
                row["spread"] = common.spread(own)
            if 0 in times:  # the Transformer ran
                row[f"{name} {ratio}"] = common.median_ratio(own, times[0])
                row[f"memory {ratio}"] = row[MEMORY] / rows[0][MEMORY]
    return rows


def plot(path: Path, rows: list[dict], experiment: str, title: str) -> None:
    *_, x, columns = EXPERIMENTS[experiment]
    if experiment == "table4":  # the Transformer has no clusters: its line is level
        dense, *others = rows
        rows = [{**dense, "k": other["k"]} for other in others] + others
    labels = {column: column.replace(" ms", ", ms").replace(" MiB", ", MiB") for column in columns}
    common.plot_rows(path, rows, labels, x=x, series="model", title=title)


def main(argv: list[str] | None = None) -> int:
    numbers = {"--max-length": (None, "leave out longer texts")}
    numbers["--batch"] = (None, "default: the paper's")
    parser = common.make_parser("examples.efficiency.cf22", __doc__, numbers)
    parser.add_argument("experiment", choices=list(EXPERIMENTS), metavar="EXPERIMENT")
    parser.add_argument("--plot", type=Path, help="also draw time and memory here, as PNG")
    args = parser.parse_args(argv)
    common.settle_device(parser, args)
    lengths, batch, *_ = EXPERIMENTS[args.experiment]
    args.batch = args.batch or batch
    sizes = f"{LAYERS} layers, D = {HEADS * WIDTH}, H = {HEADS}, ffn {FFN}, B = {args.batch}"
    settings = f"{sizes}, float32, {args.impl}, no padding, no dropout, medians of {args.repeats}"
    lengths = [n for n in lengths if args.max_length is None or n <= args.max_length]
    rows = (row for length in lengths for row in measure(args, length))
    title = f"One step of an encoder, not causal: {sizes}"
    draw = partial(plot, experiment=args.experiment, title=title)
    return common.report(parser, args, COLUMNS, settings, rows, plot=draw)


if __name__ == "__main__":
    sys.exit(main())
