#!/usr/bin/env python3
"""Tokens per second and peak memory of whole language models, trained by fairseq's own trainer.

    python scripts/benchmark_training.py --lengths 1024 4096 --json RESULT.json
    python scripts/benchmark_training.py --data DATA_BIN --attention window*2,window+neural

``clusterformer_lm`` beside fairseq's ``transformer_lm`` of the same sizes, on random tokens or on
a folder that fairseq-preprocess has made. Every run is a process of its own, so that its peak
memory is its own (all of it on a CPU, interpreter and libraries included; tensors on CUDA). Runs
alternate, dense, clustered, dense, ..., and what is reported is medians, and the median of the
ratios of neighbours. Each makes one update to warm up, and then those that count.

Before anything is timed, the clustered model's loss and gradient norm are compared with those of
the reference implementation of attention; where they differ, no speed is printed and the exit
status is 1.
"""

import logging
import math
import statistics
import sys
import tempfile
from argparse import Namespace
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
from fairseq_clusterformer.cli.common import Parser, whole_number
from fairseq_clusterformer.compat import silence_known_warnings
from scripts.benchmarks.common import (
    DTYPES,
    CheckFailed,
    Unavailable,
    add_device_options,
    in_own_process,
    markdown,
    median_ratio,
    peak_memory,
    plot_panels,
    seconds_of,
    settle_device,
    spread,
    write_record,
)

MODELS = ("transformer_lm", "clusterformer_lm")
CHECKPOINTED = ", checkpointed"  # after a model's name
CHECKED_TOKENS = 192
TOLERANCE = {"float32": 1e-4, "bfloat16": 3e-2, "float16": 1e-2}
COLUMNS = ("model", "N", "tokens per second", "spread", "peak memory MiB")
COLUMNS += ("times as fast as dense", "share of dense memory", "loss")


def random_data(folder: Path, tokens: int, vocabulary: int) -> None:
    """A folder as ``fairseq-preprocess`` makes it, of random tokens."""
    dictionary = Dictionary()
    for number in range(vocabulary - len(dictionary)):
        dictionary.add_symbol(str(number))
    dictionary.save(str(folder / "dict.txt"))
    builder = indexed_dataset.make_builder(
        str(folder / "train.bin"), impl="mmap", vocab_size=len(dictionary)
    )
    generator = torch.Generator().manual_seed(1)
    line = torch.randint(dictionary.nspecial, len(dictionary), (tokens,), generator=generator)
    builder.add_item(line.int())
    builder.finalize(str(folder / "train.idx"))


def configuration(model: str, data: Path, length: int, args: Namespace) -> DictConfig:
    """fairseq's configuration of a run."""
    checkpointed, model = model.endswith(CHECKPOINTED), model.removesuffix(CHECKPOINTED)
    words = [str(data), "--task", "language_modeling", "--arch", model]
    sizes = {
        "layers": args.layers,
        "embed-dim": args.embed_dim,
        "input-dim": args.embed_dim,
        "output-dim": args.embed_dim,
        "ffn-embed-dim": args.ffn,
        "attention-heads": args.heads,
    }
    for name, value in sizes.items():
        words += [f"--decoder-{name}", str(value)]
    words += ["--share-decoder-input-output-embed", "--dropout", "0", "--seed", "1"]
    words += ["--tokens-per-sample", str(length), "--sample-break-mode", "none"]
    words += ["--batch-size", str(args.batch), "--required-batch-size-multiple", "1"]
    words += ["--optimizer", "adam", "--lr", "1e-4", "--clip-norm", "1", "--num-workers", "0"]
    words += ["--distributed-world-size", "1", "--disable-validation", "--no-save"]
    if args.device == "cpu":
        words.append("--cpu")
    if checkpointed:
        words.append("--checkpoint-activations")
    if model == "clusterformer_lm":
        clusters = args.clusters or max(1, math.isqrt(length))
        words += ["--attention", args.attention, "--num-clusters", str(clusters)]
        words += ["--attention-window", str(args.window)]
        words += ["--criterion", "clusterformer_cross_entropy"]
    else:
        words += ["--criterion", "cross_entropy"]
    parser = options.get_training_parser()
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, words))
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
    """One run: seconds of each update that counts, its tokens, the last loss, peak memory.

    Raises:
        CheckFailed: the loss is not finite.
        Unavailable: the data hold too few tokens.
    """
    silence_known_warnings()
    for name in ("fairseq", "hydra"):
        logging.getLogger(name).setLevel(logging.WARNING)
    metrics.reset()
    trainer = make_trainer(configuration(model, data, length, args), args.impl)
    epoch = trainer.get_train_iterator(epoch=1)
    batches = epoch.next_epoch_itr(shuffle=False)
    if len(batches) < args.updates + 1:
        raise Unavailable(
            f"{data} holds {len(batches)} batches of {args.batch} x {length} tokens, and "
            f"{args.updates + 1} are needed"
        )
    trainer.begin_epoch(1)
    seconds, tokens = [], []
    for number, batch in zip(range(args.updates + 1), batches, strict=False):
        took = seconds_of(lambda batch=batch: trainer.train_step([batch]), args.device)
        if number > 0:
            seconds.append(took)
            tokens.append(batch["ntokens"])
        elif args.device == "cuda":  # tuning kernels takes memory of its own
            torch.cuda.reset_peak_memory_stats()
    loss, gradient_norm = last_logged()
    if not math.isfinite(loss):
        raise CheckFailed(f"{model} at N = {length}: the loss is {loss}")
    return {
        "tokens per second": sum(tokens) / sum(seconds),
        "peak memory MiB": peak_memory(args.device),
        "loss": loss,
        "gradient norm": gradient_norm,
    }


