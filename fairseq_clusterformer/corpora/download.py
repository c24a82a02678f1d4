"""Corpora as their authors offer them: archives, checksums, downloads that can be resumed."""

import shutil
import sys
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fairseq_clusterformer.errors import UserError, bad_option
from fairseq_clusterformer.outputs import checksum, digest


@dataclass(frozen=True)
class Archive:
    """A file that a corpus comes in. Checksums are ``algorithm:hex``; None: none is published."""

    url: str  # of a zip or tar file, or of a single file that needs no unpacking
    checksum: str | None
    members: dict[str, str | None]  # files wanted from it (or its own name), with checksums

    @property
    def name(self) -> str:
        return self.url.rsplit("/", 1)[-1]


def checksums(paths: Iterable[Path]) -> dict[str, str]:
    """Return the checksums of sources, by their folders' and their own names; equal ones are
    numbered."""
    found, times = {}, Counter()
    for path in map(Path.resolve, paths):
        times[name := f"{path.parent.name}/{path.name}"] += 1
        found[f"{name} ({times[name]})" if times[name] > 1 else name] = checksum(path)
    return found


def verify(path: Path, checksum: str | None) -> None:
    """Raise UserError if a file has another checksum; None fits every file."""
    if checksum is None:
        return
    algorithm, expected = checksum.split(":")
    if (found := digest(path, algorithm)) != expected:
        what = f"{path} has {path.stat().st_size:,} bytes with {algorithm} {found}"
        raise UserError(f"{what}; allowed: {algorithm} {expected}")


def obtain(archives: Sequence[Archive], source: Path | None, work: Path) -> dict[str, Path]:
    """Return the archives' members by their names, as files whose checksums are right, from the
    folder `source` (None: download), unpacked in `work`. Raises UserError if one is missing."""
    paths = {}
    wanted = [(archive, *member) for archive in archives for member in archive.members.items()]
    for archive, name, published in wanted:
        if source is None:
            paths[name] = _unpack(download(archive, work / "download"), name, work)
        elif places := sorted(source.glob(name)) + sorted(source.glob(f"*/{name}")):
            paths[name] = places[0]
        elif (source / archive.name).is_file():
            paths[name] = _unpack(source / archive.name, name, work)
        else:
            places = dict.fromkeys((", ".join(archive.members), archive.name))
            allowed = f"a folder that holds {' or '.join(places)}"
            problem = f"holds no {name}" if source.is_dir() else "no such folder"
            raise bad_option("--source", source, allowed, problem)
        verify(paths[name], published)
    return paths


def _unpack(path: Path, name: str, work: Path) -> Path:
    """Return the file `name` out of the archive `path`, or `path` itself if it is that file."""
    if path.name == name:
        return path
    is_zip = zipfile.is_zipfile(path)
    try:
        with zipfile.ZipFile(path) if is_zip else tarfile.open(path) as archive:
            members = archive.namelist() if is_zip else archive.getnames()
            found = [member for member in members if Path(member).name == name]
            if not found:
                raise UserError(f"{path} holds no {name}")
            opened = archive.open(found[0]) if is_zip else archive.extractfile(found[0])
            with opened as source, open(work / name, "wb") as file:
                shutil.copyfileobj(source, file, 1 << 20)
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError) as error:
        raise UserError(f"{path} is not a sound zip or tar file: {error}") from None
    return work / name


def download(archive: Archive, folder: Path) -> Path:
    """Download the archive into `folder`, or go on where that was interrupted; warn if nobody
    publishes a checksum. Raises UserError if that fails, or the checksum is wrong."""
    from http.client import HTTPException  # http and urllib.request would slow down each --help

    elsewhere = "or get it elsewhere and pass --source DIR"
    path, part = folder / archive.name, folder / f"{archive.name}.part"
    if path.exists():
        return path
    folder.mkdir(exist_ok=True)
    try:
        _fetch(archive.url, part)
        verify(part, archive.checksum)
    except (OSError, HTTPException) as error:
        what = f"could not download {archive.url}: {error}"
        raise UserError(f"{what}; run again to go on, {elsewhere}") from None
    except UserError as error:
        part.unlink()
        what = f"{error} (downloaded from {archive.url}, removed)"
        raise UserError(f"{what}; run again, {elsewhere}") from None
    if archive.checksum is None:
        why = f"warning: {archive.url} could not be verified, because nobody publishes a checksum "
        kept = f"of it; prepared.json keeps the sha256 of this download, {digest(part)}"
        print(why + kept, file=sys.stderr)
    part.rename(path)
    return path


def _fetch(url: str, part: Path) -> None:
    import http
    import urllib.error
    import urllib.request

    from tqdm import tqdm

    start = part.stat().st_size if part.exists() else 0
    # Some hosts refuse Python's own user agent.
    headers = {"User-Agent": "Mozilla/5.0 (fairseq_clusterformer)", "Range": f"bytes={start}-"}
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60)
    except urllib.error.HTTPError as error:
        if start and error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return  # All of it is here; `download` verifies it.
        raise
    start *= response.status == http.HTTPStatus.PARTIAL_CONTENT
    size = start + int(response.headers.get("Content-Length", 0))
    shown = tqdm.wrapattr(response, "read", size, initial=start, desc=part.stem, disable=None)
    with response, shown as body, open(part, "ab" if start else "wb") as file:
        shutil.copyfileobj(body, file, 1 << 20)
    if part.stat().st_size < size:
        raise OSError(f"broken off after {part.stat().st_size:,} of {size:,} bytes")
