"""ListOps of the Long Range Arena (Tay et al. 2021; Nangia and Bowman 2018), drawn anew.

    python -m scripts.experiments.listops data/listops --train 96000
    clusterformer prepare classification text data/listops data-bin/listops --tokenised

Writes DEST/train.tsv, valid.tsv and test.tsv: the value of an expression, 0 to 9, and the
expression, such as ``[MAX 2 9 [MIN 4 7 ] 0 ]``. Operators are MAX, MIN, MED (the median, rounded
down) and SM (the sum modulo 10). As in the Arena, an argument is an expression in 1 of 4 cases,
which has 2 to 10 arguments and is at most 10 deep; expressions of 500 to 2,000 tokens are kept.
No expression is drawn twice.
"""

import random
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tqdm import tqdm

from fairseq_clusterformer.cli.common import Parser, whole_number
from fairseq_clusterformer.errors import UserError, bad_option
from fairseq_clusterformer.outputs import write_aside

OPERATORS = {
    "[MAX": max,
    "[MIN": min,
    "[MED": lambda values: int(statistics.median(values)),
    "[SM": lambda values: sum(values) % 10,
}
SHARE, DEPTH, ARGUMENTS = 0.25, 10, 10
PATIENCE = 100_000  # draws without a new expression


def expression(draw: random.Random, most: int, depth: int = 1) -> tuple[list[str], int]:
    """Draw an expression or a digit: its tokens and its value. It may end soon behind ``most``
    tokens, and is then no expression: nobody reads it."""
    if depth >= DEPTH or draw.random() > SHARE:
        digit = draw.randrange(10)
        return [str(digit)], digit
    tokens, values = [draw.choice([*OPERATORS])], []
    for _ in range(draw.randint(2, ARGUMENTS)):
        inner, value = expression(draw, most, depth + 1)
        tokens += inner
        values.append(value)
        if len(tokens) > most:
            break
    return [*tokens, "]"], OPERATORS[tokens[0]](values)


def expressions(draw: random.Random, least: int, most: int) -> Iterator[tuple[int, str]]:
    """Values and expressions of ``least`` to ``most`` tokens, each once.

    Raises:
        UserError: there seem to be no more.
    """
    seen, since = set(), 0
    while since < PATIENCE:
        tokens, value = expression(draw, most)
        since += 1
        if least <= len(tokens) <= most and (text := " ".join(tokens)) not in seen:
            seen.add(text)
            yield value, text
            since = 0
    problem = f"only {len(seen):,} expressions of up to {most} tokens were found"
    raise bad_option("--shortest", least, "less, or a larger --longest", problem)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the files; a user's mistake is one line on stderr and status 1."""
    parser = Parser(prog="python -m scripts.experiments.listops", description=__doc__)
    parser.add_argument("dest", metavar="DEST", type=Path)
    counts = {"train": 96_000, "valid": 2000, "test": 2000}
    numbers = counts | {"shortest": 500, "longest": 2000, "seed": 1}
    for name, default in numbers.items():
        about = f"default: {default}"
        parser.add_argument(f"--{name}", type=whole_number, default=default, help=about)
    args = parser.parse_args(arguments)
    try:
        if args.longest < args.shortest or args.shortest < 4:
            allowed = "4 or more, up to --longest"
            raise bad_option("--shortest", args.shortest, allowed, f"--longest is {args.longest}")
        if args.dest.exists() and not args.dest.is_dir():
            raise bad_option("DEST", args.dest, "a new folder, or an empty one", "is a file")
        if args.dest.exists() and any(args.dest.iterdir()):
            raise bad_option("DEST", args.dest, "a new folder, or an empty one", "has files")
        drawn = expressions(random.Random(args.seed), args.shortest, args.longest)
        args.dest.mkdir(parents=True, exist_ok=True)
        for split in counts:
            number = range(getattr(args, split))
            rows = (next(drawn) for _ in tqdm(number, desc=split, disable=None))
            lines = "".join(f"{value}\t{text}\n" for value, text in rows)
            write_aside(Path(args.dest, f"{split}.tsv"), lines)
    except UserError as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
