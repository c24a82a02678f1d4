"""Splits: by the names of files, drawn from train, and apart from texts that were seen."""

import hashlib
import re
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
) -> dict[_Item, str]:
    """Return the split of each item that is drawn, as long as each brings a split closer to its
    share of all sizes, in their order; all other items are of train. Raises UserError if there are
    too few items.

    Args:
        name: of the items and where they come from, for the error.
    """
    if len(sizes) <= len(shares):
        drawn = f"to draw {' and '.join(shares)} from, or files of each split"
        raise wrong(name, len(sizes), f"more than {len(shares)}, {drawn}")
    drawn = {}
    total = sum(sizes.values())
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


class SeenTexts(set[int]):
    """A set of texts that holds a number for each."""

    def __contains__(self, text: str) -> bool:
        return super().__contains__(key_of(text))

    def add(self, text: str) -> bool:
        """Add a text; returns whether it is new."""
        before = len(self)
        super().add(key_of(text))
        return len(self) > before
