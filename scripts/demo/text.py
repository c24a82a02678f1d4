"""The demo's text: the source files of Python's library, which every Python carries."""

import hashlib
import sysconfig
from pathlib import Path

from fairseq_clusterformer.outputs import make_folder

#: folders that are no part of the library, or are tables
_SKIPPED = {"site-packages", "test", "tests", "idle_test", "pydoc_data", "encodings"}
HELD_OUT = 12  # files for validation
MOST = 6_000_000  # bytes to train on; the demo reads a part of them


def library(root: Path | None = None) -> dict[str, bytes]:
    """Return the text for training and for validation, the same for the same Python. Whole files
    are held out. Names decide the order, so that both splits have files of all sorts."""
    root = Path(sysconfig.get_path("stdlib")) if root is None else root
    found = {str(path.relative_to(root)): path for path in root.rglob("*.py")}
    names = [name for name in found if not _SKIPPED & set(Path(name).parts)]
    names.sort(key=lambda name: hashlib.sha256(name.encode()).digest())
    texts = [found[name].read_bytes() for name in names]
    train = b"".join(texts[HELD_OUT:])[:MOST]
    return {"train": train, "valid": b"".join(texts[:HELD_OUT])}


def first_lines(text: bytes, most: int) -> bytes:
    """Return whole lines from the beginning of a text, at most `most` bytes."""
    return text[: text.rfind(b"\n", 0, most) + 1]


def prepare_library(dest: Path) -> Path:
    """Make a folder with the text by bytes, as fairseq reads it; return it."""

    def build(work: Path, out: Path) -> dict:
        from fairseq_clusterformer.corpora import binarize
        from fairseq_clusterformer.data.characters import byte_symbols
        from fairseq_clusterformer.data.coding import ByteCoding

        files = {split: work / f"{split}.txt" for split in ("train", "valid")}
        for split, text in library().items():
            files[split].write_bytes(text)
        dictionary = binarize.symbol_dictionary(byte_symbols())
        items = ByteCoding(dictionary).items
        return {"splits": binarize.write_dataset(files, out, dictionary, items)}

    make_folder(dest, {"corpus": "Python's library"}, build)
    return dest
