"""Tokens per second and peak memory of whole language models, trained by fairseq's own trainer.

    python -m scripts.benchmarks.training --lengths 1024 4096 --json RESULT.json
    python -m scripts.benchmarks.training --attention window window+gated --dtype bfloat16

Compares ``clusterformer_lm`` of each attention with fairseq's ``transformer_lm`` of the same
sizes, on random tokens. Every run is a process of its own, whose peak memory is reported: on CUDA
that of tensors. The models take turns. Reported are medians, and the median of the ratios of
neighbours. Each run makes one update to warm up, and then the updates that count. On a CPU,
seconds are the processor's, of all threads: other programs hardly change them.

What is timed is right as far as the tests say; a loss that is not finite is not timed.
"""

import logging
import math
import statistics
import sys
import tempfile
from argparse import Namespace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from fairseq import options, tasks, utils
from fairseq.data import Dictionary, indexed_dataset
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.logging import metrics
from fairseq.trainer import Trainer
from omegaconf import DictConfig, open_dict

import fairseq_clusterformer.plugin  # noqa: F401
from fairseq_clusterformer.attention import MultiheadAttention, parse_attention
from fairseq_clusterformer.cli.common import Parser
from fairseq_clusterformer.compat import silence_known_warnings
from scripts.benchmarks import common

DENSE = "transformer_lm"  # the other models have the name of their attention
COLUMNS = common.columns(
    "model | N | tokens per second: .0f | spread: .0% | peak memory MiB: .0f | "
    "times as fast as dense: .2f | share of dense memory: .2f | loss: .3f"
)
#: columns that are ratios, of what
RATIOS = {"times as fast as dense": "tokens per second"}
RATIOS["share of dense memory"] = "peak memory MiB"


def random_data(folder: Path, tokens: int, vocabulary: int) -> None:
    """A folder as ``fairseq-preprocess`` makes it, of random tokens."""
    dictionary = Dictionary()
    for number in range(vocabulary - len(dictionary)):
        dictionary.add_symbol(str(number))
    dictionary.save(str(folder / "dict.txt"))
    how = {"impl": "mmap", "vocab_size": vocabulary}
    builder = indexed_dataset.make_builder(str(folder / "train.bin"), **how)
    generator, first = torch.Generator().manual_seed(1), dictionary.nspecial
    builder.add_item(torch.randint(first, vocabulary, (tokens,), generator=generator).int())
    builder.finalize(str(folder / "train.idx"))


def configuration(model: str, data: Path, length: int, args: Namespace) -> DictConfig:
    """fairseq's configuration of a run."""
    dim, arch = args.embed_dim, DENSE if model == DENSE else "clusterformer_lm"
    line = (
        f"--task language_modeling --arch {arch} --decoder-layers {args.layers}"
        f" --decoder-embed-dim {dim} --decoder-input-dim {dim} --decoder-output-dim {dim}"
        f" --decoder-ffn-embed-dim {args.ffn} --decoder-attention-heads {args.heads}"
        " --share-decoder-input-output-embed --dropout 0 --sample-break-mode none"
        f" --tokens-per-sample {length} --batch-size {args.batch} --required-batch-size-multiple 1"
        " --optimizer adam --lr 1e-4 --clip-norm 1 --seed 1 --num-workers 0 --no-save"
        " --distributed-world-size 1 --disable-validation"
    )
    line += " --cpu" if args.device == "cpu" else ""
    if model != DENSE:
        clusters = args.clusters or max(1, math.isqrt(length))
        line += f" --criterion clusterformer_cross_entropy --attention {model}"
        line += f" --attention-window {args.window} --num-clusters {clusters}"
    words = [str(data), *line.split()]
    given = options.parse_args_and_arch(options.get_training_parser(), words)
    cfg = convert_namespace_to_omegaconf(given)
    with open_dict(cfg):  # its command line cannot switch bf16 on without a library for TPUs
        cfg.common.fp16 = args.dtype == "float16"
        cfg.common.bf16 = args.dtype == "bfloat16"
    return cfg


def make_trainer(cfg: DictConfig, impl: str) -> Trainer:
    """Task, model, criterion and trainer, as ``fairseq-train`` makes them."""
    np.random.seed(cfg.common.seed)
    utils.set_torch_seed(cfg.common.seed)
    task = tasks.setup_task(cfg.task)
    model = task.build_model(cfg.model)
    for module in model.modules():
        if isinstance(module, MultiheadAttention):
            module.impl = impl
    return Trainer(cfg, task, model, task.build_criterion(cfg.criterion))


