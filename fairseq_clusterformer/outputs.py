"""Where every output is opened: files and folders that are written whole or not at all, by one run
at a time, and never over what is the user's.

What this program wrote has a mark, a line in a hidden file ``.clusterformer``: of a file, in its
folder; of a folder, in itself. It has a name, a checksum and, where it takes long to make, what
that was made from. It is signed with a secret of this user's, so that a mark that came with other
people's files counts for nothing. What was changed since is the user's.

An output is made in a working folder, which a lock keeps for one run, and takes its place in one
step. A run that was killed leaves its working folder; the next one clears it.
"""

import ctypes
import errno
import functools
import hashlib
import hmac
import json
import logging
import os
import secrets
import shutil
import socket
import stat
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from fairseq_clusterformer import __version__
from fairseq_clusterformer.errors import UserError, bad_option, no_file, read_json

RECORD = "prepared.json"  # what a prepared folder says of itself
JOURNAL, _LOCK = ".clusterformer", ".lock"
_ITSELF = "."  # the name of a folder in its own journal
_KEPT = ("download", "parts")  # what outlasts an interruption
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

Build = Callable[[Path, Path], dict]


def digest(path: Path, algorithm: str = "sha256") -> str:
    """Return a file's checksum in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def checksum(path: Path) -> str:
    """Return ``sha256:hex`` of a file, of a folder's names and contents, or of the archive that a
    path leads into. Raises UserError for a device or a pipe, which cannot be read twice."""
    if not path.is_dir():
        if (file := next((p for p in (path, *path.parents) if p.is_file()), None)) is None:
            raise bad_option("the file", path, "a plain file or a folder", no_file(path))
        return f"sha256:{digest(file)}"
    total, own = hashlib.sha256(), path / JOURNAL
    for file in sorted(file for file in path.rglob("*") if file.is_file() and file != own):
        total.update(f"{file.relative_to(path).as_posix()}\n{digest(file)}\n".encode())
    return f"sha256:{total.hexdigest()}"


# Marks


@functools.cache
def _secret() -> bytes:
    """This user's, which is made once; where it cannot be kept, it ends with this process."""
    try:
        state = os.environ.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser()
        file = Path(state, "fairseq_clusterformer", "secret")
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not file.exists():
            with tempfile.NamedTemporaryFile(dir=file.parent) as new, suppress(FileExistsError):
                new.write(secrets.token_bytes(32))
                new.flush()
                os.link(new.name, file)
        return file.read_bytes()
    except (OSError, RuntimeError):  # the latter where nobody's home is known
        return secrets.token_bytes(32)


def _signed(name: str, checksum: str, recipe: object) -> str:
    text = json.dumps([name, checksum, recipe], sort_keys=True)
    return hmac.new(_secret(), text.encode(), "sha256").hexdigest()


