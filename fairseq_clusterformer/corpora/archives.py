"""The files in a folder, a .tar (packed or not) or a .zip."""

import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from fairseq_clusterformer.errors import UserError


def members(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Yield the names, below `path`, and the contents of the files whose name is `wanted`.

    Those of a folder come in order, those of an archive as they lie in it.

    Raises:
        UserError: if it cannot be read to its end.
    """
    number = 0
    try:
        for found in _members(path, wanted):
            number += 1
            yield found
    # RuntimeError: a zip file with a password, or of a method that Python does not know
    except (
        *(OSError, EOFError, RuntimeError, zipfile.BadZipFile, tarfile.TarError),
        *(zlib.error, lzma.LZMAError),
    ) as error:
        raise UserError(f"{path}: cannot be read after {number:,} files: {error}") from None


def _members(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    if path.is_dir():
        for file in sorted(path.rglob("*")):
            name = file.relative_to(path).as_posix()
            if wanted(name) and file.is_file():
                yield name, file.read_bytes()
    elif zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for name in filter(wanted, archive.namelist()):
                yield name, archive.read(name)
    else:
        with tarfile.open(path, "r|*") as archive:
            for member in archive:
                if member.isfile() and wanted(member.name):
                    yield member.name, archive.extractfile(member).read()
