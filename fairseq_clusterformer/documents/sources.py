"""Documents that people have, as paragraphs of text: files of many forms, and folders of them.
Files of strangers are parsed one after the other in a process of their own, which has limits of
time and memory. It ends with the process that started it, or with a file that takes too much."""

import json
import os
import signal
import stat
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from fairseq_clusterformer.errors import bad_option

from .forms import Parsed, Unreadable, form_of, parse
from .texts import of_plain, paragraphs

ALLOWED = (
    "a file of text, Markdown (.md), HTML (.html), PDF, Word (.docx), Excel (.xlsx), EPUB, RTF, "
    "e-mail (.eml, .mhtml) or notebook (.ipynb), or a folder of them"
)
SECONDS = 30.0  # of the processor for a file, and 10 more for each of its megabytes
MEMORY = 2_000_000_000  # bytes
_HEAD = 4096  # bytes that say what a file is
_NAMED = 5  # files in a line about those that are skipped

_lock = threading.Lock()  # one file at a time


@dataclass(frozen=True, eq=False)
class Source:
    """The text of a document."""

    name: str  # the file as it was given, or what the caller calls a text
    title: str  # of a page, a book or a PDF; else the file's name without its ending
    paragraphs: tuple[str, ...]  # none of them is empty
    #: the numbers of those that answer nothing, as half of the files in a folder have them
    silent: frozenset[int] = frozenset()
    #: where each paragraph stands: a heading above it, or "page 3"; empty: nobody knows
    places: tuple[str, ...] = ()

    def place(self, number: int) -> str:
        """Where a person finds a paragraph."""
        place = self.places[number] if self.places else ""
        if place and not place.startswith("page "):
            place = f"below \u201c{place}\u201d"
        return place or f"paragraph {number + 1}"


def text_source(text: str, name: str) -> Source:
    """A text that is no file; blank lines divide its paragraphs. Raises UserError: it is empty."""
    found = paragraphs((each, "") for each in of_plain(text))
    if not found:
        raise bad_option("documents", name, "text", "is empty")
    return Source(name, "", tuple(text for text, _ in found))


def read_source(
    path: Path, encoding: str | None = None, *, main_text: bool = False, data: bytes | None = None
) -> Source:
    """Read a file of any form; see `forms`. The `encoding` is that of text and HTML (None: that of
    a byte order mark or of the page, else UTF-8). Of HTML, `main_text` keeps the main text alone,
    without menus; this needs trafilatura. `data` is what the file holds (None: it is opened).
    Raises UserError: what is wrong with the file."""
    try:
        return _of_bytes(_opened(path) if data is None else data, path, encoding, main_text)
    except Unreadable as error:
        raise bad_option("--document", path, ALLOWED, str(error)) from None


def read_sources(
    paths: Sequence[Path],
    encoding: str | None = None,
    *,
    main_text: bool = False,
    report: Callable[[str], None],
) -> list[Source]:
    """Read files as `read_source` does, and those of folders and all folders below; each once. In
    a folder, hidden files, unknown forms and what cannot be read are skipped: `report` takes one
    line for each folder, and one for each reason. Raises UserError: a named file that cannot be
    read, or a folder without a document."""
    sources: dict[Path, Source] = {}
    for path in paths:
        if not path.is_dir():
            source = read_source(path, encoding, main_text=main_text)
            sources.setdefault(path.resolve(), source)
            continue
        good, others, unread = 0, 0, {}
        for file in _files(path):
            try:
                if file.name.startswith(".") or form_of(file.name, _opened(file, _HEAD)) is None:
                    others += 1
                    continue
                source = _of_bytes(_opened(file), file, encoding, main_text)
                sources.setdefault(file.resolve(), source)
                good += 1
            except Unreadable as error:
                unread.setdefault(str(error), []).append(file)
        for reason, own in unread.items():
            more = f" and {len(own) - _NAMED:,} more" if len(own) > _NAMED else ""
            report(f"skipped {', '.join(map(str, own[:_NAMED]))}{more}: {reason}")
        bad = sum(map(len, unread.values()))
        what = f"{good} read, {bad} unreadable, {others} skipped (hidden or of other kinds)"
        if not good:
            raise bad_option("--document", path, ALLOWED, f"no document in this folder: {what}")
        report(f"{path}: {what}")
    return _silenced(list(sources.values()))