def _marks(folder: Path, name: str) -> Iterator[dict]:
    """What a journal says of a name, the latest first; only what this user's runs have signed."""
    with suppress(OSError):
        handle = os.open(folder / JOURNAL, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(handle, "rb") as file:
            plain = stat.S_ISREG(os.fstat(handle).st_mode)
            lines = file.read(1 << 24).splitlines() if plain else []
        for line in reversed(lines):
            with suppress(ValueError, TypeError, KeyError, RecursionError):  # half, or others'
                mark = json.loads(line)
                sign = _signed(name, mark["checksum"], mark["recipe"])
                if mark["name"] == name and hmac.compare_digest(mark["sign"], sign):
                    yield mark


def written(path: Path) -> dict | None:
    """What the mark says of a file or a folder of this program's own that nobody has changed:
    ``name``, ``checksum`` and ``recipe``; None of any other."""
    path = path.resolve()
    marks = list(_marks(path, _ITSELF) if path.is_dir() else _marks(path.parent, path.name))
    found = checksum(path) if marks else None
    return next((mark for mark in marks if mark["checksum"] == found), None)


def _mark(folder: Path, name: str, checksum: str, recipe: object = None) -> None:
    """Add a line to the journal, in one write; a new line first, since a kill can leave half."""
    mark = {"name": name, "checksum": checksum, "recipe": recipe}
    mark["sign"] = _signed(**mark)
    with suppress(OSError):  # somebody else's: what is written is not known again
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        with open(os.open(folder / JOURNAL, flags, 0o666), "r+b", buffering=0) as journal:
            if journal.read(1) in (b"", b"\n"):
                journal.write(f"\n{json.dumps(mark)}".encode())


# Working folders


def hold(lock: Path, option: str, place: Path, patience: float = 1, what: str = "run", **how):
    """Take a lock until it is released or the process ends; return it. Raises UserError: another
    run has it for longer than `patience` seconds. The `option` named the `place`; `how` is
    filelock's."""
    from filelock import FileLock, Timeout  # here, since it would slow down each --help

    # importing fairseq makes every logger print its debugging messages
    logging.getLogger("filelock").setLevel(logging.WARNING)
    try:
        (held := FileLock(lock, timeout=patience, **how)).acquire()
    except Timeout:
        with suppress(OSError, UnicodeDecodeError):
            what += f" ({lock.read_text()[:80].strip()})"
        allowed = f"another {option}; or wait for that run"
        raise bad_option(option, place, allowed, f"another {what} is at work in it") from None
    lock.write_text(f"process {os.getpid()} on {socket.gethostname()}")
    return held


@contextmanager
def working(
    work: Path,
    option: str,
    kept: Collection[str] = _KEPT,
    patience: float = 1,
    place: Path | None = None,
) -> Iterator[object]:
    """Hold the working folder beside an output; clear it before and after of what is not `kept`,
    and remove it if nothing is left. Yields the recipe that a run which was stopped has noted.
    Raises UserError: it is somebody else's, or another run's; or the output cannot be written."""
    place = place or work
    try:
        if work.is_symlink():
            raise bad_option(option, work, f"another {option}; or move it away", "it is a link")
        work.mkdir(parents=True, exist_ok=True)
        before = next((m for m in _marks(work, _ITSELF) if m["checksum"] == str(work)), None)
        if before is None and {path.name for path in work.iterdir()} - {JOURNAL, _LOCK}:
            allowed = f"another {option}; or move this folder away"
            raise bad_option(option, work, allowed, "this working folder holds something else")
        while True:
            with suppress(FileNotFoundError):  # the run that had it has just removed it
                work.mkdir(parents=True, exist_ok=True)
                lock = hold(work / _LOCK, option, place, patience)
                break
        with ExitStack() as stack:
            stack.callback(lock.release)
            _mark(work, _ITSELF, str(work), before and before["recipe"])
            _clear(work, kept)
            stack.callback(_leave, work, kept)
            yield before and before["recipe"]
    except Exception as error:
        if (problem := _unwritable(error, place)) is None:
            raise
        raise bad_option(option, place, "a place to write to", problem) from None


def _leave(work: Path, kept: Collection[str]) -> None:
    _clear(work, kept)
    if not any(any((work / name).glob("*")) for name in kept):
        _clear(work)
        shutil.rmtree(work, ignore_errors=True)


def _clear(work: Path, kept: Collection[str] = ()) -> None:
    """Remove what is not kept, a folder at once: a kill leaves no half of it."""
    gone = work / "gone"
    shutil.rmtree(gone, ignore_errors=True)
    for path in work.iterdir():
        if path.is_symlink() or not path.is_dir():
            if path.name not in (JOURNAL, _LOCK):
                path.unlink()
        elif path.name not in kept:
            shutil.rmtree(path.rename(gone))


def _unwritable(error: Exception, path: Path) -> str | None:
    """What hinders writing, if that is what an error says. torch and safetensors have errors of
    their own, of which only the text says so."""
    if isinstance(error, UserError):
        return None
    if isinstance(error, OSError) and error.errno not in _FULL:
        place = Path(os.fsdecode(error.filename or path))
        near = path.parent in (place, *place.parents) or place in path.parents
        return error.strerror if near else None
    texts = ""
    while error:
        texts, error = f"{texts}{error}\n", error.__context__
    full = next((text for text in map(os.strerror, _FULL) if text in texts), None)
    of_torch = "inline_container" in texts
    return full or ("the disk is full, or a file must not be as large" if of_torch else None)


# Files and folders


def _is_new(path: Path) -> bool:
    return not path.exists() or (path.is_dir() and not any(path.iterdir()))


def _beside(path: Path) -> Path:
    """The hidden working folder of an output."""
    tag = hashlib.sha256(os.fsencode(path.name)).hexdigest()[:8]
    return path.with_name(f".{path.name[:50]}.{tag}{JOURNAL}")


def resolved(option: str, path: Path) -> Path:
    """Return a path without links; raises UserError if it is a link to itself."""
    try:
        return path.resolve()
    except (OSError, RuntimeError):  # the latter is pathlib's
        raise bad_option(option, path, "a file or a folder", "it is a link to itself") from None


def check_utf8(option: str, path: Path) -> None:
    """Raise UserError for a name that some libraries cannot write to."""
    try:
        str(path.absolute()).encode()
    except UnicodeEncodeError:
        raise bad_option(option, path, "a name in UTF-8", "its name is not in UTF-8") from None


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
    """Refuse a place for a file or a `folder` that must not be written to.

    Args:
        option: what named it.
        inputs: what is read, and never replaced under whatever name; in a folder of these,
            nothing is replaced but what this program wrote.
        force: replace a file that this program did not write, or that was changed since; or a
            folder that it did write.
        keep: without `force`, replace no file at all.
        makes_folder: the folder that it stands in may be missing.

    Raises:
        UserError: if the place is an input, in no folder, something else, or the user's.
    """
    what, other = ("folder", "no folder") if folder else ("file", "no plain file")
    try:
        place = path.resolve()
        if not (makes_folder or folder or place.parent.is_dir()):
            allowed = "a file to write in a folder that exists"
            raise bad_option(option, path, allowed, "no such folder")
        if not path.exists() or (folder and _is_new(path)):
            return
        if not (path.is_dir() if folder else path.is_file()):
            problem = "it is a folder" if path.is_dir() else f"it is {other}"
            raise bad_option(option, path, f"a {what} to write", problem)
        ours, given = written(path) is not None, [each for each in inputs if each.exists()]
        is_input = any(path.samefile(each) or place in each.resolve().parents for each in given)
        if is_input or (not ours and any(each.resolve() in place.parents for each in given)):
            raise bad_option(option, path, f"another {what}", "it is one of the inputs")
    except (OSError, RuntimeError) as error:  # the latter is pathlib's
        problem = getattr(error, "strerror", None) or "it is a link to itself"
        raise bad_option(option, path, f"a {what} to write", problem) from None
    if folder and not ours:
        problem = "it holds something else, or was changed since it was written"
        raise bad_option(option, path, "a new or empty folder", problem)
    if not force and (keep or folder or not ours):
        allowed = f"a new {what}, or --force to replace "
        allowed += "it" if folder else "what this program did not write"
        raise bad_option(option, path, allowed, "it exists")


@contextmanager
def whole_file(
    option: str, path: Path, *, recipe: dict | None = None, keep: bool = False, **how
) -> Iterator[Path]:
    """A path to write a file to, which becomes `path` when the context ends without an error.

    Args:
        option, how: as of :func:`check_output`. With ``folder`` the path is a new folder.
        keep: replace nothing, unless forced; what has the same content is left as it is.
        recipe: what it is made from, for :func:`written`.

    Raises:
        UserError: as of :func:`check_output`; or the disk is full, or another run writes there.
    """
    check_output(option, path, **how | {"force": how.get("force") or keep})
    path = path.resolve()  # what a link names is written, and the link stays
    new = _beside(path) / "new"
    with working(new.parent, option, (), place=path):
        if how.get("folder"):
            new.mkdir()
        yield new
        if keep and path.exists() and checksum(new) == checksum(path):
            return
        check_output(option, path, keep=keep, **how)  # again, since writing can take hours
        _publish(new, path, recipe)


#: the same of a folder, for its option OUT
whole_folder = functools.partial(whole_file, "OUT", keep=True, folder=True)


def _publish(new: Path, path: Path, recipe: object = None) -> None:
    """Let a file or a folder with its mark take its place, in one step where the system can."""
    if not new.is_dir():
        _mark(path.parent, path.name, checksum(new), recipe)
        os.replace(new, path)
        return
    _mark(new, _ITSELF, checksum(new), recipe)
    if not _is_new(path):
        with suppress(AttributeError):  # of another system than Linux
            both = -100, os.fsencode(new), -100, os.fsencode(path)
            if ctypes.CDLL(None).renameat2(*both, 2) == 0:  # they have changed places
                return
        os.rename(path, new.with_name("before"))
    try:
        os.rename(new, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.rename(new.with_name("before"), path)
        raise


def write_text(option: str, path: Path, text: str, **how) -> None:
    """Write a file of text; `how` as of :func:`whole_file`."""
    with whole_file(option, path, **how) as new:
        new.write_text(text, encoding="utf-8")


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """As :func:`whole_file`, over whatever was there: where no user gives the name."""
    new = _beside(path.absolute()) / "new"
    with working(new.parent, "the output", (), 60, path):
        yield new
        os.replace(new, path)


def write_aside(path: Path, text: str) -> None:
    """Write a whole file of text or none of it, over whatever was there."""
    with replaced(path) as new:
        new.write_text(text, encoding="utf-8")


# Prepared folders


def make_folder(
    dest: Path, recipe: dict | Callable[[], dict], build: Build, force: bool = False
) -> dict | None:
    """Make the folder `dest` in one step, from what ``build(work, out)`` writes into ``out``.

    The working folder is ``DEST.partial``. The run after one that was stopped goes on with its
    ``download`` and ``parts``, see `make_part`; with another recipe it says so, and begins anew.

    Args:
        recipe: the options, as JSON; they go into ``prepared.json``. A function that computes it
            is called again at the end, to see whether a source has changed.
        build: returns more for ``prepared.json``.
        force: replace a `dest` that was prepared before, and that nobody has changed.

    Returns the content of ``prepared.json``, or None if `dest` was there, made by the same recipe;
    raises UserError if something else is there, or a source changes.
    """
    dest, compute = resolved("DEST", dest), recipe if callable(recipe) else lambda: recipe
    recipe = json.loads(json.dumps(compute()))
    work, how = dest.with_name(dest.name + ".partial"), {"folder": True, "force": force}
    if not _is_new(dest):
        _check_prepared(dest, None if force else recipe)
        if not force:
            if (work / JOURNAL).exists():  # left by a run that was killed just before its end
                with working(work, "DEST", kept=()):
                    pass
            return None
    check_output("DEST", dest, **how)
    with working(work, "DEST", place=dest) as before:
        parts, wanted, out = work / "parts", {**recipe, "version": __version__}, work / "out"
        if parts.exists() and before == wanted:
            print(f"going on with what is finished in {work}")
        elif parts.exists():
            other = difference(before or {}, wanted)
            print(f"beginning anew: {work} was made otherwise ({other})")
            _clear(work, ("download",))
        _mark(work, _ITSELF, str(work), wanted)
        out.mkdir()
        try:
            record = {"recipe": recipe, **build(work, out)}
            if json.loads(json.dumps(compute())) != recipe:
                raise UserError("a source has changed meanwhile; allowed: run it again")
        except FileNotFoundError as error:
            if Path(str(error.filename or work)).is_relative_to(work):
                raise
            problem = "no such file, or no longer; allowed: run it again with it"
            raise UserError(f"{error.filename}: {problem}") from None
        except UserError:  # its remedy is another recipe
            _clear(work, ("download",))
            raise
        files = sorted(path for path in out.rglob("*") if path.is_file())
        record["files"] = {path.relative_to(out).as_posix(): path.stat().st_size for path in files}
        if downloads := sorted((work / "download").glob("*")):
            record["downloads"] = {path.name: f"sha256:{digest(path)}" for path in downloads}
        (out / RECORD).write_text(json.dumps(record, indent=1) + "\n")
        check_output("DEST", dest, **how)  # again, since making the folder can take hours
        _publish(out, dest)
        _clear(work)
    return record


def make_part(work: Path, name: str, build: Build) -> tuple[Path, dict]:
    """Make the folder ``parts/NAME`` of a working folder, unless a run before has; return it, and
    what `build` returned. It may have parts of its own, which go when it is complete."""
    part, own = work / "parts" / name, work / "parts" / f"{name}.partial"
    with ExitStack() as stack:
        if not part.exists():
            own.mkdir(parents=True, exist_ok=True)
            _clear(own, _KEPT)
            stack.callback(_leave, own, _KEPT)
            (out := own / "out").mkdir()
            record = build(own, out)
            (out / RECORD).write_text(json.dumps(record))
            os.rename(out, part)
    shutil.rmtree(own, ignore_errors=True)
    return part, read_json(part / RECORD)


def copy_part(part: Path, out: Path) -> None:
    """Copy what `make_part` made into a folder."""
    shutil.copytree(part, out, ignore=lambda *_: [RECORD], dirs_exist_ok=True)


def _check_prepared(dest: Path, recipe: dict | None) -> None:
    allowed, problem = "another folder; or remove this one", ""
    try:
        record = read_json(dest / RECORD)
        files, before = dict(record["files"]), dict(record["recipe"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        allowed = "a new or empty folder, or one that this command has prepared"
        raise bad_option("DEST", dest, allowed, "holds something else") from None
    changed = (
        n for n, s in files.items() if not (dest / n).is_file() or (dest / n).stat().st_size != s
    )
    if recipe is not None and (name := next(changed, None)):
        problem = f"{name} is no longer as prepared"
    elif recipe not in (None, before):
        problem = f"was prepared otherwise ({difference(before, recipe)})"
    if problem:
        raise bad_option("DEST", dest, allowed, problem)


def difference(before: dict, recipe: dict) -> str:
    """Say where two recipes differ first: the innermost key, and both values."""
    keys = sorted(before.keys() | recipe.keys())
    key = next(key for key in keys if before.get(key) != recipe.get(key))
    was, wanted = before.get(key), recipe.get(key)
    if isinstance(was, dict) and isinstance(wanted, dict):
        return f"{key} {difference(was, wanted)}"
    texts = ["none" if v is None else json.dumps(v) for v in (was, wanted)]
    was, wanted = (text if len(text) <= 60 else text[:57] + "..." for text in texts)
    return f"{key}: {was} then, {wanted} now"
