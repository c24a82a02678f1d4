"""What a converted language model loses: against its dense model, and against windows with sinks.

    python -m examples.language_model.converted CHECKPOINT --dense FOLDER --text FILE...

The windows have the dense model's weights, and show each query as many keys as the converted model
shows the head that sees most; `--windows` is a checkpoint in their place. Texts are scored from
their beginning, in one pass: nats a token by position, and on repeated pairs by distance.
"""

import json
import math
import sys
from argparse import Namespace
from collections.abc import Sequence
from itertools import chain, islice
from pathlib import Path

from torch import nn

from fairseq_clusterformer.checkpoints.load import load_checkpoint
from fairseq_clusterformer.cli.common import Parser
from fairseq_clusterformer.cli.main import program
from fairseq_clusterformer.conversion import as_checkpoint
from fairseq_clusterformer.conversion.convert import rebuilt
from fairseq_clusterformer.conversion.model import attentions
from fairseq_clusterformer.errors import UserError, check_file
from fairseq_clusterformer.outputs import write_aside
from fairseq_clusterformer.use.language_model import LanguageModel
from fairseq_clusterformer.use.perplexity import POSITION, REPEATS, Breakdown, compare, text_blocks

NAME = "python -m examples.language_model.converted"
#: the tables of `Breakdown`, in nats here
TABLES = {POSITION: "nats by position", REPEATS: "nats on repeats by distance"}


def keys_of(model: nn.Module) -> tuple[int, int]:
    """How many keys the kind that sees most shows a query of a model on one side, and how many
    first tokens besides; UserError for a model that sees all."""
    routers = [router for each in attentions(model).values() for router in each.routers]
    if any(router.rule.window is None and not router.rule.index for router in routers):
        raise UserError("CHECKPOINT has heads of the kind full; allowed: kinds with a window")
    given = ((router.rule, getattr(router.options, "probes", 1)) for router in routers)
    keys = max(rule.gap + (rule.index or probes * rule.by_cluster) for rule, probes in given)
    return keys, max(router.rule.sinks for router in routers)


def score(language: LanguageModel, texts: Sequence[Path], length: int) -> dict:
    """Nats a token of the first so many tokens of each text, with those of `Breakdown`."""
    found, how = Breakdown(language.coding), {"tokens_per_sample": length}
    blocks = (text_blocks(language.loaded, text, f"--text is {text}", **how) for text in texts)
    blocks = chain.from_iterable(islice(of_text, 1) for of_text in blocks)
    result = compare(language.model, blocks, stepwise=False, breakdown=found)
    nats = {"all": result["teacher-forced bits"] * math.log(2)}
    for title, rows in found.result().items():
        nats[TABLES[title]] = {row["from"]: row["bits"] * math.log(2) for row in rows}
    return nats


def compared(args: Namespace) -> dict[str, dict]:
    how = {"task": "language_modeling"}
    with as_checkpoint(args.dense) as path:
        models = {"dense": load_checkpoint(path, option="--dense", **how)}
        models["converted"] = load_checkpoint(args.checkpoint, option="CHECKPOINT", **how)
        keys, sinks = keys_of(models["converted"].model)
        name = f"window({keys},sinks={sinks})"
        if args.windows is None:
            models[name] = rebuilt(models["dense"], {"decoder": name})
        else:
            models["windows"] = load_checkpoint(args.windows, option="--windows", **how)
        results: dict[str, dict] = {}
        for name, loaded in models.items():
            language = LanguageModel(loaded, device="cpu")
            results[name] = score(language, args.text, args.length)
            print(f"{name}: done", file=sys.stderr)
    return results


def print_table(title: str, rows: dict[str, dict]) -> None:
    columns = next(iter(rows.values()))
    print(f"{title:30}" + "".join(f"{column:>18}" for column in columns))
    for name, values in rows.items():
        print(f"{name:30}" + "".join(f"{values[column]:18.4f}" for column in columns))


def main(arguments: Sequence[str]) -> int:
    parser = Parser(prog=NAME, description=__doc__)
    add = parser.add
    add("checkpoint CHECKPOINT", "that convert wrote")
    add("--dense PATH", "what it was converted from", required=True)
    add("--windows PATH", "a checkpoint to compare with")
    add("--text FILE", "to score", nargs="+", required=True)
    add("--length N", "tokens of each text", default=4096)
    add("--out FILE", "also write the numbers as JSON")
    args = parser.parse_args(arguments)
    for text in args.text:
        check_file("--text", text, "a file of text")
    results = compared(args)
    titles = list(TABLES.values())
    plain = {n: {k: v for k, v in of.items() if k not in titles} for n, of in results.items()}
    print_table("of all", plain)
    for title in titles:
        if title in results["dense"]:
            print_table(f"{title}, from", {name: of[title] for name, of in results.items()})
    if args.out is not None:
        write_aside(args.out, json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(program(NAME, main, sys.argv[1:]))
