"""Where every output is opened: files and folders that are written whole or not at all, by one run
at a time, and never over what is the user's.

What this program wrote has a mark, a line in a hidden file ``.clusterformer``: of a file, in its
folder; of a folder, in itself. What was changed since is the user's.

An output is made in a working folder, which a lock keeps for one run, and is renamed to its place.
A run that was killed leaves its working folder, known by the lock; the next one clears it.
"""

import errno
import json
import logging
import os
import shutil
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from fairseq_clusterformer import __version__
from fairseq_clusterformer.errors import UserError, bad_option, no_file, read_json

RECORD = "prepared.json"  # what a prepared folder says of itself
JOURNAL, LOCK = ".clusterformer", ".clusterformer.lock"
_KEPT = ("download", "parts", RECORD)  # what outlasts an interruption; the last is the recipe
_BEFORE = "before"  # a folder that is being replaced
#: how errors begin, or what is in them, where there is no room: Python's, safetensors' and torch's
_FULL = (*map(os.strerror, (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)), "inline_container")

Build = Callable[[Path, Path], dict]


def digest(path: Path, algorithm: str = "sha256") -> str:
    """Return a file's checksum in hexadecimal."""
    from hashlib import file_digest  # here, since it would slow down each --help

    with open(path, "rb") as file:
        return file_digest(file, algorithm).hexdigest()


def checksum(path: Path) -> str:
    """Return ``sha256:hex`` of a file, of a folder's names and contents, or of the archive that a
    path leads into. Raises UserError for a device or a pipe, which cannot be read twice."""
    if not path.is_dir():
        if (file := next((p for p in (path, *path.parents) if p.is_file()), None)) is None:
            raise bad_option("the file", path, "a plain file or a folder", no_file(path))
        return f"sha256:{digest(file)}"
    from hashlib import sha256

    total, own = sha256(), path / JOURNAL
    for file in sorted(file for file in path.rglob("*") if file.is_file() and file != own):
        total.update(f"{file.relative_to(path).as_posix()}\n{digest(file)}\n".encode())
    return f"sha256:{total.hexdigest()}"


# Marks


def written(path: Path) -> dict | None:
    """What the mark says of a file or a folder of this program's own that nobody has changed:
    ``name``, ``checksum`` and ``recipe``; None of any other."""
    path, marks = path.resolve(), []
    name, journal = (".", path / JOURNAL) if path.is_dir() else (path.name, path.parent / JOURNAL)
    with suppress(OSError):
        for line in journal.read_bytes().splitlines() if _is_own(journal) else ():
            with suppress(ValueError, TypeError, KeyError, RecursionError):  # half, or no mark
                mark = json.loads(line)
                mark = {key: mark[key] for key in ("name", "checksum", "recipe")}
                marks += [mark] * (mark["name"] == name)
    found = checksum(path) if marks else None
    return next((mark for mark in reversed(marks) if mark["checksum"] == found), None)


def _is_own(journal: Path) -> bool:
    """Whether it can be one; what is not there can."""
    if journal.is_symlink() or not journal.is_file():
        return not os.path.lexists(journal)
    return journal.read_bytes()[:1] in (b"", b"\n")


# Working folders


def hold(lock: Path, option: str, place: Path, what: str = "run", **how):
    """Take a lock until it is released or the process ends; return it. Raises UserError: another
    run has it. The `option` named the `place`; `how` is filelock's."""
    from filelock import FileLock, Timeout  # here, since it would slow down each --help

    # importing fairseq makes every logger print its debugging messages
    logging.getLogger("filelock").setLevel(logging.WARNING)
    try:
        (held := FileLock(lock, timeout=1, **how)).acquire()
    except Timeout:
        with suppress(OSError, UnicodeDecodeError):
            what += f" ({lock.read_text()[:80].strip()})"
        allowed = f"another {option}; or wait for that run"
        raise bad_option(option, place, allowed, f"another {what} is at work in it") from None
    lock.write_text(f"process {os.getpid()} on {os.uname().nodename}")
    return held


@contextmanager
def working(
    work: Path, option: str, kept: Collection[str] = _KEPT, place: Path | None = None
) -> Iterator[None]:
    """Hold the working folder beside an output; clear it before and after of what is not `kept`.
    Raises UserError: it is another run's or somebody's, or the `place` cannot be written to."""
    place, allowed = place or work, "a place to write to"
    try:
        if work.is_symlink() or not ((work / LOCK).is_file() or _is_new(work)):
            other = f"another {option}; or move this folder away"
            raise bad_option(option, work, other, "this working folder holds something else")
        while True:
            work.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):  # the run that had it has just removed it
                lock = hold(work / LOCK, option, place)
                break
        if (work / _BEFORE).exists() and not place.exists():  # killed between two renames
            os.rename(work / _BEFORE, place)
        _clear(work, kept)
    except OSError as error:
        raise bad_option(option, place, allowed, error.strerror) from None
    try:
        yield
    except Exception as error:
        if not any(text in f"{error} {error.__context__}" for text in _FULL):
            raise
        problem = "the disk is full, or a file must not be as large"
        raise bad_option(option, place, allowed, problem) from None
    finally:
        _clear(work, kept)
        if not any(any((work / name).glob("*")) for name in kept):
            _clear(work)
            shutil.rmtree(work, ignore_errors=True)
        lock.release()


