"""Splits: by the names of files, drawn from train, and apart from texts that were seen."""

import hashlib
import re
from array import array
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from .lines import wrong

_NAME = re.compile(r"(?<![a-z])(train|valid|validation|val|dev|test)(?![a-z])")
_Item = TypeVar("_Item", bound=Hashable)


def split_of(path: Path) -> str | None:
    """Return the split that a file's name says, as a word: ``my.dev.tsv`` is of valid."""
    found = _NAME.findall(path.name.lower())
    return {"train": "train", "test": "test"}.get(found[-1], "valid") if found else None


def draw(
    sizes: Mapping[_Item, int],
    shares: Mapping[str, float],
    order: Sequence[_Item],
    name: str,
    total: int | None = None,
) -> dict[_Item, str]:
    """Return the split of each item that is drawn, as long as each brings a split closer to its
    share of all sizes, in their order; all other items are of train. Raises UserError if there are
    too few items.

    Args:
        name: of the items and where they come from, for the error.
        total: of all sizes, where only the first items are given.
    """
    if len(sizes) <= len(shares):
        drawn = f"to draw {' and '.join(shares)} from, or files of each split"
        raise wrong(name, len(sizes), f"more than {len(shares)}, {drawn}")
    drawn = {}
    total = sum(sizes.values()) if total is None else total
    for others, (split, share) in zip(range(len(shares), 0, -1), shares.items(), strict=True):
        wanted, taken = share * total, []
        for item in order[:-others]:  # the other splits get one at least
            if sizes[item] < 2 * wanted:
                taken.append(item)
                wanted -= sizes[item]
        drawn |= dict.fromkeys(taken or [min(order, key=sizes.get)], split)
        order = [item for item in order if item not in drawn]
    return drawn


def key_of(text: str) -> int:
    """Return 8 bytes that stand for a text: two of a billion texts hardly have the same."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8])


class SeenTexts:
    """A set of texts that takes 11 to 22 bytes for each: a hash table of their 8-byte keys."""

    def __init__(self) -> None:
        self._keys = array("Q", bytes(8 << 10))  # 0: a free slot
        self._count = 0

    def __contains__(self, text: str) -> bool:
        return self._keys[self._slot(key_of(text))] != 0

    def add(self, text: str) -> bool:
        """Add a text; returns whether it is new."""
        key = key_of(text)
        slot = self._slot(key)
        if self._keys[slot]:
            return False
        self._keys[slot] = key
        self._count += 1
        if 4 * self._count > 3 * len(self._keys):
            old, self._keys = self._keys, array("Q", bytes(16 * len(self._keys)))
            for key in filter(None, old):
                self._keys[self._slot(key)] = key
        return True

    def _slot(self, key: int) -> int:
        """The slot of a key, or the free one where it belongs: linear probing."""
        mask = len(self._keys) - 1  # their number is a power of 2
        slot = key & mask
        while self._keys[slot] not in (0, key):
            slot = (slot + 1) & mask
        return slot
