"""What several commands share: parser, options, input, and the report of a preparation."""

import argparse
import math
import os
import re
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import NoReturn

from fairseq_clusterformer import errors
from fairseq_clusterformer.corpora import SPLITS, SUBWORDS
from fairseq_clusterformer.corpora.vocabulary import Vocabulary
from fairseq_clusterformer.errors import UserError, bad_option, shortened
from fairseq_clusterformer.outputs import check_output
from fairseq_clusterformer.ranges import Range

# What commands a terminal, turns the direction of writing, or is half a letter.
_COMMANDS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_CHOICE = re.compile(r"^(\S+): invalid choice: (.+?) \(choose from (.*)\)$")


class Parser(argparse.ArgumentParser):
    """A parser without abbreviations, whose errors are one line with the usage."""

    def __init__(self, **options) -> None:
        form = argparse.RawDescriptionHelpFormatter
        super().__init__(allow_abbrev=False, formatter_class=form, **options)

    def add(self: argparse._ActionsContainer, name: str, about: str, **how) -> None:
        """Add ``--option VALUE``, ``--flag`` or ``argument VALUE``. Its help is `about`, to which
        a default is added; `how` is as of `argparse`, and the type by default that of VALUE."""
        name, _, value = name.partition(" ")
        if value:
            how = {"metavar": value, "type": _TYPES.get(value, str)} | how
        elif "choices" not in how:
            how["action"] = "store_true"
        if how.get("default") not in (None, (), []):
            about += " (default: %(default)s)"
        self.add_argument(name, help=about, **how)

    def say(self, line: str) -> None:
        """Print a line beside what the command writes."""
        print(f"{self.prog}: {harmless(line)}", file=sys.stderr)

    def error(self, message: str) -> NoReturn:
        usage = " ".join(self.format_usage().split())
        message = message.removeprefix("argument ").replace(": is ", " is ", 1)
        if found := _CHOICE.match(message):
            option, value, allowed = (part.replace("'", "") for part in found.groups())
            message = f"{option} is {value}; allowed: {allowed}"
        self.exit(2, f"{self.prog}: error: {shortened(message)}; {usage}\n")

    def _get_value(self, action: argparse.Action, text: str):
        """As `argparse` does; a path is not empty, which Python would take for this folder."""
        if not text and (action.type is Path or action.metavar in ("FILE", "FOLDER", "PATH")):
            raise argparse.ArgumentError(action, "is empty; allowed: a path")
        return super()._get_value(action, text)

    def corpora(self) -> argparse._SubParsersAction:
        """Return where to add a parser for each corpus; what is chosen becomes ``corpus``."""
        return self.add_subparsers(title="corpora", dest="corpus", metavar="CORPUS", required=True)


add = Parser.add  # to a group of options as well


def harmless(text: str) -> str:
    """What is printed of models, documents and files: U+FFFD for what could command a terminal."""
    return _COMMANDS.sub("\ufffd", text)


def add_model(
    parser: Parser, whose: str, *, several: bool = False, default: str | None = None
) -> None:
    """Add the options of a command that uses a trained model, or an ensemble of `several`."""
    whose += "; given several times: an ensemble" if several else ""
    how = {"action": "append"} if several else {"default": default}
    add(parser, "--checkpoint PATH", whose, type=str, required=default is None, **how)
    add_places(parser)
    add(parser, "--cpu", "do not use an accelerator")


#: help of an option of those that read texts with a language model
BEGIN = "that texts begin by, '' for none (default: as trained, or as its folder's tokenizer says)"


def load_model(args: argparse.Namespace, task: str, **overrides: object):
    """The model of :func:`add_model`'s options; `overrides` of its training, None: none."""
    from fairseq_clusterformer.use.base import load

    how = {name: value for name, value in overrides.items() if value is not None}
    how |= {"data": args.data, "device": "cpu" if args.cpu else None}
    return load(args.checkpoint, task=task, option="--checkpoint", **how)


def add_places(parser: Parser) -> None:
    """Add the options that say where a model's data and a plug-in of the user's own are."""
    add(parser, "--data FOLDER", "of the training (default: as the checkpoint says)", type=str)
    about = "a plug-in of your own that the training had, with a kind of attention, say"
    add(parser, "--user-dir FOLDER", about, type=_imported)


