"""Runs the command as users do, in this process; writes what it reads, reads what it prepared."""

import bz2
import gzip
import io
import json
import lzma
import tarfile
import zipfile
from pathlib import Path

from fairseq_clusterformer.cli.main import main

PACK = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
SPLITS = ("train", "valid", "test")


def run(*words: object) -> int:
    """Run ``clusterformer WORDS``; a word may be several, between blanks, if it is a string.

    Returns:
        the exit status.
    """
    try:
        return main(
            [w for word in words for w in (word.split() if type(word) is str else [str(word)])]
        )
    except SystemExit as error:
        return error.code


def write(path: Path, content: str | bytes, encoding: str = "utf-8") -> Path:
    """Write a file, packed as its name says, into a folder that may be missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content.encode(encoding) if isinstance(content, str) else content
    path.write_bytes(PACK.get(path.suffix, bytes)(data))
    return path


def write_splits(folder: Path, content: str | bytes, name: str = "{}.txt") -> Path:
    """Write the same file for train, valid and test; return the folder."""
    for split in SPLITS:
        write(folder / name.format(split), content)
    return folder


def pack(path: Path, files: dict[str, str | bytes]) -> Path:
    """Write a .zip or .tar, packed as its name says, of files in this order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    contents = {n: c.encode() if isinstance(c, str) else c for n, c in files.items()}
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in contents.items():
                archive.writestr(name, data)
        return path
    with tarfile.open(path, "w" if path.suffix == ".tar" else "w:gz") as archive:
        for name, data in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def files_in(folder: Path, top: str = "") -> dict[str, bytes]:
    """All files of a folder, by their names in it, behind another name."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {f"{top}{path.relative_to(folder)}": path.read_bytes() for path in paths}


def record_of(dest: Path) -> dict:
    return json.loads((dest / "prepared.json").read_text())


def one_line(capsys) -> str:
    """The one line that a command printed on stderr."""
    (line,) = capsys.readouterr().err.splitlines()
    return line