def train(model: str, data: Path, length: int, args: Namespace) -> dict:
    """One run: speed, peak memory, loss and gradient norm. Raises CheckFailed: the loss is not
    finite."""
    silence_known_warnings()
    for name in ("fairseq", "hydra"):
        logging.getLogger(name).setLevel(logging.WARNING)
    metrics.reset()
    trainer = make_trainer(configuration(model, data, length, args), args.impl)
    batches = trainer.get_train_iterator(epoch=1).next_epoch_itr(shuffle=False)
    trainer.begin_epoch(1)
    seconds, tokens = [], []
    for number, batch in zip(range(args.updates + 1), batches, strict=False):
        took = common.own_seconds(lambda batch=batch: trainer.train_step([batch]), args.device)
        if number > 0:
            seconds.append(took)
            tokens.append(batch["ntokens"])
    # in bits per token, averaged over the updates; and the last gradient's
    loss, norm = (metrics.get_meter("default", name) for name in ("loss", "gnorm"))
    if not math.isfinite(loss.avg):
        raise common.CheckFailed(f"{model} at N = {length}: the loss is {loss.avg}")
    found = {"tokens per second": sum(tokens) / sum(seconds), "loss": float(loss.avg)}
    found["peak memory MiB"] = common.peak_memory(args.device)
    return found | {"gradient norm": float(norm.val)}


def compare(data: Path, length: int, args: Namespace) -> list[dict]:
    """Rows of the table for one N; a model that cannot be trained says why."""
    rows = {model: {"model": model, "N": length} for model in (DENSE, *args.attention)}

    def run(model: str) -> dict | None:
        with common.reason_in(rows[model]):
            request = {"model": model, "data": data, "length": length, "args": args}
            return common.in_own_process(train, **request)
        return None

    runs = common.in_turns({model: partial(run, model) for model in rows}, args.repeats)
    dense = [of_run for of_run in runs[DENSE] if of_run]
    for model, row in rows.items():
        found = [of_run for of_run in runs[model] if of_run]
        if len(found) < args.repeats:
            continue
        row |= {name: statistics.median(run[name] for run in found) for name in found[0]}
        row["spread"] = common.spread([run["tokens per second"] for run in found])
        if len(dense) == args.repeats:
            for column, name in RATIOS.items():
                both = ([run[name] for run in one] for one in (found, dense))
                row[column] = common.median_ratio(*both)
    return list(rows.values())


def make_parser(module: str, description: str) -> Parser:
    """Options of benchmarks of whole models."""
    numbers = {
        "--lengths": ([1024, 2048, 4096, 8192], "tokens per sample"),
        "--batch": (1, "samples per update"),
        "--layers": (6, ""),
        "--embed-dim": (512, ""),
        "--heads": (8, ""),
        "--ffn": (2048, "inner width"),
        "--window": (128, ""),
        "--clusters": (None, "default: sqrt(N)"),
        "--vocabulary": (1000, "symbols"),
        "--updates": (3, "updates of a run that count"),
    }
    parser = common.make_parser(module, description, numbers)
    what = "one specification for each model"
    parser.add("--attention SPEC", what, nargs="+", default=["window+neural"])
    parser.add("--dtype", "", choices=list(common.DTYPES), default="float32")
    return parser


def settle(parser: Parser, args: Namespace) -> None:
    """Refuse values that would stop the first run."""
    common.settle_device(parser, args)
    if args.device == "cpu" and args.dtype == "float16":
        parser.error(f"--dtype is {args.dtype}; allowed on a CPU: float32, bfloat16")
    if args.embed_dim % args.heads:
        allowed = f"a divisor of --embed-dim, {args.embed_dim}"
        parser.error(f"--heads is {args.heads}; allowed: {allowed}")
    try:
        for spec in args.attention:
            parse_attention(spec, num_layers=args.layers, num_heads=args.heads)
    except ValueError as error:
        parser.error(str(error))


def sizes_of(args: Namespace) -> str:
    """The models' sizes, in words."""
    sizes = {"D": args.embed_dim, "H": args.heads, "V": args.vocabulary, "B": args.batch}
    sizes |= {"W": args.window, "K": args.clusters or "sqrt(N)"}
    shown = ", ".join(f"{letter} = {size}" for letter, size in sizes.items())
    return f"{args.layers} layers, ffn {args.ffn}, {shown}"


def main(argv: list[str] | None = None) -> int:
    parser = make_parser("scripts.benchmarks.training", __doc__)
    parser.add("--plot FILE", "also draw speed and memory here, as PNG")
    args = parser.parse_args(argv)
    settle(parser, args)
    sizes = sizes_of(args)
    settings = f"{sizes}, {args.dtype}, {args.impl}, {args.updates} updates per run"
    settings += f", medians of {args.repeats}"
    with tempfile.TemporaryDirectory() as temporary:
        data = Path(temporary)
        tokens = max(args.lengths) * args.batch * (args.updates + 2)
        random_data(data, tokens, args.vocabulary)
        draw = partial(plot, title=f"Training of language models: {sizes}")
        rows = (row for length in args.lengths for row in compare(data, length, args))
        return common.report(parser, args, COLUMNS, settings, rows, plot=draw)


def plot(path: Path, rows: list[dict], title: str) -> None:
    """Draw speed and memory."""
    columns = {"tokens per second": "tokens per second", "peak memory MiB": "peak memory, MiB"}
    x = ("N", "tokens per sample")
    common.plot_rows(path, rows, columns, x=x, series="model", title=title)


if __name__ == "__main__":
    sys.exit(main())