def _imported(folder: str) -> str:
    from fairseq.utils import import_user_module

    try:
        import_user_module(argparse.Namespace(user_dir=folder))
    except (FileNotFoundError, ImportError) as error:
        problem = f"is {folder}: {error}; allowed: the folder of a Python package"
        raise argparse.ArgumentTypeError(problem) from None
    return folder


def add_force(parser: Parser) -> None:
    """Add the option to replace files of the user's."""
    add(parser, "--force", "replace files that this program did not write, but no input")


def inputs_of(args: argparse.Namespace, *more: Path | None) -> list[Path]:
    """The places that a command reads, of those options that most have."""
    models = args.checkpoint if isinstance(args.checkpoint, list) else [args.checkpoint]
    named = (*models, args.data, args.user_dir, *more)
    return [Path(each) for each in named if each is not None]


def check_files(folder: Path, names: Sequence[str], **how) -> None:
    """Refuse files that must not, or cannot, be written to --out; `how` is `check_output`'s."""
    nearest = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        problem = f"{nearest} cannot be written to"
        raise bad_option("--out", folder, "a folder to write to", problem)
    for name in names:
        check_output("--out", folder / name, **how | {"makes_folder": True})


def input_lines(parser: Parser, given: Sequence[str], path: Path | None) -> Iterator[str]:
    """Return what is in the command line, else the lines of --input, else those of stdin."""
    if given and path is not None:
        parser.error(f"--input is {path}, and there is text; allowed: one of the two")
    return iter(given) if given else read_lines(path, "--input")


def read_lines(path: Path | None, option: str) -> Iterator[str]:
    """Yield the lines of a file, or of stdin as they come, without a byte order mark. A newline
    alone ends a line. Raises UserError for a file that is not there, or not UTF-8."""
    name, count = path or "stdin", 0
    if path:
        errors.check_no_device(option, path, "a file of UTF-8 text")
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
        if math.isnan(value) or limits.forbids(value):
            kind = "a whole number" if limits.whole else "a finite number"
            allowed = dict.fromkeys((kind, limits.allowed(value)))
            raise argparse.ArgumentTypeError(f"is {text}; allowed: {', '.join(allowed)}")
        return value

    return read


whole_number = number(Range(at_least=1, whole=True))
fraction = number(Range(above=0, below=1))
finite = number(Range())


def encoding(text: str) -> str:
    """Return an option's value, the name of a text encoding that Python knows."""
    try:
        "\n".encode(text)  # refuses what is no encoding of text, such as hex
    except LookupError:
        allowed = "utf-8, latin-1, cp1252 and others that Python knows"
        raise argparse.ArgumentTypeError(f"is {text}; allowed: {allowed}") from None
    return text


#: of an option's value, by what stands for it in the help; text otherwise
_TYPES = {"N": whole_number, "F": fraction, "VOCAB": whole_number}
_TYPES |= dict.fromkeys(
    ("FILE", "FOLDER", "DIR", "PATH", "PREFIX", "CHECKPOINT", "SOURCE", "OUT", "DEST"), Path
)


