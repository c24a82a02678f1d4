"""One form for a user's mistake."""

import json
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_LONGEST = 800  # characters of an error: a file, or what a library says of it, may be in it


class UserError(Exception):
    """A mistake of the user's, reported without a traceback: a line for each message."""

    def __init__(self, *messages: str):
        super().__init__("\n  ".join(map(shortened, messages)))


def shortened(message: str) -> str:
    """A message of a bounded length: its beginning and its end."""
    return message if len(message) <= _LONGEST else f"{message[:500]} ... {message[-250:]}"


def bad_option(option: str, value: object, allowed: str, problem: str = "") -> UserError:
    """The one form of an error: ``--option is VALUE: problem; allowed: what is``. The problem is
    left out where the value shows it; positional arguments are named as in ``--help``."""
    return UserError(f"{option} is {value}{problem and f': {problem}'}; allowed: {allowed}")


def refused(option: str, value: object, allowed: str, problem: str = "") -> ValueError:
    """The same, of models and their layers, which have no command line of their own."""
    return ValueError(str(bad_option(option, value, allowed, problem)))


def wrong(place: object, problem: object, allowed: str) -> UserError:
    """The one form of an error in a file."""
    return UserError(f"{place}: {problem}; allowed: {allowed}")


def check_no_device(option: str, path: Path, allowed: str) -> None:
    """Raise UserError if a path is that of a device, which may never end; a terminal does."""
    with suppress(OSError):  # it is not there: whoever opens it says so
        if stat.S_ISCHR(path.stat().st_mode) or stat.S_ISBLK(path.stat().st_mode):
            with open(path, "rb", buffering=0) as file:
                if not file.isatty():
                    raise bad_option(option, path, allowed, "it is a device")


def check_file(option: str, path: Path, allowed: str) -> None:
    """Raise UserError if a path is not that of a plain file, which can be read twice."""
    if not path.is_file():
        raise bad_option(option, path, allowed, no_file(path))


def no_file(path: Path) -> str:
    """Why a path is not that of a plain file."""
    if path.is_dir():
        return "it is a folder"
    return "it is no plain file" if path.exists() else "no such file"


def check_no_pipes(option: str, folder: Path) -> None:
    """Raise UserError if a folder, or one in it, has a pipe or a device, which may never end."""
    for file in (*folder.glob("*"), *folder.glob("*/*")):
        with suppress(OSError):
            mode = file.stat().st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                problem = f"{file.relative_to(folder)} is a pipe or a device, and no file"
                raise bad_option(option, folder, "a folder of files", problem)


def first_line(error: BaseException) -> str:
    """What an error says, or what it is called."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def read_json(path: Path) -> Any:
    """What a file of JSON holds; OSError or ValueError: it is not there, or holds none."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError("lists in lists, too many to read") from None


@contextmanager
def reading(path: Path, what: str) -> Iterator[None]:
    """Lets a damaged file be one line that names it and `what` it is to be: UserError, instead of
    what a library raises, or exits with, while it reads the file."""
    try:
        yield
    except (Exception, SystemExit) as error:
        if isinstance(error, UserError):
            raise
        problem = f"cannot be read ({first_line(error)})"
        raise bad_option("the file", path, what, problem) from None