def last_logged() -> tuple[float, float]:
    """Loss in bits a token, averaged over the updates, and the last gradient norm."""
    loss, norm = (metrics.get_meter("default", name) for name in ("loss", "gnorm"))
    return float(loss.avg), float(norm.val)


def check(data: Path, args: Namespace) -> None:
    """Compare two updates of the clustered model with those of the reference implementation.

    Raises:
        CheckFailed: saying what differs.
    """
    small = Namespace(**{**vars(args), "updates": 1, "batch": 1})
    results = []
    for impl in ("reference", args.impl):
        small.impl = impl
        results.append(
            in_own_process(
                train, model="clusterformer_lm", data=data, length=CHECKED_TOKENS, args=small
            )
        )
    for name in ("loss", "gradient norm"):
        reference, found = (result[name] for result in results)
        if not abs(found - reference) <= TOLERANCE[args.dtype] * abs(reference):
            raise CheckFailed(
                f"the {name} is {found} by {args.impl}, and {reference} by the reference: "
                "nothing is timed"
            )


def compare(data: Path, length: int, args: Namespace) -> list[dict]:
    """Rows of the table for one N; a model that cannot be trained says why."""
    models = MODELS
    if args.checkpointed:
        models += tuple(model + CHECKPOINTED for model in MODELS)
    runs: dict[str, list[dict]] = {model: [] for model in models}
    reasons: dict[str, str] = {}
    for _ in range(args.repeats):
        for model in models:
            if model in reasons:
                continue
            try:
                request = {"model": model, "data": data, "length": length, "args": args}
                runs[model].append(in_own_process(train, **request))
            except Unavailable as error:
                reasons[model] = str(error)
    rows = []
    for model in models:
        row: dict = {"model": model, "N": length}
        if model in reasons:
            rows.append(row | {"not run": reasons[model]})
            continue
        row |= {
            name: statistics.median(run[name] for run in runs[model]) for name in runs[model][0]
        }
        row["spread"] = spread([run["tokens per second"] for run in runs[model]])
        if MODELS[0] not in reasons:
            for column, name in (
                ("times as fast as dense", "tokens per second"),
                ("share of dense memory", "peak memory MiB"),
            ):
                found, dense = ([run[name] for run in runs[m]] for m in (model, MODELS[0]))
                row[column] = median_ratio(found, dense)
        rows.append(row)
    return rows


def shown(row: dict) -> str:
    if "not run" in row:
        return markdown([row["model"], row["N"], f"not run: {row['not run']}"])
    formats = ("", "", ".0f", ".0%", ".0f", ".2f", ".2f", ".3f")
    values = (row.get(column) for column in COLUMNS)
    return markdown(
        [None if v is None else format(v, spec) for v, spec in zip(values, formats, strict=True)]
    )


