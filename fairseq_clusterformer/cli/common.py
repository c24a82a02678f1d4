"""What several commands share: parser, options, input, and the report of a preparation."""

import argparse
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import NoReturn

from fairseq_clusterformer.errors import UserError, bad_option
from fairseq_clusterformer.outputs import check_output
from fairseq_clusterformer.ranges import Range

# What commands a terminal, or turns the direction of writing.
_COMMANDS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
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

    def _get_value(self, action: argparse.Action, text: str):
        """As `argparse` does; a path is not empty, which Python would take for this folder."""
        if not text and (action.type is Path or action.metavar in ("FILE", "FOLDER", "PATH")):
            raise argparse.ArgumentError(action, "is empty; allowed: a path")
        return super()._get_value(action, text)

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


def harmless(text: str) -> str:
    """A stranger's text without the characters that could command a terminal: each becomes
    U+FFFD. Everything that commands print of models, documents and files goes through this."""
    return _COMMANDS.sub("\ufffd", text)


def add_model(parser: Parser, whose: str, *, several: bool = False, required: bool = True) -> None:
    """Add the options of a command that uses a trained model, or an ensemble of `several`."""
    add = parser.add_argument
    whose += "; given several times: an ensemble" if several else ""
    whose += "" if required else " (default: the one that is installed with this package)"
    action = "append" if several else "store"
    add("--checkpoint", required=required, metavar="PATH", action=action, help=whose)
    add_places(parser)
    add("--cpu", action="store_true", help="do not use an accelerator")


def add_places(parser: Parser) -> None:
    """Add the options that say where a model's data and a plug-in of the user's own are."""
    add = parser.add_argument
    add("--data", metavar="FOLDER", help="of the training (default: as the checkpoint says)")
    about = "a plug-in of your own that the training had, with a kind of attention, say"
    add("--user-dir", metavar="FOLDER", type=_imported, help=about)


def _imported(folder: str) -> str:
    """Import a plug-in as fairseq's --user-dir does."""
    from fairseq.utils import import_user_module

    try:
        import_user_module(argparse.Namespace(user_dir=folder))
    except (FileNotFoundError, ImportError) as error:
        problem = f"is {folder}: {error}; allowed: the folder of a Python package"
        raise argparse.ArgumentTypeError(problem) from None
    return folder


def add_force(parser: Parser) -> None:
    """Add the option to replace files of the user's."""
    about = "replace files that this program did not write, but no input"
    parser.add_argument("--force", action="store_true", help=about)


def inputs_of(args: argparse.Namespace, *more: Path | None) -> list[Path]:
    """The places that a command reads, of those options that most have."""
    models = args.checkpoint if isinstance(args.checkpoint, list) else [args.checkpoint]
    named = (*models, args.data, args.user_dir, *more)
    return [Path(each) for each in named if each is not None]


def check_files(folder: Path, names: Sequence[str], **how) -> None:
    """Refuse a folder of ``--out`` if one of the files must not be written there.

    Args:
        how: as :func:`~fairseq_clusterformer.outputs.check_output` takes it.

    Raises:
        UserError: if it is no folder, cannot be written to, or holds such a file of the user's.
    """
    allowed = "a folder to write to"
    try:
        if folder.exists() and not folder.is_dir():
            raise bad_option("--out", folder, allowed, "it is a file")
        nearest = next(place for place in (folder, *folder.absolute().parents) if place.exists())
        if not nearest.is_dir() or not os.access(nearest, os.W_OK):
            raise bad_option("--out", folder, allowed, f"{nearest} cannot be written to")
    except OSError as error:
        raise bad_option("--out", folder, allowed, error.strerror) from None
    for name in names:
        check_output("--out", folder / name, makes_folder=True, **how)


def input_lines(parser: Parser, given: Sequence[str], path: Path | None) -> Iterator[str]:
    """Return what is in the command line, else the lines of --input, else those of stdin."""
    if given and path is not None:
        parser.error(f"--input is {path}, and there is text; allowed: one of the two")
    return iter(given) if given else read_lines(path, "--input")


