"""Splits: files whose names have the name of one, and splits that are drawn from train."""

import re
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from fairseq_clusterformer.errors import UserError

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
    """Return the split of each item that is drawn. All other items are of train.

    In their order, items are drawn as long as each brings a split closer to its share.

    Args:
        sizes: of each item.
        shares: of the sum of all sizes, for each split that is drawn.
        order: of all items.
        name: of the items and where they come from, for an error.
        total: of all sizes, where only the first items are given.

    Raises:
        UserError: if there are too few items.
    """
    if len(sizes) <= len(shares):
        raise UserError(
            f"{name}: {len(sizes)}; allowed: more than {len(shares)}, to draw "
            f"{' and '.join(shares)} from, or files of each split"
        )
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
