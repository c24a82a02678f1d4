"""Folders that are complete or not there at all."""

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fairseq_clusterformer.errors import UserError

RECORD = "prepared.json"
_LOCK = ".prepare_lm"


def make_folder(
    dest: Path, recipe: dict, build: Callable[[Path, Path], dict], force: bool = False
) -> dict | None:
    """Make the folder `dest` in one step, from what ``build(work, out)`` writes into ``out``.

    Everything is written to the folder ``DEST.partial`` beside, whose ``out`` is renamed when it
    is complete. An interrupted run leaves only that folder, and the next run clears it, keeping
    finished and half-finished downloads (``work / "download"``).

    Args:
        recipe: what was asked for, as JSON; it goes into ``prepared.json``.
        build: returns more to put into ``prepared.json``.
        force: replace a `dest` that was prepared before, when the new one is complete.

    Returns:
        the content of ``prepared.json``, or None if `dest` was there, made by the same recipe.

    Raises:
        UserError: if something else is there.
    """
    dest, recipe = dest.resolve(), json.loads(json.dumps(recipe))
    work = dest.with_name(dest.name + ".partial")
    if dest.exists() and not (dest.is_dir() and not any(dest.iterdir())):
        before = _read_record(dest)
    else:
        before = None
    if before and not force:
        _check_prepared(dest, recipe, before)
        if (work / _LOCK).exists():  # of a run that was killed when all but done
            with _locked(work):
                shutil.rmtree(work / "download", ignore_errors=True)
        return None
    with _locked(work):
        out = work / "out"
        out.mkdir()
        record = {"recipe": recipe, **build(work, out)}
        files = sorted(path for path in out.rglob("*") if path.is_file())
        record["files"] = {str(path.relative_to(out)): path.stat().st_size for path in files}
        (out / RECORD).write_text(json.dumps(record, indent=1) + "\n")
        if before:
            os.rename(dest, work / "before")
        os.rename(out, dest)
        shutil.rmtree(work / "download", ignore_errors=True)
    return record


def _read_record(dest: Path) -> dict:
    try:
        record = json.loads((dest / RECORD).read_text())
        return {key: dict(record[key]) for key in ("files", "recipe")}
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(
            f"DEST {dest}: is something else; allowed is a new or empty folder, or one that "
            "this script has prepared"
        ) from None


def _check_prepared(dest: Path, recipe: dict, record: dict) -> None:
    files, before = record["files"], record["recipe"]
    for name, size in files.items():
        if not (dest / name).is_file() or (dest / name).stat().st_size != size:
            raise UserError(
                f"DEST {dest}: {name} is no longer as prepared; remove DEST, run again"
            )
    if recipe != before:
        where, was, wanted = _first_difference(before, recipe)
        raise UserError(
            f"DEST {dest}: was prepared with {where} {_short(was)}, not {_short(wanted)}; choose "
            "another DEST, or remove it"
        )


def _first_difference(before: dict, recipe: dict) -> tuple[str, object, object]:
    """Where two recipes differ, as narrowly as it can be said, and what each has there."""
    keys = sorted(before.keys() | recipe.keys())
    key = next(key for key in keys if before.get(key) != recipe.get(key))
    was, wanted = before.get(key), recipe.get(key)
    if not (isinstance(was, dict) and isinstance(wanted, dict)):
        return key, was, wanted
    where, was, wanted = _first_difference(was, wanted)
    return f"{key} {where}", was, wanted


def _short(value: object, most: int = 60) -> str:
    text = json.dumps(value)
    return text if len(text) <= most else text[: most - 3] + "..."


@contextmanager
def _locked(work: Path) -> Iterator[None]:
    """Own the working folder: empty at first but for downloads, and removed when all is well."""
    try:
        work.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"DEST: cannot write {work}: {error.strerror}") from None
    if not (work / _LOCK).exists() and any(path.name != "download" for path in work.iterdir()):
        raise UserError(f"DEST: its working folder {work} holds something else; move it away")
    with open(work / _LOCK, "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"DEST: another run is at work in {work}; let it finish") from None
        _clear(work)
        try:
            yield
        finally:
            _clear(work)
            if not any((work / "download").glob("*")):
                shutil.rmtree(work)


def _clear(work: Path) -> None:
    for path in work.iterdir():
        if path.is_dir() and path.name != "download":
            shutil.rmtree(path)
        elif path.is_file() and path.name != _LOCK:
            path.unlink()
