"""The command ``clusterformer``: finds a sub-command's module, and reports mistakes in one line.

A sub-command is a module in this package with ``main(arguments) -> int``. It imports torch and
fairseq inside functions only, so that ``--help`` answers at once. It raises `UserError` for a
mistake of the user's.
"""

import atexit
import errno
import gc
import importlib
import logging
import os
import sys
from collections.abc import Callable, Sequence

from fairseq_clusterformer import __version__, moved
from fairseq_clusterformer.errors import UserError, bad_option, shortened

from .common import harmless

#: each sub-command's words, which are also its module's path in this package
COMMANDS = {
    "prepare lm": "text for language models: your own, enwik8, WikiText-103",
    "prepare translation": "pairs of sentences: your own, Multi30k, IWSLT14, WMT14",
    "prepare classification": "your own labelled texts and pairs",
    "prepare qa": "questions and documents: your own, SQuAD and bAbI",
    "generate": "continue a prompt with a language model",
    "translate": "translate raw text",
    "classify": "label texts",
    "answer": "answer questions from files: text, HTML, PDF and others",
    "evaluate translation": "BLEU of a translation model",
    "evaluate qa": "a reader's scores, and its answers as each corpus's own script reads them",
    "perplexity": "perplexity step by step, as the model has it when it writes",
    "draw": "draw what clusters together",
    "average": "average checkpoints",
    "convert": "make a clustered model from a dense one",
    "bundle": "put a checkpoint and all that it needs into one folder",
    "export": "write a model for Hugging Face's transformers, and back",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a sub-command. Returns the exit status: 0; 1 for a mistake in what was given, which is
    one line on stderr; 2 for a mistake in the command line; 130 after Ctrl-C."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    words: list[str] = []
    while " ".join(words) not in COMMANDS:
        below = [name for name in COMMANDS if name.split()[: len(words)] == words]
        if not arguments or arguments[0] in ("-h", "--help"):
            width, to = max(map(len, below)), sys.stdout if arguments else sys.stderr
            print(" ".join(["usage: clusterformer", *words, "COMMAND ...\n"]), file=to)
            print(*(f"  {name:{width}}  {COMMANDS[name]}" for name in below), sep="\n", file=to)
            print("\nclusterformer COMMAND --help says more of each.", file=to)
            return 0 if arguments else 2
        if not words and arguments[0] == "--version":
            print(__version__)
            return 0
        known = dict.fromkeys(name.split()[len(words)] for name in below)
        if arguments[0] not in known:
            what, place = " ".join([*words, arguments[0]]), moved.COMMANDS
            allowed = place[what] if what in place else ", ".join(known)
            problem = "it has moved to the repository's examples" if what in place else ""
            error = bad_option("COMMAND", what, allowed, problem)
            print(f"clusterformer: error: {error}", file=sys.stderr)
            return 2
        words.append(arguments.pop(0))
    command = importlib.import_module(f"fairseq_clusterformer.cli.{'.'.join(words)}").main
    return program(f"clusterformer {' '.join(words)}", command, arguments)


def _out_of_memory(error: BaseException) -> bool:
    """torch's error of a GPU is a class of its own, that of the CPU is not."""
    known = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    known = known or getattr(error, "errno", None) == errno.ENOMEM
    return known or any(text in str(error) for text in ("can't allocate memory", "bad_alloc"))


def program(name: str, command: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    """Run a command; errors are one line that begins with its name. Returns `main`'s status."""
    # Before fairseq is imported: one of its modules asks for every message down to DEBUG.
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    # What is imported stays: to search it for garbage, and once more at the end, takes a second.
    gc.set_threshold(10_000)
    atexit.register(lambda: "triton" in sys.modules or gc.freeze())  # which reports it as leaks
    if getattr(sys.stdout, "errors", "") == "strict" and hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # for names that are not UTF-8
    try:
        status = command(arguments)
        sys.stdout.flush()  # here, where a full disk is one line
        return status
    except (UserError, OSError, RuntimeError, MemoryError) as error:
        if _out_of_memory(error):
            error = UserError("out of memory; allowed: less text at once, or a smaller model")
        if isinstance(error, RuntimeError) and not str(error).startswith("Symlink loop"):
            raise  # of Path.resolve, which is no OSError before Python 3.13
        piped = isinstance(error, BrokenPipeError)  # whose reader has seen enough
        if piped or getattr(error, "errno", None) == errno.ENOSPC:
            # let Python's end not fail again on what stdout does not take
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not piped:
            problem = harmless(shortened(str(error)))
            print(f"{name}: error: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return 130  # the shell's status for a run ended by SIGINT
