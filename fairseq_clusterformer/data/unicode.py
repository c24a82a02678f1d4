"""One form for texts that look the same: composed letters, and for readers plain ones.

"é" is one character or two, as every Mac writes file names; "ﬁ" is one letter in many PDF files.
Texts become NFC before they become tokens, except by bytes. Readers of documents take NFKC, which
also undoes ligatures and full-width digits, and their offsets stay those of the original.
"""

import re
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING
from unicodedata import combining, is_normalized, normalize

from fairseq_clusterformer.errors import read_json

from . import RECORD

if TYPE_CHECKING:
    import numpy as np

FORM, READ_FORM = "NFC", "NFKC"
#: what may change, and the letter before it, which a mark may join
_RUN = re.compile(r"[\x00-\x7f]?[^\x00-\x7f]+")


def form_of(folder: Path, default: str = FORM) -> str:
    """The form that a prepared folder or a bundle was trained with; older ones do not say it."""
    try:
        recipe = read_json(folder / RECORD)["recipe"]
        return str(recipe.get("unicode", default))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return default


def composed(text: str, form: str = FORM) -> str:
    """A text in a form of Unicode, "NFC" or "NFKC"; the same text in all others."""
    return normalize(form, text) if form in (FORM, READ_FORM) else text


def with_places(text: str, form: str) -> "tuple[str, np.ndarray, np.ndarray] | None":
    """A text in a form, and where each of its characters begins and ends in the original, int32
    [N]; None: it is in that form already."""
    if form not in (FORM, READ_FORM) or is_normalized(form, text):
        return None
    import numpy as np  # takes too long for --help

    cuts, parts, starts, ends = [0], [], [], []
    for run in _RUN.finditer(text):
        cuts.append(run.start())
        for place in range(run.start() + 1, run.end()):
            if not _joins(text, cuts[-1], place, form):
                cuts.append(place)
        cuts.append(run.end())
    for start, end in pairwise([*cuts, len(text)]):
        part = normalize(form, text[start:end])
        is_same = part == text[start:end]
        parts.append(part)
        starts.append(np.arange(start, end) if is_same else np.full(len(part), start))
        ends.append(np.arange(start + 1, end + 1) if is_same else np.full(len(part), end))
    return "".join(parts), *(np.concatenate(x).astype(np.int32) for x in (starts, ends))


def _joins(text: str, begin: int, place: int, form: str) -> bool:
    """Whether a letter may change with what stands before it, as marks and Hangul's parts do."""
    letter = text[place]
    if combining(normalize(form.replace("C", "D"), letter)[0]):  # such as U+0F73, of class 0
        return True
    before = text[begin:place]
    return normalize(form, before + letter) != normalize(form, before) + normalize(form, letter)