def read_lines(path: Path | None, option: str) -> Iterator[str]:
    """Yield the lines of a file, or of stdin as they come. A newline alone ends a line.
    A byte-order mark, by which other systems begin a file, is no text.

    Raises:
        UserError: a file that is not there, or another text than UTF-8.
    """
    name, count = path or "stdin", 0
    try:
        with open(path, "rb") if path else nullcontext(sys.stdin.buffer) as lines:
            for line in lines:
                count += 1
                yield line.decode("utf-8" if count > 1 else "utf-8-sig").removesuffix("\n")
    except OSError as error:
        raise bad_option(option, name, "a file of UTF-8 text", error.strerror) from None
    except UnicodeDecodeError:
        problem = f"line {count} is not UTF-8"
        raise bad_option(option, name, "a file of UTF-8 text", problem) from None


def number(limits: Range) -> Callable[[str], float]:
    """Return a type of option: the numbers of a range."""

    def read(text: str) -> float:
        try:
            value = int(text) if limits.whole else float(text)
        except ValueError:
            value = math.nan
        if value != value or limits.forbids(value):
            kind = "a whole number" if limits.whole else "a finite number"
            allowed = limits.allowed(value)
            allowed = kind if allowed == kind else f"{kind.replace(' finite', '')}, {allowed}"
            raise argparse.ArgumentTypeError(f"is {text}; allowed: {allowed}")
        return value

    return read


whole_number = number(Range(at_least=1, whole=True))
fraction = number(Range(above=0, below=1))
finite = number(Range())


def encoding(text: str) -> str:
    """Return an option's value, the name of a text encoding that Python knows."""
    try:
        "".encode(text)  # refuses what is no encoding of text, such as hex
    except LookupError:
        raise argparse.ArgumentTypeError(
            f"is {text}; allowed: utf-8, latin-1, cp1252 and others that Python knows"
        ) from None
    return text


def line_encoding(text: str) -> str:
    """Return an option's value, the name of a text encoding in which lines end in one byte."""
    if not "\n\n".encode(encoding(text)).endswith(b"\n\n"):
        allowed = "an encoding whose line end is one byte, such as utf-8, latin-1, cp1252"
        raise argparse.ArgumentTypeError(f"is {text}; allowed: {allowed}")
    return text


NUMBER = {"metavar": "N", "type": whole_number}
FRACTION = {"metavar": "F", "type": fraction}
PATH = {"metavar": "PATH", "type": Path}
# The arguments that several commands have; each adds its own help.
_SHARED = {
    "source": {"metavar": "SOURCE", "type": Path},
    "--source": {"metavar": "DIR", "type": Path},
    "--valid-fraction": FRACTION,
    "--test-fraction": FRACTION,
    "--seed": NUMBER | {"default": 1},
    "--workers": NUMBER | {"default": 1},
    "--sentencepiece": {"metavar": "VOCAB", "type": whole_number},
    "--force": {"action": "store_true"},
}


def add(parser: argparse._ActionsContainer, name: str, about: str, **how) -> None:
    """Add an argument to the parser of a command that prepares data.

    Args:
        about: its help, to which a default is added.
        how: as `argparse` takes it, where it is not an argument that several commands have.
    """
    how = _SHARED.get(name, {}) | how
    if how.get("default") not in (None, ()):
        about += " (default: %(default)s)"
    parser.add_argument(name, help=about, **how)


def add_dest(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    """Add DEST, which may have a default in ``data-bin``."""
    how = {"nargs": "?", "default": Path("data-bin", default)} if default else {}
    about = "the folder to make; it appears when it is complete, and then nothing is done again"
    add(parser, "dest", about, metavar="DEST", type=Path, **how)


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


def add_output(parser: Parser, replaced: str) -> None:
    """Add the options of commands that write a model into a folder OUT.

    Args:
        replaced: what --force replaces, such as "a bundle".
    """
    add = parser.add_argument
    about = (
        "of the weights in the file (default: float32, which changes no output); int8, of bundles "
        "alone: a quarter of it, with a factor for each row of a matrix"
    )
    dtypes = ("float32", "float16", "bfloat16", "int8")
    add("--dtype", choices=dtypes, default="float32", help=about)
    about = "a Markdown file that says what the model is, of what data, and how good"
    add("--card", metavar="FILE", type=Path, help=about)
    add("--force", action="store_true", help=f"replace {replaced}, nothing else")


def read_card(path: Path | None) -> str | None:
    """The text of --card; None: none was given.

    Raises:
        UserError: it cannot be read.
    """
    try:
        return None if path is None else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise bad_option("--card", path, "a file of UTF-8 text", str(error)) from None


def megabytes(folder: Path) -> str:
    """The size of all files of a folder, such as "3.3 MB"."""
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return f"{size / 1e6:.1f} MB"
