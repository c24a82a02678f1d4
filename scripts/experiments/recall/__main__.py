"""Train one small model on recall from further away than a window reaches.

    python -m scripts.experiments.recall near+gated --steps 5000 --cluster-temperature 0.2
    python -m scripts.experiments.run examples/language_model/recall.yaml --out RESULTS

The second command trains every kind of attention. A row holds 8 pairs of a key and a value,
scattered over its first 40 tokens, then noise, and at its end the 8 keys again, shuffled. At each
of these the model names the value of its pair. A model that does not see the pairs is right in 1
of 16 cases. A model that sees which values there are, but not which key each belongs to, is right
in 2 of 16.

KIND is an attention spec as --attention takes it. `near` is a kind of this task alone: a window of
8, for local heads next to clustered ones.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from fairseq_clusterformer.cli.common import Parser, whole_number
from fairseq_clusterformer.errors import UserError, write_aside
from scripts.experiments.recall.model import Setting, train


def make_parser() -> Parser:
    parser = Parser(prog="python -m scripts.experiments.recall", description=__doc__)
    parser.add_argument("kind", metavar="KIND")
    for field in fields(Setting)[1:]:
        name, default = "--" + field.name.replace("_", "-"), field.default
        if default is False:
            parser.add_argument(name, action="store_true")
        else:
            kind = whole_number if isinstance(default, int) else type(default)
            parser.add_argument(name, type=kind, default=default, help=f"default: {default}")
    parser.add_argument("--seed", type=whole_number, default=1, help="of weights and rows")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the result here")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; a user's mistake is one line on stderr and status 1."""
    parser = make_parser()
    options = vars(parser.parse_args(arguments))
    path, seed = options.pop("json"), options.pop("seed")
    try:
        result = train(Setting(**options), seed)
    except (UserError, ValueError) as error:  # what attention refuses
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 1
    if path is not None:
        write_aside(path, json.dumps(result) + "\n")
    print(f"accuracy {result['accuracy']:.3f} after {options['steps']} updates")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)  # the shell's status for a run that SIGINT ended
