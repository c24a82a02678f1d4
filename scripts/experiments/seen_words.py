#!/usr/bin/env python3
"""What a word of a text sees in each row of table 2, before training.

    python scripts/seen_words.py --data DATA --only 20news
    python scripts/seen_words.py --data DATA --only mr --attention neural+neural+neural+neural

DATA is as for ``scripts/reproduce.py``. The model of each row of
``examples/classification/table2.yaml``, and one for each SPEC of ``--attention`` with the options
that all rows share, is built with random weights (one draw) and reads the first texts of the
validation set that have one of the ``--lengths``. A line of the table has means over the texts of
what is, of a text, the mean over its words:

tokens      that a word sees in the first layer, in any head
words       of them that differ
same word   share of what is seen in the first layer, the word itself left out, that is the same
            word; heads that share an order count once
reached     share of the text that reaches a word through all layers, residuals among them
"""

import statistics
import sys
from argparse import Namespace
from itertools import islice
from pathlib import Path

import torch
import yaml
from fairseq.models import BaseFairseqModel
from torch import Tensor
from tqdm import tqdm

from fairseq_clusterformer.attention.inspect import tokens_seen
from fairseq_clusterformer.cli.common import Parser, whole_number
from fairseq_clusterformer.data.sentences import SentenceDataset
from fairseq_clusterformer.errors import UserError
from scripts.experiments.reproduce import EXAMPLES
from scripts.experiments.reproduce_runs import ROOT, Training, runs_of


def what_is_seen(layers: list[list[Tensor]], words: Tensor) -> dict[str, float]:
    """The four means of one text.

    Args:
        layers: of each layer, what the groups of its heads see, bool [G, N, N] each.
        words: int64 [N].
    """
    others = ~torch.eye(len(words), dtype=torch.bool)
    same = words.unsqueeze(-1) == words
    heads = torch.cat(layers[0]) & others
    by_layer = [torch.cat(groups).any(0) for groups in layers]
    reached = ~others
    for seen in by_layer:
        reached = (seen | ~others).float() @ reached.float() > 0
    return {
        "tokens": by_layer[0].sum(-1).float().mean().item(),
        "words": statistics.mean(len(words[seen].unique()) for seen in by_layer[0]),
        "same word": ((heads & same).sum() / heads.sum().clamp(min=1)).item(),
        "reached": reached.float().mean().item(),
    }


def build(run: Training, data: Path) -> tuple[BaseFairseqModel, SentenceDataset]:
    """The untrained model of a run, and its validation set.

    Raises:
        UserError: a spec that is not allowed.
    """
    from fairseq import options, tasks
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    words = run.words(data, plugin=str(ROOT / "fairseq_clusterformer"))[1:]
    args = options.parse_args_and_arch(options.get_training_parser(), words)
    cfg = convert_namespace_to_omegaconf(args)
    task = tasks.setup_task(cfg.task)
    task.load_dataset("valid")
    torch.manual_seed(run.seed)
    try:
        model = task.build_model(cfg.model)
    except ValueError as error:
        raise UserError(str(error)) from None
    return model.eval(), task.dataset("valid")


def measure(run: Training, args: Namespace) -> dict[str, float]:
    """Means over the texts."""
    model, texts = build(run, args.data)
    low, high = args.lengths
    fitting = (i for i in range(len(texts)) if low <= texts.num_tokens(i) <= high)
    found = []
    for i in islice(fitting, args.texts):
        inputs = texts.collater([texts[i]])["net_input"]
        layers: dict[str, list[Tensor]] = {}
        for name, seen in tokens_seen(model, **inputs).items():
            layers.setdefault(name.rpartition(".routers.")[0], []).append(seen[0])
        found.append(what_is_seen(list(layers.values()), inputs["src_tokens"][0]))
    if not found:
        raise UserError(
            f"--lengths is {low} {high}, which no text of {run.data} has; allowed: lengths of its "
            "validation set"
        )
    return {key: statistics.mean(one[key] for one in found) for key in found[0]}


def make_parser() -> Parser:
    parser = Parser(prog="seen_words.py", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of prepared data sets")
    parser.add_argument("--only", metavar="NAME", required=True, help="data set")
    parser.add_argument("--attention", nargs="+", metavar="SPEC", default=[], help="more rows")
    parser.add_argument("--texts", type=whole_number, default=30, help="how many (default: 30)")
    parser.add_argument(
        "--lengths",
        nargs=2,
        type=whole_number,
        metavar=("LOW", "HIGH"),
        default=(1, 100_000),
        help="tokens that a text may have (default: any)",
    )
    return parser


def settle(parser: Parser, args: Namespace) -> list[Training]:
    """The runs whose models are looked at; refuses what cannot be done."""
    suite = yaml.safe_load((EXAMPLES / "classification" / "table2.yaml").read_text())
    if args.only not in suite["data"]:
        parser.error(f"--only is {args.only}; allowed: {', '.join(suite['data'])}")
    suite["data"] = {args.only: suite["data"][args.only]}
    for spec in args.attention:
        suite["rows"][f"`{spec}`"] = {"options": {"encoder-attention": spec}}
    runs = runs_of(suite, quick=True)  # one a row; its few updates change no model
    if not runs[0].needs(args.data).exists():
        parser.error(
            f"--data is {args.data}, which has no {runs[0].data}; allowed: {Training.allowed}"
        )
    return runs


def main(argv: list[str] | None = None) -> int:
    parser = make_parser()
    args = parser.parse_args(argv)
    runs = settle(parser, args)
    lines = ["| model | tokens | words | same word | reached |", "| --- |" + " ---: |" * 4]
    try:
        for run in tqdm(runs, desc=args.only):
            seen = measure(run, args)
            numbers = f"{seen['tokens']:.1f} | {seen['words']:.1f} | {seen['same word']:.1%}"
            lines.append(f"| {run.row} | {numbers} | {seen['reached']:.0%} |")
    except UserError as error:
        parser.error(str(error))
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
