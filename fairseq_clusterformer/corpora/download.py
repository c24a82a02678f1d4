"""Corpora as their authors offer them: archives, checksums, downloads that can be resumed."""

import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from fairseq_clusterformer.errors import UserError, bad_option
from fairseq_clusterformer.outputs import checksum, digest

from .lines import members, wrong


class Archive(NamedTuple):
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


def obtain(archives: Sequence[Archive], source: Path | None, work: Path) -> dict[str, Path]:
    """Return the archives' members by their names, as files whose checksums are right, from the
    folder `source` (None: download), unpacked in `work`. Raises UserError if one is missing."""
    paths = {}
    for archive in archives:
        packed = download(archive, work / "download") if source is None else source / archive.name
        for name, published in archive.members.items():
            globs = (source.glob(each) for each in (name, f"*/{name}")) if source else ()
            places = [path for found in globs for path in sorted(found)]
            if not places and not packed.is_file():
                problem = f"holds no {name}" if source.is_dir() else "no such folder"
                names = dict.fromkeys((", ".join(archive.members), archive.name))
                allowed = f"a folder that holds {' or '.join(names)}"
                raise bad_option("--source", source, allowed, problem)
            paths[name] = places[0] if places else packed
            if paths[name].name != name:
                found = members(packed, lambda found, name=name: Path(found).name == name)
                if (content := next(found, (name, None))[1]) is None:
                    raise UserError(f"{packed} holds no {name}")
                paths[name] = work / name
                paths[name].write_bytes(content)
            _verify(paths[name], published)
    return paths


def _verify(path: Path, published: str | None) -> None:
    algorithm, _, expected = (published or "").partition(":")
    if published and (found := digest(path, algorithm)) != expected:
        what = f"has {path.stat().st_size:,} bytes with {algorithm} {found}"
        raise wrong(path, what, f"{algorithm} {expected}")


def download(archive: Archive, folder: Path) -> Path:
    """Download the archive into `folder`, or go on where that was interrupted; warn if nobody
    publishes a checksum. Raises UserError if that fails, or the checksum is wrong."""
    from http.client import HTTPException  # these would slow down each --help
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    from tqdm import tqdm

    path, part = folder / archive.name, folder / f"{archive.name}.part"
    if path.exists():
        return path
    folder.mkdir(exist_ok=True)
    start = part.stat().st_size if part.exists() else 0
    # some hosts refuse Python's own user agent
    headers = {"User-Agent": "Mozilla/5.0 (fairseq_clusterformer)", "Range": f"bytes={start}-"}
    try:
        response = urlopen(Request(archive.url, headers=headers), timeout=60)
        start *= response.status == 206  # else it begins anew
        size = start + int(response.headers.get("Content-Length", 0))
        shown = tqdm.wrapattr(response, "read", size, initial=start, desc=path.name, disable=None)
        with response, shown as body, open(part, "ab" if start else "wb") as file:
            shutil.copyfileobj(body, file, 1 << 20)
        if part.stat().st_size < size:
            raise OSError(f"broken off after {part.stat().st_size:,} of {size:,} bytes")
        _verify(part, archive.checksum)
    except (OSError, HTTPException, UserError) as error:
        if isinstance(error, HTTPError | UserError):  # what is there is of no use
            part.unlink(missing_ok=True)
        remedy = "run again to go on, or get it elsewhere and pass --source DIR"
        raise UserError(f"could not download {archive.url}: {error}; {remedy}") from None
    if archive.checksum is None:
        why = f"warning: {archive.url} could not be verified, because nobody publishes a checksum "
        kept = f"of it; prepared.json keeps the sha256 of this download, {digest(part)}"
        print(why + kept, file=sys.stderr)
    return part.rename(path)
