"""What the commands that prepare data have in common: their parser, and one line for a mistake."""

import argparse
import sys
import time
from typing import NoReturn

from fairseq_clusterformer.errors import UserError


class Parser(argparse.ArgumentParser):
    """A parser without abbreviations, whose errors are one line with the usage."""

    def __init__(self, **options) -> None:
        super().__init__(
            formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **options
        )

    def error(self, message: str) -> NoReturn:
        usage = " ".join(self.format_usage().split())
        self.exit(2, f"{self.prog}: error: {message}; {usage}\n")


def whole_number(text: str) -> int:
    """Return an option's value, a whole number of 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}; allowed: a whole number, 1 or more")
    return int(text)


def fraction(text: str) -> float:
    """Return an option's value, a number between 0 and 1, neither of them."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text!r}; allowed is a number between 0 and 1")
    return value


def prepare_folder(program: str, options: dict) -> int:
    """Call ``options["prepare"]`` with the other options, and print what became of DEST.

    Returns:
        the exit status; a user's mistake is one line on stderr and status 1.
    """
    prepare, start = options.pop("prepare"), time.monotonic()
    try:
        record = prepare(**options)
    except (UserError, OSError) as error:
        print(f"{program}: error: {error}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        print(
            f"{program}: error: {sys.executable} cannot import {error.name}; set PYTHON to a "
            "Python in which this project is installed",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        print(f"{program}: interrupted; run it again to finish", file=sys.stderr)
        return 130  # The shell's status for a run ended by SIGINT.
    if record is None:
        print(f"{options['dest']} is already prepared")
        return 0
    for split, counts in record["splits"].items():
        print(f"{split:5}", *(f"{number:>13,} {what}" for what, number in counts.items()))
    print(f"prepared {options['dest']} in {time.monotonic() - start:.0f} s")
    return 0
