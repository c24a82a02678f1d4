"""Web pages and their keyphrases on disk: what ``clusterformer prepare keyphrases`` writes.

A folder holds the model of its subwords, ``dict.txt`` and, for each split, these files. Each has
one item per page, all in the same order:

========================  =====================================================================
``SPLIT.document``        .bin, .idx: the page's tokens
``SPLIT.page``            .bin, .idx (int32): words, nodes and keyphrases; see `Page.item`
``SPLIT.jsonl``           a JSON object per line: ``url``, ``text`` (the words, with blanks between
                          them) and ``phrases`` (in lower case; null where they are unknown)
``SPLIT.lines.npy``       where each of these lines begins, and the file's length, int64
========================  =====================================================================

.bin and .idx are fairseq's (``mmap``), in symbols of ``dict.txt``, without ``</s>``.

Shape letters: N tokens, W words, G nodes, P keyphrases.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from fairseq.data.indexed_dataset import best_fitting_int_dtype
from torch import Tensor

from fairseq_clusterformer.data.stored import RecordData, RecordWriter

#: numbers that say what a node looks like, ten of its own and then ten of its parent: x, width, y
#: and height in pixels; whether it is a block, inline, a heading, a leaf; the size of its font;
#: whether it is bold
VISUAL = 20
MOST_WORDS = 5  # of a keyphrase

_PARTS = ("document", "page")


@dataclass(frozen=True, eq=False)
class Page:
    """A page to train on, or to find keyphrases in.

    Args:
        tokens: int64 [N].
        starts: the first token of each word, int64 [W]; that of the next where it has none.
        folded: equal numbers for words that are equal in lower case, int64 [W].
        nodes: words [first, last) of each node, int64 [G, 2]; they cover all words in their order.
        visual: what each node looks like, int64 [G, 20]; see `VISUAL`.
        phrases: the first word of each keyphrase where it first stands in one node, and its number
            of words, int64 [P, 2].
    """

    tokens: Tensor
    starts: Tensor
    folded: Tensor
    nodes: Tensor
    visual: Tensor
    phrases: Tensor

    def item(self) -> np.ndarray:
        """All but the tokens as an item of ``SPLIT.page``, int32: the numbers W, G and P; then
        starts, folded, nodes, visual and phrases."""
        head = [len(self.starts), len(self.nodes), len(self.phrases)]
        tail = (self.starts, self.folded, self.nodes, self.visual, self.phrases)
        return np.concatenate([head, *(part.flatten() for part in tail)]).astype(np.int32)

    @classmethod
    def of(cls, tokens: Tensor, item: Tensor) -> "Page":
        """What the items of both files say."""
        words, nodes, phrases = item[:3].tolist()
        sizes = [words, words, 2 * nodes, VISUAL * nodes, 2 * phrases]
        starts, folded, spans, visual, places = item[3:].split(sizes)
        return cls(
            tokens, starts, folded, spans.view(-1, 2), visual.view(-1, VISUAL), places.view(-1, 2)
        )

    def within(self, tokens: int, nodes: int) -> "Page":
        """The beginning of the page: whole words of so many tokens, in so many nodes. The first
        word stays, if need be without its end or the empty nodes in front of it."""
        ends = torch.cat([self.starts[1:], self.starts.new_tensor([len(self.tokens)])])
        words = int((ends <= tokens).sum())
        empty = int((self.nodes[:, 1] == 0).sum())
        first = empty if empty >= nodes else 0
        last = first + nodes
        if last < len(self.nodes):
            words = min(words, int(self.nodes[last, 0]))
        words = max(words, 1)
        last = min(last, int((self.nodes[:, 0] < words).sum()))
        return Page(
            tokens=self.tokens[: min(int(ends[words - 1]), tokens)],
            starts=self.starts[:words],
            folded=self.folded[:words],
            nodes=self.nodes[first:last].clamp(max=words),
            visual=self.visual[first:last],
            phrases=self.phrases[self.phrases.sum(1) <= words],
        )

    def words_of_tokens(self) -> Tensor:
        """The word of each token, int64 [N]."""
        place = torch.arange(len(self.tokens))
        return torch.searchsorted(self.starts.contiguous(), place, right=True) - 1

    def nodes_of_words(self) -> Tensor:
        """The node of each word, int64 [W]."""
        first, last = self.nodes.unbind(1)
        return torch.arange(len(self.nodes)).repeat_interleave(last - first)

    def first_places(self) -> Tensor:
        """Where each n-gram first stands in one node, as its first word, int64 [5, W]: row i has
        those of i + 1 words. An n-gram that is in no node stands at its own place only."""
        places = torch.arange(len(self.folded)).repeat(MOST_WORDS, 1)
        node, folded = self.nodes_of_words().numpy(), self.folded.numpy()
        number = len(folded)
        same = folded  # equal numbers for n-grams that are equal
        for length in range(1, min(MOST_WORDS, number) + 1):
            if length > 1:
                pairs = same[:-1].astype(np.int64) * number + folded[length - 1 :]
                same = np.unique(pairs, return_inverse=True)[1]
            (whole,) = np.nonzero(node[: number - length + 1] == node[length - 1 :])
            _, first, of = np.unique(same[whole], return_index=True, return_inverse=True)
            places[length - 1, whole] = torch.from_numpy(whole[first][of])
        return places


class PageWriter(RecordWriter):
    """Writes the files of a split; used in a ``with`` statement.

    Args:
        folder: that holds ``dict.txt``.
        split: their first name.
        vocab_size: the symbols of ``dict.txt``.
    """

    def __init__(self, folder: Path, split: str, *, vocab_size: int) -> None:
        dtypes = (best_fitting_int_dtype(vocab_size), np.int32)
        super().__init__(folder, split, dict(zip(_PARTS, dtypes, strict=True)))

    def add(self, page: Page, texts: Mapping) -> None:
        """Add a page.

        Args:
            texts: what becomes its line of ``SPLIT.jsonl``.
        """
        self._add((page.tokens, page.item()), texts)


class PageData(RecordData):
    """The pages of a split; see :class:`RecordData`."""

    def __init__(self, folder: Path | str, split: str) -> None:
        super().__init__(folder, split, _PARTS, "clusterformer prepare keyphrases")

    def __getitem__(self, index: int) -> Page:
        if not 0 <= index < len(self):
            raise IndexError(f"page {index} of {len(self)}")
        return Page.of(*(self._parts[part][index].long() for part in _PARTS))
