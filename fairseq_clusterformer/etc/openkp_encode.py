"""Pages in subwords."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fairseq_clusterformer.data.subwords import Subwords
from fairseq_clusterformer.etc.openkp import PageRecord, phrase_places
from fairseq_clusterformer.etc.pages import MOST_WORDS, VISUAL, Page

COUNTS = ("pages", "nodes", "tokens", "keyphrases", "keyphrases not found", "longest")


@dataclass(frozen=True)
class Encoded:
    """A page in the model's ids [N], and the first token of each word [W]."""

    ids: np.ndarray
    starts: np.ndarray
    record: PageRecord


def encode_record(record: PageRecord, *, model: Subwords) -> Encoded:
    """Return a page's tokens. The blank before a word belongs to it."""
    tokens = model.encode(" ".join(record.words))
    lengths = np.array([len(word) + 1 for word in record.words])
    begins = np.cumsum(lengths) - lengths - 1
    last = np.maximum(tokens.ends - 1, tokens.starts)
    word = np.searchsorted(begins, last, side="right") - 1
    starts = np.searchsorted(word, np.arange(len(record.words)))
    return Encoded(tokens.ids, starts, record)


def page_of(item: Encoded, to_index: Sequence[int]) -> Page:
    """Return the page in symbols of a dictionary.

    Args:
        to_index: of each of the model's ids.
    """
    record = item.record
    known: dict[str, int] = {}
    folded = [known.setdefault(word.lower(), len(known)) for word in record.words]
    return Page(
        tokens=torch.from_numpy(np.asarray(to_index)[item.ids]),
        starts=torch.from_numpy(item.starts),
        folded=torch.tensor(folded),
        nodes=torch.tensor(record.nodes).view(-1, 2),
        visual=torch.tensor(record.visual).view(-1, VISUAL),
        phrases=torch.tensor(phrase_places(record, MOST_WORDS), dtype=torch.int64).view(-1, 2),
    )
