"""The demo's text: Python's language reference, which every Python carries in ``pydoc_data``."""

import hashlib
import re
from pathlib import Path
from pydoc_data.topics import topics

from fairseq_clusterformer.corpora.folder import make_folder

#: Whole topics that no model is trained on: about a tenth of the text.
HELD_OUT = ("calls", "comparisons", "import", "strings")
_SHORT = 40  # characters; shorter paragraphs ("or", "Examples:") repeat without being copies


def language_reference(pages: dict[str, str] = topics) -> dict[str, str]:
    """Return the text for training and for validation, the same for the same edition of Python.

    The reference has many passages twice ("customization" is a part of "specialnames"). A
    paragraph is taken once, held-out topics first, so that none of them is trained on; a topic
    of which less than half is new is left out.

    Args:
        pages: text by topic.
    """
    longest_first = sorted(pages, key=lambda name: (name not in HELD_OUT, -len(pages[name]), name))
    seen: set[str] = set()
    kept: dict[str, list[str]] = {"train": [], "valid": []}
    for name in longest_first:
        paragraphs = re.split(r"\n\s*\n", pages[name].strip("\n"))
        known = [" ".join(paragraph.split()) for paragraph in paragraphs]
        new = [p for p, key in zip(paragraphs, known, strict=True) if key not in seen]
        text = "\n\n".join(new)
        if 2 * len(text) >= len(pages[name]):
            kept["valid" if name in HELD_OUT else "train"].append(text + "\n\n\n")
            seen.update(key for key in known if len(key) >= _SHORT)
    return {split: "".join(texts) for split, texts in kept.items()}


def first_paragraphs(text: str, most: int) -> str:
    """Return whole paragraphs from the beginning of a text, at most `most` bytes."""
    shown = ""
    for paragraph in re.split(r"(?<=\n)(?=\n)", text):
        if len((shown + paragraph).encode()) > most:
            break
        shown += paragraph
    return shown


def prepare_reference(parent: Path) -> Path:
    """Return a folder in `parent` with the text by bytes, as fairseq reads it; made if missing.

    Its name ends in a digest of the text, which another edition of Python may have changed.
    """
    texts = language_reference()
    digest = hashlib.sha256("\f".join(texts.values()).encode()).hexdigest()
    dest = parent / f"data-{digest[:8]}"

    def build(work: Path, out: Path) -> dict:
        from fairseq_clusterformer.corpora import binarize
        from fairseq_clusterformer.data.coding import ByteCoding

        files = {split: work / f"{split}.txt" for split in texts}
        for split, text in texts.items():
            files[split].write_bytes(text.encode())
        dictionary = binarize.byte_dictionary()
        items = ByteCoding(dictionary).items
        return {"splits": binarize.write_dataset(files, out, dictionary, items)}

    make_folder(dest, {"corpus": "Python language reference", "digest": digest}, build)
    return dest