def _clear(work: Path, kept: Collection[str] = ()) -> None:
    """Remove what is not kept; files first, so that no recipe is left with half of its parts."""
    for path in sorted(work.iterdir(), key=Path.is_dir):
        if path.name not in (LOCK, *kept):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


# Files and folders


def _is_new(path: Path) -> bool:
    return not path.exists() or (path.is_dir() and not any(path.iterdir()))


def check_utf8(option: str, path: Path) -> None:
    """Raise UserError for a name that some libraries cannot write to."""
    if os.fsencode(path.absolute()).decode(errors="replace") != str(path.absolute()):
        raise bad_option(option, path, "a name in UTF-8", "its name is not in UTF-8")


def check_output(
    option: str,
    path: Path,
    *,
    inputs: Iterable[Path] = (),
    force: bool = False,
    keep: bool = False,
    makes_folder: bool = False,
    folder: bool = False,
) -> None:
    """Raise UserError if a place for a file or a `folder`, which the `option` named, is an input,
    in no folder, something else, or the user's.

    Args:
        inputs: what is read, and never replaced under whatever name; in a folder of these,
            nothing is replaced but what this program wrote.
        force: replace a file that this program did not write, or that was changed since; or a
            folder that it did write.
        keep: without `force`, replace no file at all.
        makes_folder: the folder that it stands in may be missing.
    """
    what, place = "folder" if folder else "file", path.resolve()
    if not (makes_folder or folder or place.parent.is_dir()):
        allowed = "a file to write in a folder that exists"
        raise bad_option(option, path, allowed, "no such folder")
    if not path.exists() or (folder and _is_new(path)):
        return
    if not (path.is_dir() if folder else path.is_file()):
        problem = "it is no folder" if folder else no_file(path)
        raise bad_option(option, path, f"a {what} to write", problem)
    ours, given = written(path) is not None, [each for each in inputs if each.exists()]
    is_input = any(path.samefile(each) or place in each.resolve().parents for each in given)
    if is_input or (not ours and any(each.resolve() in place.parents for each in given)):
        raise bad_option(option, path, f"another {what}", "it is one of the inputs")
    if folder and not ours:
        problem = "it holds something else, or was changed since it was written"
        raise bad_option(option, path, "a new or empty folder", problem)
    if not force and (keep or folder or not ours):
        allowed = f"a new {what}, or --force to replace "
        allowed += "it" if folder else "what this program did not write"
        raise bad_option(option, path, allowed, "it exists")


@contextmanager
def whole_file(
    option: str,
    path: Path,
    *,
    recipe: dict | None = None,
    keep: bool = False,
    work: Path | None = None,
    kept: Collection[str] = (),
    **how,
) -> Iterator[Path]:
    """A path to write a file to, which becomes `path` when the context ends without an error.
    Raises UserError as :func:`check_output`, of which are `option` and `how` (with ``folder`` the
    path is a new folder); or the disk is full, or another run writes there.

    Args:
        keep: replace nothing, unless forced; what has the same content is left as it is.
        recipe: what it is made from, for :func:`written`.
        work, kept: another working folder, and what a run that is stopped leaves in it.
    """
    check_output(option, path, **how | {"force": how.get("force") or keep})
    path = path.resolve()  # what a link names is written, and the link stays
    tag = zlib.crc32(os.fsencode(path.name))
    work = work or path.with_name(f".{path.name[:50]}.{tag:08x}{JOURNAL}")
    new, before = work / "new", work / _BEFORE
    with working(work, option, kept, path):
        if how.get("folder"):
            new.mkdir()
        yield new
        if keep and path.exists() and checksum(new) == checksum(path):
            return
        check_output(option, path, keep=keep, **how)  # again, since writing can take hours
        name, folder = (".", new) if new.is_dir() else (path.name, path.parent)
        journal = folder / JOURNAL
        mark = json.dumps({"name": name, "checksum": checksum(new), "recipe": recipe})
        with suppress(OSError):  # somebody else's folder: what is written is not known again
            if _is_own(journal):
                with open(journal, "a") as file:
                    file.write(f"\n{mark}")  # a new line first, since a kill can leave half
        if new.is_dir() and not _is_new(path):
            os.rename(path, before)
        try:
            os.replace(new, path)
        except BaseException:
            if before.exists():
                os.rename(before, path)
            raise
        _clear(work)


#: the same of a folder, for its option OUT
whole_folder = partial(whole_file, "OUT", keep=True, folder=True)