def make_parser() -> Parser:
    parser = Parser(prog="benchmark_training.py", description=__doc__)
    parser.add_argument(
        "--lengths",
        nargs="+",
        type=whole_number,
        default=[1024, 2048, 4096, 8192],
        help="tokens per sample",
    )
    parser.add_argument("--batch", type=whole_number, default=1, help="samples of an update")
    parser.add_argument("--layers", type=whole_number, default=6)
    parser.add_argument("--embed-dim", type=whole_number, default=512)
    parser.add_argument("--heads", type=whole_number, default=8)
    parser.add_argument("--ffn", type=whole_number, default=2048)
    parser.add_argument("--attention", default="window+neural", help="default: %(default)s")
    parser.add_argument("--window", type=whole_number, default=128, help="default: %(default)s")
    parser.add_argument("--clusters", type=whole_number, help="default: sqrt(N)")
    parser.add_argument(
        "--checkpointed",
        action="store_true",
        help="also train both models with --checkpoint-activations",
    )
    parser.add_argument("--updates", type=whole_number, default=3, help="that count, of a run")
    parser.add_argument("--repeats", type=whole_number, default=3, help="runs of each model")
    parser.add_argument("--dtype", choices=list(DTYPES), default="float32")
    for dtype, flag in (("float16", "--fp16"), ("bfloat16", "--bf16")):
        parser.add_argument(
            flag, dest="dtype", action="store_const", const=dtype, help=f"--dtype {dtype}"
        )
    parser.add_argument("--data", type=Path, help="folder of fairseq; default: random tokens")
    parser.add_argument("--vocabulary", type=whole_number, default=1000, help="of random tokens")
    add_device_options(parser)
    parser.add_argument("--json", type=Path, help="also write the rows here")
    parser.add_argument("--plot", type=Path, help="also draw speed and memory here, as PNG")
    return parser


def settle(parser: Parser, args: Namespace) -> None:
    """Refuse values that would stop the first run."""
    settle_device(parser, args)
    if args.device == "cpu" and args.dtype != "float32":
        parser.error(f"--dtype is {args.dtype}; allowed on a CPU: float32")
    if args.embed_dim % args.heads:
        parser.error(
            f"--heads is {args.heads}; allowed: what divides --embed-dim {args.embed_dim}"
        )
    if args.data is not None and not (args.data / "dict.txt").is_file():
        parser.error(f"--data is {args.data}; allowed: a folder of fairseq, with a dict.txt")
    try:
        parse_attention(args.attention, num_layers=args.layers, num_heads=args.heads)
    except ValueError as error:
        parser.error(str(error))


def main(argv: list[str] | None = None) -> int:
    parser = make_parser()
    args = parser.parse_args(argv)
    settle(parser, args)
    settings = (
        f"{args.layers} layers, D = {args.embed_dim}, H = {args.heads}, ffn {args.ffn}, "
        f"B = {args.batch}, {args.attention}, W = {args.window}, K = {args.clusters or 'sqrt(N)'}"
        f", {args.dtype}, {args.impl}, {args.updates} updates a run, medians of {args.repeats}"
    )
    rows: list[dict] = []
    with tempfile.TemporaryDirectory() as temporary:
        data = args.data
        if data is None:
            data = Path(temporary)
            most = max(*args.lengths, CHECKED_TOKENS)
            random_data(data, most * args.batch * (args.updates + 2), args.vocabulary)
        try:
            check(data, args)
            print(markdown(COLUMNS) + "\n" + markdown(["---", *["---:"] * (len(COLUMNS) - 1)]))
            for length in args.lengths:
                for row in compare(data, length, args):
                    print(shown(row), flush=True)
                    rows.append(row)
                write_record(args.json, args.device, settings, rows)
        except (CheckFailed, Unavailable) as error:
            print(f"benchmark_training.py: error: {error}", file=sys.stderr)
            return 1
    if args.plot is not None:
        plot_panels(
            args.plot,
            rows,
            [("tokens per second", "tokens per second"), ("peak memory MiB", "peak memory, MiB")],
            x=("N", "tokens per sample"),
            series="model",
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
