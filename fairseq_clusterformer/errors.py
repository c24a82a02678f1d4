"""One form for a user's mistake, and files that are written whole or not at all."""

import os
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path


class UserError(Exception):
    """A mistake of the user's, reported in one line without a traceback."""


def bad_option(option: str, value: object, allowed: str, problem: str = "") -> UserError:
    """The one form of an error: ``--option is VALUE: problem; allowed: what is``.

    Args:
        option: as the user gave it, such as ``--data``, or the name of a positional argument.
        value: what was given.
        allowed: what would be right.
        problem: what is wrong with it, where the value alone does not show it.
    """
    return UserError(f"{option} is {value}{problem and f': {problem}'}; allowed: {allowed}")


@contextmanager
def reading(path: Path, what: str) -> Iterator[None]:
    """Lets a damaged file be one line that names it.

    Args:
        what: it is to be, such as "a sentencepiece model".

    Raises:
        UserError: instead of what a library raises, or exits with, while it reads the file.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        if isinstance(error, UserError):
            raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise bad_option("the file", path, what, f"cannot be read ({reason})") from None


def check_holds_only(option: str, folder: Path, own: Collection[str]) -> None:
    """Refuse to replace a folder with files that are not ours.

    Args:
        option: what named `folder`.
        own: our files, as paths inside `folder` with slashes.

    Raises:
        UserError: if another file is there; it names the first.
    """
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if name not in own and (path.is_symlink() or not path.is_dir()):
            allowed = f"another folder; or move {name} away"
            raise bad_option(option, folder, allowed, f"holds {name}, which --force would delete")


def check_new(out: Path, force: bool, *, ours: bool, files: Callable[[], Collection[str]]) -> None:
    """Refuse a folder OUT that is there already.

    Args:
        force: it may be replaced if it is ours.
        ours: it bears the mark of what wrote it.
        files: returns the files that a folder of ours has.

    Raises:
        UserError: unless `out` is new or empty, or ours and may be replaced and holds nothing
            else.
    """
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not ours:
        raise bad_option("OUT", out, "a new or empty folder", "it holds something else")
    if not force:
        raise bad_option("OUT", out, "a new folder, or --force to replace it", "it exists")
    check_holds_only("OUT", out, files())


def write_aside(path: Path, text: str) -> None:
    """Write a whole file or none of it."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


@contextmanager
def whole_folder(out: Path, check: Callable[[], None]) -> Iterator[Path]:
    """A folder to write to, which becomes `out` when the context ends without an error; until
    then, nothing is there but what was before.

    Args:
        check: refuses what must not be replaced; called again at the end, since writing takes a
            while.

    Raises:
        UserError: if there is no place for it.
    """
    out = out.absolute()
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        aside = tempfile.TemporaryDirectory(prefix=f"{out.name}.partial.", dir=out.parent)
    except OSError as error:
        problem = f"cannot make the folder {error.filename} ({error.strerror})"
        raise bad_option("OUT", out, "a place to write to", problem) from None
    with aside as work:
        new = Path(work) / "new"
        new.mkdir()
        yield new
        check()
        before = Path(work) / "before"
        if out.exists():
            os.rename(out, before)
        try:
            os.rename(new, out)
        except BaseException:
            if before.exists():
                os.rename(before, out)
            raise
