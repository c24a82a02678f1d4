"""Folders that are complete or not there at all."""

import errno
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fairseq_clusterformer import __version__
from fairseq_clusterformer.data import RECORD
from fairseq_clusterformer.errors import UserError, bad_option
from fairseq_clusterformer.outputs import check_holds_only, digest, write_aside

Build = Callable[[Path, Path], dict]

# In the working folder: what marks it as ours and says whose parts it has, its lock, and what
# outlasts an interruption.
_MARK, _LOCK = ".clusterformer", ".clusterformer.lock"
_KEPT = ("download", "parts")


def make_folder(dest: Path, recipe: dict, build: Build, force: bool = False) -> dict | None:
    """Make the folder `dest` in one step, from what ``build(work, out)`` writes into ``out``.

    The working folder is ``DEST.partial``; its ``out`` is renamed to DEST when it is complete. The
    run after one that was stopped goes on with its ``download`` and ``parts``, see `make_part`;
    with another recipe it says so, and begins anew.

    Args:
        recipe: the options, as JSON; they go into ``prepared.json``.
        build: returns more for ``prepared.json``.
        force: replace a `dest` that was prepared before and holds no other file.

    Returns the content of ``prepared.json``, or None if `dest` was there, made by the same recipe;
    raises UserError if something else is there.
    """
    dest, recipe = resolved("DEST", dest), json.loads(json.dumps(recipe))

    def checked(work: Path, out: Path) -> dict:
        _check_parts(work, {**recipe, "version": __version__})
        try:
            return build(work, out)
        except UserError:  # its remedy is another recipe
            _drop_parts(work)
            raise

    with _disk_full_told(dest):
        return _made(dest, recipe, checked, force)


def make_part(work: Path, name: str, build: Build) -> tuple[Path, dict]:
    """Make the folder ``parts/NAME`` of a working folder, unless a run before has; return it, and
    what `build` returned. It may have parts of its own, which go when it is complete."""
    part = work / "parts" / name
    _made(part, {}, build)
    return part, json.loads((part / RECORD).read_text())


def copy_part(part: Path, out: Path) -> None:
    """Copy what `make_part` made into a folder."""
    shutil.copytree(part, out, ignore=lambda *_: [RECORD], dirs_exist_ok=True)


def _made(dest: Path, recipe: dict, build: Build, force: bool = False) -> dict | None:
    work = dest.with_name(dest.name + ".partial")
    is_new = not dest.exists() or (dest.is_dir() and not any(dest.iterdir()))
    before = None if is_new else _read_record(dest)
    if before and not force:
        _check_prepared(dest, recipe, before)
        if (work / _MARK).exists():  # left by a run that was killed just before its end
            with locked(work):
                _clear(work, ())
        return None
    if before:
        own = {*before["files"], RECORD}
        check_holds_only("DEST", dest, own)
    with locked(work):
        out = work / "out"
        out.mkdir()
        record = {"recipe": recipe, **build(work, out)}
        files = sorted(path for path in out.rglob("*") if path.is_file())
        record["files"] = {path.relative_to(out).as_posix(): path.stat().st_size for path in files}
        if downloads := sorted((work / "download").glob("*")):
            record["downloads"] = {path.name: f"sha256:{digest(path)}" for path in downloads}
        (out / RECORD).write_text(json.dumps(record, indent=1) + "\n")
        if before:
            check_holds_only("DEST", dest, own)  # again, since making the folder can take hours
            os.rename(dest, work / "before")
        os.rename(out, dest)
        _clear(work, ())
    return record


def _check_parts(work: Path, recipe: dict) -> None:
    """Clear the parts that another recipe made; the mark says which one did."""
    mark = work / _MARK
    if (work / "parts").exists():
        try:
            before = dict(json.loads(mark.read_text()))
        except (ValueError, TypeError):
            before = {}
        if before == recipe:
            print(f"going on with what is finished in {work}")
            return
        print(f"beginning anew: {work} was made otherwise ({difference(before, recipe)})")
        _drop_parts(work)
    write_aside(mark, json.dumps(recipe))


def _drop_parts(work: Path) -> None:
    if (work / "parts").exists():
        os.rename(work / "parts", work / "dropped")  # at once; a run that is killed clears it
        shutil.rmtree(work / "dropped")


def resolved(option: str, path: Path) -> Path:
    """Return a path without links; raises UserError if it is a link to itself."""
    try:
        return path.resolve()
    except (OSError, RuntimeError):  # the latter is pathlib's
        raise bad_option(option, path, "a file or a folder", "it is a link to itself") from None


def _read_record(dest: Path) -> dict:
    try:
        record = json.loads((dest / RECORD).read_text())
        return {key: dict(record[key]) for key in ("files", "recipe")}
    except (OSError, ValueError, KeyError, TypeError):
        allowed = "a new or empty folder, or one that this command has prepared"
        raise bad_option("DEST", dest, allowed, "holds something else") from None


def _check_prepared(dest: Path, recipe: dict, record: dict) -> None:
    files, before = record["files"], record["recipe"]
    for name, size in files.items():
        if not (dest / name).is_file() or (dest / name).stat().st_size != size:
            problem = f"{name} is no longer as prepared"
            raise bad_option("DEST", dest, "another folder; or remove this one", problem)
    if recipe != before:
        problem = f"was prepared otherwise ({difference(before, recipe)})"
        raise bad_option("DEST", dest, "another folder; or remove this one", problem)


def difference(before: dict, recipe: dict) -> str:
    """Say where two recipes differ first: the innermost key, and both values."""
    keys = sorted(before.keys() | recipe.keys())
    key = next(key for key in keys if before.get(key) != recipe.get(key))
    was, wanted = before.get(key), recipe.get(key)
    if isinstance(was, dict) and isinstance(wanted, dict):
        return f"{key} {difference(was, wanted)}"
    return f"{key}: {_short(was)} then, {_short(wanted)} now"


def _short(value: object, most: int = 60) -> str:
    text = "none" if value is None else json.dumps(value)
    return text if len(text) <= most else text[: most - 3] + "..."


@contextmanager
def locked(work: Path, option: str = "DEST") -> Iterator[None]:
    """Lock the working folder and clear it; remove it at the end, unless something is kept. The
    `option` named the folder beside it."""
    from filelock import FileLock, Timeout  # here, since it would slow down each --help

    # importing fairseq makes every logger print its debugging messages
    logging.getLogger("filelock").setLevel(logging.WARNING)
    try:
        work.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise bad_option(option, work, "a place to write to", str(error.strerror)) from None
    if not (work / _MARK).exists() and any(work.iterdir()):
        allowed = f"another {option}; or move this folder away"
        raise bad_option(option, work, allowed, "this working folder holds something else")
    (work / _MARK).touch()
    lock = FileLock(work / _LOCK, timeout=1)  # the workers of a run that was killed hold it
    try:
        lock.acquire()
    except Timeout:
        allowed = f"another {option}; or wait for that run"
        raise bad_option(option, work, allowed, "another run is at work in it") from None
    try:
        _clear(work)
        yield
    finally:
        _clear(work)
        lock.release()
        if not any(any((work / kept).glob("*")) for kept in _KEPT):
            shutil.rmtree(work)


@contextmanager
def _disk_full_told(dest: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise bad_option("DEST", dest, "a place to write to", error.strerror) from None


def _clear(work: Path, kept: Sequence[str] = _KEPT) -> None:
    for path in work.iterdir():
        if path.is_dir() and path.name not in kept:
            shutil.rmtree(path)
        elif path.is_file() and path.name not in (_MARK, _LOCK):
            path.unlink()
