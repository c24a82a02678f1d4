"""What several commands share: their parser, types of options, and the report of a preparation."""

import argparse
import re
import sys
import time
from pathlib import Path
from typing import NoReturn

from fairseq_clusterformer.errors import UserError

_CHOICE = re.compile(r"^(\S+): invalid choice: (.+?) \(choose from (.*)\)$")


class Parser(argparse.ArgumentParser):
    """A parser without abbreviations, whose errors are one line with the usage.

    Args:
        options: as `argparse.ArgumentParser` takes them.
    """

    def __init__(self, **options) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        usage = " ".join(self.format_usage().split())
        message = message.removeprefix("argument ").replace(": is ", " is ", 1)
        if found := _CHOICE.match(message):
            option, value, allowed = (part.replace("'", "") for part in found.groups())
            message = f"{option} is {value}; allowed: {allowed}"
        self.exit(2, f"{self.prog}: error: {message}; {usage}\n")

    def parse_known_args(self, *given, **options):
        """As `argparse` does, but a parser of one corpus reports what it does not know itself."""
        namespace, unknown = super().parse_known_args(*given, **options)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return namespace, unknown

    def corpora(self) -> argparse._SubParsersAction:
        """Return where to add a parser for each corpus; what is chosen becomes ``corpus``."""
        return self.add_subparsers(
            title="corpora", dest="corpus", metavar="CORPUS", required=True, parser_class=Parser
        )


def whole_number(text: str) -> int:
    """Return an option's value, a whole number of 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"is {text}; allowed: a whole number, 1 or more")
    return int(text)


def fraction(text: str) -> float:
    """Return an option's value, a number above 0 and below 1."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"is {text}; allowed: a number above 0 and below 1")
    return value


def add_dest(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    """Add DEST to the parser of a command that prepares data."""
    parser.add_argument(
        "dest",
        metavar="DEST",
        type=Path,
        nargs="?" if default else None,
        default=default and Path("data-bin", default),
        help="the folder to make" + (" (default: %(default)s)" if default else ""),
    )


def prepare_folder(options: dict) -> int:
    """Call ``options["prepare"]`` with the other options, and print what became of DEST.

    Returns:
        the exit status, 0.

    Raises:
        UserError: if a package is missing.
    """
    prepare, start = options.pop("prepare"), time.monotonic()
    try:
        record = prepare(**options)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith(__package__.split(".")[0]):
            raise  # a mistake of ours, not a missing package
        raise UserError(
            f"{sys.executable} has no package {error.name}; install it, or use the Python in "
            "which fairseq_clusterformer was installed"
        ) from None
    if record is None:
        print(f"{options['dest']} is already prepared")
        return 0
    for split, counts in record["splits"].items():
        print(f"{split:5}", *(f"{number:>13,} {what}" for what, number in counts.items()))
    print(f"prepared {options['dest']} in {time.monotonic() - start:.0f} s")
    return 0
