"""Folders that are complete or not there at all, and the downloads and checksums they need."""

import fcntl
import hashlib
import http.client
import json
import os
import pickle
import shutil
import tarfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

RECORD = "prepared.json"
_LOCK = ".prepare_lm"
# What loading something else than a checkpoint or its data ends in.
LOADING = (OSError, EOFError, RuntimeError, LookupError, AttributeError, TypeError, ValueError)
LOADING = (*LOADING, AssertionError, pickle.UnpicklingError)


class UserError(Exception):
    """A mistake of the user's, told in one line without a traceback."""


@dataclass(frozen=True)
class Archive:
    """A corpus as its authors offer it.

    Checksums are written ``algorithm:hex``; None where nobody vouches for one.

    Args:
        url: of a zip or tar file, or of one file that is wanted as it is.
        checksum: of that file.
        members: the names of the files wanted from it (or its own) and their checksums.
    """

    url: str
    checksum: str | None
    members: dict[str, str | None]

    @property
    def name(self) -> str:
        return self.url.rsplit("/", 1)[-1]


def write_aside(path: Path, text: str) -> None:
    """Write a whole file or none of it."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


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


def verify(path: Path, checksum: str | None) -> None:
    """Check a file's checksum, written ``algorithm:hex``; nothing to check if None.

    Raises:
        UserError: saying what it is and what it must be.
    """
    if checksum is None:
        return
    algorithm, expected = checksum.split(":")
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, algorithm).hexdigest()
    if found != expected:
        raise UserError(
            f"{path}: {algorithm} of its {path.stat().st_size:,} bytes is {found}, "
            f"must be {expected}"
        )


def obtain(archive: Archive, source: Path | None, work: Path) -> dict[str, Path]:
    """Return the archive's members as files whose checksums are right.

    Args:
        source: the folder of --source, which holds the members (right in it or in a folder of
            its own, as the archive has it) or the archive; None to download the archive.
        work: where to download and unpack.
    """
    paths = {}
    for name, checksum in archive.members.items():
        if source is None:
            paths[name] = _unpack(download(archive, work / "download"), name, work)
        elif places := sorted(source.glob(name)) + sorted(source.glob(f"*/{name}")):
            paths[name] = places[0]
        elif (source / archive.name).is_file():
            paths[name] = _unpack(source / archive.name, name, work)
        else:
            raise UserError(
                f"--source {source}: {'no such folder' if not source.is_dir() else 'not found'}; "
                f"allowed is a folder that holds {', '.join(archive.members)} or {archive.name}"
            )
        verify(paths[name], checksum)
    return paths


def _unpack(path: Path, name: str, work: Path) -> Path:
    """Return the file `name` out of the archive `path`, or `path` itself if it is that file."""
    if path.name == name:
        return path
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                _copy_member(archive.namelist(), archive.open, path, work / name)
        else:
            with tarfile.open(path) as archive:
                _copy_member(archive.getnames(), archive.extractfile, path, work / name)
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError) as error:
        raise UserError(f"{path}: not a sound zip or tar file: {error}") from None
    return work / name


def _copy_member(
    inside: Sequence[str], opener: Callable[[str], IO[bytes]], path: Path, target: Path
) -> None:
    found = [member for member in inside if Path(member).name == target.name]
    if not found:
        raise UserError(f"{path}: holds no {target.name}")
    with opener(found[0]) as source, open(target, "wb") as file:
        shutil.copyfileobj(source, file, 1 << 20)


def download(archive: Archive, folder: Path) -> Path:
    """Download the archive into `folder`, going on where an earlier try was broken off.

    Raises:
        UserError: if it cannot be had or is not what it must be.
    """
    path, part = folder / archive.name, folder / f"{archive.name}.part"
    if path.exists():
        return path
    folder.mkdir(exist_ok=True)
    try:
        _fetch(archive.url, part)
    except (OSError, http.client.HTTPException) as error:
        raise UserError(
            f"could not download {archive.url}: {getattr(error, 'reason', error)}; run again to "
            "go on, or get it elsewhere and pass --source DIR"
        ) from None
    try:
        verify(part, archive.checksum)
    except UserError as error:
        part.unlink()
        raise UserError(
            f"{error} (downloaded from {archive.url}, removed); run again, or get it elsewhere "
            "and pass --source DIR"
        ) from None
    part.rename(path)
    return path


def _fetch(url: str, part: Path) -> None:
    from tqdm import tqdm

    start = part.stat().st_size if part.exists() else 0
    # Some hosts turn Python's own user agent away.
    headers = {"User-Agent": "Mozilla/5.0 (fairseq_clusterformer)", "Range": f"bytes={start}-"}
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60)
    except urllib.error.HTTPError as error:
        if start and error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return  # All of it is here; its checksum tells whether it is right.
        raise
    with response:
        if response.status != http.HTTPStatus.PARTIAL_CONTENT:
            start = 0
        size = start + int(response.headers.get("Content-Length", 0))
        progress = tqdm(
            desc=part.stem, initial=start, total=size, unit="B", unit_scale=True, disable=None
        )
        with open(part, "ab" if start else "wb") as file, progress:
            while block := response.read(1 << 20):
                progress.update(file.write(block))
    if part.stat().st_size < size:
        raise OSError(f"broken off after {part.stat().st_size:,} of {size:,} bytes")
