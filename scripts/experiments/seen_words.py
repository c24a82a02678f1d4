"""What a word of a text sees in each row of CF22's table 2, before training.

    python -m scripts.experiments.seen_words --data DATA --only 20news
    python -m scripts.experiments.seen_words --data DATA --only mr --attention neural gated

DATA holds the data sets that `clusterformer prepare classification` made. The model of each row of
examples/classification/table2.yaml is built with random weights (one draw), and so is one for each
SPEC of --attention, with the options that all rows share. Each reads the first 30 texts of the
validation set that have one of the --lengths. The table has means over the words of each text,
and then over the texts:

tokens      that a word sees in the first layer, in any head
words       how many of them differ
same word   share of what is seen in the first layer, without the word itself, that is the same
            word; heads that share an order count once
reached     share of the text that reaches a word through all layers, with their residuals
"""

import statistics
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import torch
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from torch import Tensor
from tqdm import tqdm

from fairseq_clusterformer.attention.inspect import tokens_seen
from fairseq_clusterformer.cli.common import Parser, whole_number
from fairseq_clusterformer.errors import UserError, bad_option
from scripts.experiments.grids import Run, chosen, load_grid, runs_of
from scripts.experiments.provenance import ROOT
from scripts.experiments.scores import fairseq
from scripts.experiments.tables import markdown

TEXTS = 30
COLUMNS = {"tokens": "{:.1f}", "words": "{:.1f}", "same word": "{:.1%}", "reached": "{:.0%}"}
GRID = ROOT / "examples" / "classification" / "table2.yaml"


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


def measure(run: Run, data: Path, lengths: Sequence[int]) -> dict[str, float]:
    """Means over the texts of the validation set, with the untrained model of a run.

    Raises:
        UserError: a spec that is not allowed, or no text of these lengths.
    """
    words = fairseq("fairseq-train", data / run.folder, run.options)[1:]
    args = options.parse_args_and_arch(options.get_training_parser(), words)
    cfg = convert_namespace_to_omegaconf(args)
    task = tasks.setup_task(cfg.task)
    task.load_dataset("valid")
    torch.manual_seed(run.seed)
    try:
        model = task.build_model(cfg.model).eval()
    except ValueError as error:
        raise UserError(str(error)) from None
    texts, (low, high) = task.dataset("valid"), lengths
    found = []
    fitting = (i for i in range(len(texts)) if low <= texts.num_tokens(i) <= high)
    for i in islice(fitting, TEXTS):
        inputs = texts.collater([texts[i]])["net_input"]
        layers: dict[str, list[Tensor]] = {}
        for name, seen in tokens_seen(model, **inputs).items():
            layers.setdefault(name.rpartition(".routers.")[0], []).append(seen[0])
        found.append(what_is_seen(list(layers.values()), inputs["src_tokens"][0]))
    if not found:
        allowed = f"lengths of texts in the validation set of {run.data}"
        raise bad_option("--lengths", f"{low} {high}", allowed)
    return {key: statistics.mean(one[key] for one in found) for key in found[0]}


def main(arguments: list[str] | None = None) -> int:
    """Run the command; a user's mistake is one line on stderr and status 1."""
    parser = Parser(prog="python -m scripts.experiments.seen_words", description=__doc__)
    add = parser.add_argument
    add("--data", type=Path, required=True, help="folder of prepared data sets")
    add("--only", metavar="NAME", required=True, help="data set")
    add("--attention", nargs="+", metavar="SPEC", default=[], help="more rows")
    pair = {"nargs": 2, "type": whole_number, "default": (1, 100_000)}
    add("--lengths", **pair, metavar=("LOW", "HIGH"), help="tokens of a text (default: any)")
    args = parser.parse_args(arguments)
    rows = []
    try:
        grid = load_grid(GRID)
        grid["rows"] |= {f"`{spec}`": {"encoder-attention": spec} for spec in args.attention}
        runs = chosen(runs_of(grid, quick=True), [args.only])  # its few updates change no model
        if not (args.data / runs[0].folder / "input0").is_dir():
            allowed = f"a folder with {runs[0].folder}, of clusterformer prepare classification"
            raise bad_option("--data", args.data, allowed)
        for run in tqdm(runs, desc=args.only):
            seen = measure(run, args.data, args.lengths)
            rows.append((run.row, *(shown.format(seen[of]) for of, shown in COLUMNS.items())))
    except UserError as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 1
    print(markdown(["model", *COLUMNS], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