def add_dest(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    """Add DEST, which may have a default in ``data-bin``."""
    how = {"nargs": "?", "default": Path("data-bin", default)} if default else {}
    about = "the folder to make; it appears when it is complete, and then nothing is done again"
    add(parser, "dest DEST", about, **how)


def prepare_folder(options: dict) -> int:
    """Call ``options["prepare"]`` with the other options, and print what became of DEST; returns
    the exit status. Raises UserError if a package is missing."""
    prepare, start = options.pop("prepare"), time.monotonic()
    try:
        record = prepare(**options)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith(__package__.split(".")[0]):
            raise  # a mistake of ours, not a missing package
        remedy = "install it, or use the Python in which fairseq_clusterformer was installed"
        raise UserError(f"{sys.executable} has no package {error.name}; {remedy}") from None
    if record is None:
        print(f"{options['dest']} is already prepared")
        return 0
    for split, counts in record["splits"].items():
        print(f"{split:5}", *(f"{number:>13,} {what}" for what, number in counts.items()))
    print(f"prepared {options['dest']} in {time.monotonic() - start:.0f} s")
    return 0


def add_output(parser: Parser) -> None:
    """Add the options of commands that write a model into a folder OUT."""
    add(parser, "out OUT", "the folder to make")
    about = "of the weights in the file; float32 changes no output; int8, of bundles alone: a "
    about += "quarter of it, with a factor for each row of a matrix"
    dtypes = ("float32", "float16", "bfloat16", "int8")
    add(parser, "--dtype", about, choices=dtypes, default="float32")
    add(parser, "--force", "replace what this command wrote, nothing else")


def print_size(args: argparse.Namespace) -> None:
    """Say what a command has made in OUT."""
    size = sum(file.stat().st_size for file in args.out.rglob("*") if file.is_file())
    print(f"{args.out}: {size / 1e6:.1f} MB in {args.dtype}")


# Options of preparations: files of splits, subwords

Files = dict[str, list[Path]]  # of each split


def add_files(parser: Parser, source: str) -> None:
    """The options of a split's files, to be used in the place of what is found in ``source``."""
    for split in SPLITS:
        about = f"the files of {split}, instead of those found in {source}"
        parser.add(f"--{split} PATH", about, nargs="+")


TOKENIZER = ("--tokenizer FILE", "the tokenizer.json of a pre-trained model, such as BERT's")
WORKERS = ("--workers N", "processes (default: one for each core)")


def files_of_splits(
    options: dict, found: Files, source: Path | None, patterns: Sequence[str], option="--source"
) -> Files:
    """Take out the files of each split, or take those found in a source; UserError: no file."""
    splits = {split: options.pop(split) or found.get(split) for split in SPLITS}
    splits = {split: [p.absolute() for p in paths] for split, paths in splits.items() if paths}
    if not splits:
        allowed = f"a folder with {', '.join(patterns)}; or --train, --valid or --test with files"
        raise bad_option(option, source or "missing", allowed, "nothing found" if source else "")
    return splits


def check_train(splits: Files, vocabulary: Vocabulary, shares: Collection[str] = ()) -> None:
    """Raise UserError if train is needed, and is not among the splits."""
    if "train" not in splits and (shares or vocabulary.train):
        problem = "there is no train to draw splits from, or to learn subwords from"
        allowed = "--train with files; or an existing model of subwords, without fractions"
        raise UserError(f"{problem}; allowed: {allowed}")


def add_subwords(parser: Parser, about: str = "") -> argparse._MutuallyExclusiveGroup:
    """Add the options that :func:`take_vocabulary` takes, the first with a help of its own; return
    the group in which they exclude others."""
    units = parser.add_mutually_exclusive_group()
    usual = f"pieces of a sentencepiece model to train on train (default: {SUBWORDS} or fewer)"
    add(units, "--sentencepiece VOCAB", about or usual)
    add(units, *TOKENIZER)
    add(units, "--sentencepiece-model FILE", "an existing sentencepiece model")
    about = "GPT-2's subwords, which RoBERTa has: a folder with encoder.json and vocab.bpe"
    add(units, "--gpt2-bpe DIR", about)
    about = "the dictionary of a pretrained model (RoBERTa's dict.txt; default: all subwords)"
    parser.add("--dict FILE", about)
    return units


#: files of an existing model, and what they are
_FILES = {
    "sentencepiece_model": "a sentencepiece model, or --tokenizer FILE with a tokenizer.json",
    "tokenizer": "a tokenizer.json",
    "dict": "a dictionary of fairseq's",
}


def take_vocabulary(options: dict, usual: int | None = SUBWORDS) -> Vocabulary | None:
    """Take a model, or one to train, out of the options. `usual`: pieces to train, or fewer, where
    no model is given; None: none is trained."""
    pieces, found = options.pop("sentencepiece", None), options.pop("gpt2_bpe", None)
    if found and not found.is_dir():
        raise bad_option("--gpt2-bpe", found, "a folder", "no such folder")
    words = options.get("dict")
    for name, what in _FILES.items():
        if path := options.pop(name, None):
            option = f"--{name.replace('_', '-')}"
            errors.check_file(option, path, what)
            if (path.suffix == ".json") != (name == "tokenizer"):  # it decides how it is read
                raise bad_option(option, path, what, "its name says something else")
            found = path if path != words else found
    if words and not found:
        allowed = "with --gpt2-bpe, --sentencepiece-model or --tokenizer only"
        raise bad_option("--dict", words, allowed)
    if found or not (pieces or usual):
        return Vocabulary(found, dictionary=words) if found else None
    return Vocabulary(train=pieces or usual, at_most=pieces is None)