def _silenced(sources: list[Source]) -> list[Source]:
    """Sources that know what answers nothing: what half of them have, but for copies of one."""
    files = Counter(text for source in sources for text in {*source.paragraphs})
    found = []
    for source in sources:
        texts, many = source.paragraphs, max(3, len(sources) / 2)
        shared = [number for number, text in enumerate(texts) if files[text] >= many]
        is_copy = sum(len(texts[i]) for i in shared) > 0.75 * sum(map(len, texts))
        found.append(replace(source, silent=frozenset([] if is_copy else shared)))
    return found


def state_of(path: Path) -> list[tuple[str, int, int]]:
    """What changes when a file, or one of a folder, changes: names, times, sizes."""
    files = _files(path) if path.is_dir() else [path]
    found = ((str(file), file.stat()) for file in files if os.path.exists(file))
    return [(name, state.st_mtime_ns, state.st_size) for name, state in found]


def _files(folder: Path) -> Iterator[Path]:
    """What is below a folder in order, but for what hidden folders hold."""
    for place, folders, names in os.walk(folder):
        links = [name for name in folders if Path(place, name).is_symlink()]
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(place, name) for name in sorted([*names, *links]))


def _opened(path: Path, most: int = -1) -> bytes:
    """The first bytes of a file, or all; pipes and devices, which never end, are refused."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise Unreadable("is a link to a folder" if path.is_symlink() else "is a folder")
        if not stat.S_ISREG(mode):
            raise Unreadable("is a pipe, a device or a socket, and no file")
        with path.open("rb") as file:
            return file.read(most)
    except OSError as error:
        raise Unreadable(error.strerror) from None


def _of_bytes(data: bytes, path: Path, encoding: str | None, main_text: bool) -> Source:
    spelt = (str(each).encode(errors="backslashreplace") for each in (path, path.stem, path.name))
    name, stem, last = (each.decode() for each in spelt)  # also bytes that are no UTF-8
    title, found = _parsed(last, data, encoding, main_text)
    texts, places = zip(*found, strict=True)
    return Source(name, " ".join(title.split()) or stem, texts, places=places)


def _parsed(name: str, data: bytes, encoding: str | None, main_text: bool) -> Parsed:
    """As `forms.parse`, in another process, whose time and memory have limits."""
    seconds, answer = SECONDS + len(data) / 100_000, b""
    how = {"name": name, "encoding": encoding, "main_text": main_text}
    with _lock:
        worker = _worker(os.getpid())
        try:
            with suppress(BrokenPipeError):
                worker.stdin.write(json.dumps([how, len(data), seconds]).encode() + b"\n" + data)
                worker.stdin.flush()
                answer = worker.stdout.readline()
        finally:
            if not answer.endswith(b"\n"):
                _worker.cache_clear()
                worker.kill()
                with suppress(BrokenPipeError):
                    worker.communicate()
    if not answer.endswith(b"\n"):
        if worker.returncode == -getattr(signal, "SIGPROF", 0):
            raise Unreadable(f"takes more than {seconds:.0f} seconds to read")
        raise Unreadable(f"cannot be read in {MEMORY:,} bytes of memory")
    title, found = json.loads(answer)
    if title is None:
        raise Unreadable(found)
    return title, found


@lru_cache(1)
def _worker(_owner: int) -> subprocess.Popen:
    """The process that parses, one for each process that asks."""
    command = [sys.executable, "-P", "-m", __name__, str(MEMORY)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)


def _serve(memory: int) -> None:
    with suppress(ImportError, ValueError):  # not on every system
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    answers, sys.stdout = sys.stdout.buffer, sys.stderr  # no library prints between the answers

    def limit(seconds: float) -> None:  # of the processor, then a signal ends this process
        with suppress(AttributeError):
            signal.setitimer(signal.ITIMER_PROF, seconds)

    for head in sys.stdin.buffer:
        how, size, seconds = json.loads(head)
        try:
            data = sys.stdin.buffer.read(size)
            limit(max(seconds, 1e-6))
            answer = parse(data=data, **how)
        except Unreadable as error:
            answer = None, str(error)
        except MemoryError:
            return  # it may have left a part of the file in the pipe
        limit(0)
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
