"""Where every output is opened: files and folders that are written whole or not at all, and never
over what is the user's.

A hidden file ``.clusterformer`` in the folder of an output has a line for each file that was
written there: its name, its checksum and, where it takes long to make, what it was made from. So
a file is known as this program's own as long as nobody has changed it.
"""

import errno
import fcntl
import glob
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fairseq_clusterformer.errors import UserError, bad_option

JOURNAL = ".clusterformer"
_SUFFIX = ".clusterformer"  # of a working folder
_INSIDE = {"new", "before", "scratch"}  # what a working folder can hold
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def digest(path: Path, algorithm: str = "sha256") -> str:
    """Return a file's checksum in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def checksum(path: Path) -> str:
    """Return ``sha256:hex`` of a file, of a folder's names and contents, or of an archive.

    Args:
        path: of a file or folder, or what leads into an archive.
    """
    if not path.is_dir():
        return f"sha256:{digest(next(p for p in (path, *path.parents) if p.is_file()))}"
    total = hashlib.sha256()
    for file in sorted(file for file in path.rglob("*") if file.is_file()):
        total.update(f"{file.relative_to(path).as_posix()}\n{digest(file)}\n".encode())
    return f"sha256:{total.hexdigest()}"


def check_output(
    option: str,
    path: Path,
    *,
    inputs: Iterable[Path] = (),
    force: bool = False,
    keep: bool = False,
    makes_folder: bool = False,
) -> None:
    """Refuse a place for a file that must not be written to.

    Args:
        option: what named it.
        inputs: files that are read, which are never replaced under whatever name; in a folder,
            nothing is replaced but what this program wrote.
        force: replace a file that this program did not write, or that was changed since.
        keep: without `force`, replace no file at all.
        makes_folder: the folder that it stands in may be missing.

    Raises:
        UserError: if the place is an input, no plain file, in no folder, or the user's file.
    """
    try:
        folder = path.resolve().parent
        if not makes_folder and not folder.is_dir():
            raise bad_option(
                option, path, "a file to write in a folder that exists", "no such folder"
            )
        if not path.exists():
            return
        if not path.is_file():
            problem = "it is a folder" if path.is_dir() else "it is no plain file"
            raise bad_option(option, path, "a file to write", problem)
        inputs = [each for each in inputs if each.exists()]
        ours = written(path) is not None
        within = [each for each in inputs if each.resolve() in path.resolve().parents]
        if any(path.samefile(each) for each in inputs) or (within and not ours):
            raise bad_option(option, path, "another file", "it is one of the inputs")
    except OSError as error:
        raise bad_option(option, path, "a file to write", error.strerror) from None
    except RuntimeError:  # of pathlib
        raise bad_option(option, path, "a file to write", "it is a link to itself") from None
    if not force and (keep or not ours):
        allowed = "a new file, or --force to replace what this program did not write"
        raise bad_option(option, path, allowed, "it exists")


def written(path: Path) -> dict | None:
    """What the journal says of a file of this program's own that nobody has changed.

    Returns:
        With ``name``, ``sha256`` and ``recipe``; None of any other file.
    """
    path, found = path.resolve(), None
    with suppress(OSError, UnicodeDecodeError):
        for line in (path.parent / JOURNAL).read_text(encoding="utf-8").splitlines():
            with suppress(ValueError, TypeError, KeyError):  # a line that was not finished
                entry = json.loads(line)
                if entry["name"] == path.name:
                    found = found or digest(path)
                    if entry["sha256"] == found:
                        return {"recipe": None} | entry
    return None


def _note(path: Path, recipe: dict | None, new: Path) -> None:
    """Add a line to the journal, in one write; a new line first, since a kill can leave half."""
    entry = {"name": path.name, "sha256": digest(new)}
    entry |= {} if recipe is None else {"recipe": recipe}
    with suppress(OSError):  # somebody else's: the file is written, but not known again
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        with open(os.open(path.parent / JOURNAL, flags, 0o666), "r+b", buffering=0) as journal:
            if journal.read(1) in (b"", b"\n"):
                journal.write(f"\n{json.dumps(entry)}".encode())


@contextmanager
def whole_file(
    option: str,
    path: Path,
    *,
    inputs: Collection[Path] = (),
    force: bool = False,
    keep: bool = False,
    makes_folder: bool = False,
    recipe: dict | None = None,
) -> Iterator[Path]:
    """A path to write a file to, which becomes `path` when the context ends without an error.

    Args:
        option, inputs, force, makes_folder: as of :func:`check_output`.
        keep: replace no file, unless forced; one with the same content is left as it is.
        recipe: what the file is made from, for :func:`written`.

    Raises:
        UserError: as of :func:`check_output`; or the disk is full.
    """
    how = {"inputs": inputs, "makes_folder": makes_folder}
    check_output(option, path, force=force or keep, **how)
    path = path.resolve()  # what a link names is written, and the link stays
    with _aside(option, path) as work:
        yield work / "new"
        new = work / "new"
        if keep and path.is_file() and digest(new) == digest(path):
            return
        # again, since writing can take hours
        check_output(option, path, force=force, keep=keep, **how)
        if not keep:
            _note(path, recipe, new)
        os.replace(new, path)


def write_text(option: str, path: Path, text: str, **how) -> None:
    """Write a file of text; `how` as of :func:`whole_file`."""
    with whole_file(option, path, **how) as new:
        new.write_text(text, encoding="utf-8")


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """As :func:`whole_file`, over whatever was there: where no user gives the name."""
    with _aside("the output", path) as work:
        yield work / "new"
        os.replace(work / "new", path)


def write_aside(path: Path, text: str) -> None:
    """Write a whole file of text or none of it, over whatever was there."""
    with replaced(path) as new:
        new.write_text(text, encoding="utf-8")


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


def check_new(
    out: Path,
    force: bool,
    *,
    ours: bool,
    files: Callable[[], Collection[str]],
    inputs: Iterable[Path] = (),
    early: bool = False,
) -> None:
    """Refuse a folder OUT that is there already.

    Args:
        force: it may be replaced if it is ours.
        ours: it bears the mark of what wrote it.
        files: returns the files that a folder of ours has.
        inputs: what is read; a folder that holds some of it is never replaced.
        early: what is to be written may be the same as what is there.

    Raises:
        UserError: unless `out` is new or empty, or ours and may be replaced and holds nothing
            else.
    """
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if any(out.resolve() in each.resolve().parents for each in inputs):
        raise bad_option("OUT", out, "another folder", "it holds one of the inputs")
    if not ours:
        raise bad_option("OUT", out, "a new or empty folder", "it holds something else")
    try:
        check_holds_only("OUT", out, files())
        same = early
    except UserError:
        if force:
            raise
        same = False
    if not force and not same:
        raise bad_option("OUT", out, "a new folder, or --force to replace it", "it exists")


@contextmanager
def whole_folder(out: Path, check: Callable[[], None]) -> Iterator[Path]:
    """A folder to write to, which becomes `out` when the context ends without an error; until
    then, nothing is there but what was before. A folder with the same content is left as it is.

    Args:
        check: refuses what must not be replaced; called at the end, since writing takes a while.

    Raises:
        UserError: if there is no place for it, or the disk is full.
    """
    out = out.absolute()
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = f"cannot make the folder {error.filename} ({error.strerror})"
        raise bad_option("OUT", out, "a place to write to", problem) from None
    with _aside("OUT", out) as work:
        new, before = work / "new", work / "before"
        new.mkdir()
        yield new
        if out.is_dir() and checksum(out) == checksum(new):
            return
        check()
        if out.exists():
            os.rename(out, before)
        try:
            os.rename(new, out)
        except BaseException:
            if before.exists():
                os.rename(before, out)
            raise


@contextmanager
def _aside(option: str, path: Path) -> Iterator[Path]:
    """A working folder next to `path`, of this run alone; those that killed runs left go."""
    path = path.absolute()
    prefix = f".{path.name[:50]}."
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            work = Path(tempfile.mkdtemp(_SUFFIX, prefix, path.parent))
            handle = os.open(work, os.O_RDONLY)
            with suppress(OSError):  # a file system without locks: then nothing is cleared either
                fcntl.flock(handle, fcntl.LOCK_EX)
            if work.exists():  # else another run has just taken it for left behind
                break
            os.close(handle)
        try:
            yield work
            for left in path.parent.glob(f"{glob.escape(prefix)}????????{_SUFFIX}"):
                _clear(left)
        finally:
            shutil.rmtree(work, ignore_errors=True)
            os.close(handle)
    except UserError:
        raise
    except Exception as error:
        if (problem := _of_writing(error, path.parent)) is None:
            raise
        raise bad_option(option, path, "a place to write to", problem) from None


def _clear(work: Path) -> None:
    """Remove a working folder, unless it is in use or holds what we do not make."""
    with suppress(OSError):
        handle = os.open(work, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if {path.name for path in work.iterdir()} <= _INSIDE:
                shutil.rmtree(work)
        finally:
            os.close(handle)


def _of_writing(error: BaseException | None, folder: Path) -> str | None:
    """What hindered writing in a folder; None: the error is about something else. torch and
    safetensors have errors of their own, of which only the text says so."""
    if isinstance(error, OSError) and error.errno not in _FULL:
        place = Path(os.fsdecode(error.filename or folder))
        return (
            error.strerror
            if folder in place.parents or place in (folder, *folder.parents)
            else None
        )
    while error:
        for full in map(os.strerror, _FULL):
            if full in str(error):
                return full
        if "inline_container" in str(error):  # of torch
            return "the disk is full, or a file must not be as large"
        error = error.__context__
    return None