def write_text(option: str, path: Path, text: str, **how) -> None:
    """Write a file of text; `how` as of :func:`whole_file`."""
    with whole_file(option, path, **how) as new:
        new.write_text(text, encoding="utf-8")


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """As :func:`whole_file`, over whatever was there: where no user gives the name."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield new
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)


def write_aside(path: Path, text: str) -> None:
    with replaced(path) as new:
        new.write_text(text, encoding="utf-8")


# Prepared folders


def make_folder(
    dest: Path, recipe: dict | Callable[[], dict], build: Build, force: bool = False
) -> dict | None:
    """Make the folder `dest` in one step, from what ``build(work, out)`` writes into ``out``, and
    return what its ``prepared.json`` says; None: it was there, made by the same recipe. Raises
    UserError if something else is there, or a source changes.

    The working folder is ``DEST.partial``. The run after one that was stopped goes on with its
    ``download`` and ``parts``, see `make_part`; with another recipe it says so, and begins anew.

    Args:
        recipe: the options, as JSON; a function is called again at the end: has a source changed?
        build: returns more for ``prepared.json``.
        force: replace a `dest` that was prepared before, and that nobody has changed.
    """
    dest, compute = dest.resolve(), recipe if callable(recipe) else lambda: recipe
    recipe = json.loads(json.dumps(compute()))
    work = dest.with_name(dest.name + ".partial")
    if not _is_new(dest):
        _check_prepared(dest, None if force else recipe)
        if not force:
            if (work / LOCK).exists():  # left by a run that was killed just before its end
                with working(work, "DEST", ()):
                    pass
            return None
    how = {"folder": True, "force": force, "work": work, "kept": _KEPT}
    with whole_file("DEST", dest, **how) as out:
        made_by, wanted = work / RECORD, {**recipe, "version": __version__}
        before = read_json(made_by) if made_by.exists() else {}
        if (work / "parts").exists() and before == wanted:
            print(f"going on with what is finished in {work}")
        elif (work / "parts").exists():
            print(f"beginning anew: {work} was made otherwise ({difference(before, wanted)})")
            _clear(work, ("download", out.name))
        write_aside(made_by, json.dumps(wanted))
        try:
            record = {"recipe": recipe, **build(work, out)}
            if json.loads(json.dumps(compute())) != recipe:
                raise UserError("a source has changed meanwhile; allowed: run it again")
        except UserError:  # its remedy is another recipe
            _clear(work, ("download",))
            raise
        files = sorted(path for path in out.rglob("*") if path.is_file())
        record["files"] = {path.relative_to(out).as_posix(): path.stat().st_size for path in files}
        if downloads := sorted((work / "download").glob("*")):
            record["downloads"] = {path.name: f"sha256:{digest(path)}" for path in downloads}
        (out / RECORD).write_text(json.dumps(record, indent=1) + "\n")
    return record


def make_part(work: Path, name: str, build: Build) -> tuple[Path, dict]:
    """Make the folder ``parts/NAME`` of a working folder, unless a run before has; return it, and
    what `build` returned."""
    part, own = work / "parts" / name, work / f"{name}.partial"
    if not part.exists():
        part.parent.mkdir(exist_ok=True)
        (out := own / "out").mkdir(parents=True)
        (out / RECORD).write_text(json.dumps(build(own, out)))
        os.rename(out, part)
        shutil.rmtree(own)
    return part, read_json(part / RECORD)


def copy_part(part: Path, out: Path) -> None:
    shutil.copytree(part, out, ignore=lambda *_: [RECORD], dirs_exist_ok=True)


def _check_prepared(dest: Path, recipe: dict | None) -> None:
    try:
        record = read_json(dest / RECORD)
        files, before = dict(record["files"]), dict(record["recipe"])
    except (OSError, ValueError, KeyError, TypeError):
        allowed = "a new or empty folder, or one that this command has prepared"
        raise bad_option("DEST", dest, allowed, "holds something else") from None
    there = {name: (dest / name).is_file() and (dest / name).stat().st_size for name in files}
    problem = "" if there == files else f"{difference(files, there)}, no longer as prepared"
    if before != recipe:
        problem = f"was prepared otherwise ({difference(before, recipe)})" if recipe else ""
    if problem:
        raise bad_option("DEST", dest, "another folder; or remove this one", problem)


def difference(before: dict, recipe: dict) -> str:
    """Say where two recipes differ first: the innermost key, and both values."""
    key = min(key for key in before.keys() | recipe.keys() if before.get(key) != recipe.get(key))
    was, wanted = before.get(key), recipe.get(key)
    if isinstance(was, dict) and isinstance(wanted, dict):
        return f"{key} {difference(was, wanted)}"
    texts = ("none" if value is None else json.dumps(value) for value in (was, wanted))
    return "{}: {:.60} then, {:.60} now".format(key, *texts)
