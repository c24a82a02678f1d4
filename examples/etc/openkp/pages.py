"""Web pages and their keyphrases: in subwords, on disk as ``prepare.py`` writes them, and as
samples of a model.

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

Shape letters: B batch, N tokens, W words, G nodes, P keyphrases.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq.data import Dictionary
from torch.nn.utils.rnn import pad_sequence

from fairseq_clusterformer.data.stored import BySize, RecordData
from fairseq_clusterformer.data.subwords import Subwords

from .records import MOST_WORDS, VISUAL, PageRecord, phrase_places

PARTS = ("document", "page")
_SHAPES = {"starts": (-1,), "folded": (-1,), "nodes": (-1, 2), "visual": (-1, VISUAL)}
_SHAPES |= {"phrases": (-1, 2), "anywhere": (-1, 2)}


@dataclass(frozen=True, eq=False)
class Page:
    """A page to train on, or to find keyphrases in, in whole numbers."""

    tokens: np.ndarray  # [N]
    starts: np.ndarray  # the first token of each word, [W]; that of the next where it has none
    folded: np.ndarray  # equal numbers for words that are equal in lower case, [W]
    nodes: np.ndarray  # words [first, last) of each, which cover all in their order, [G, 2]
    visual: np.ndarray  # what each node looks like, [G, 20]; see `VISUAL`
    # the first word of each keyphrase and its number of words, [P, 2]: where it first stands in
    # one node, and in the text
    phrases: np.ndarray
    anywhere: np.ndarray

    def item(self) -> np.ndarray:
        """All but the tokens as an item of ``SPLIT.page``, int32: six sizes, then all numbers."""
        parts = [getattr(self, name).ravel() for name in _SHAPES]
        return np.concatenate([[part.size for part in parts], *parts]).astype(np.int32)

    @classmethod
    def of(cls, tokens: np.ndarray, item: np.ndarray) -> "Page":
        """What the items of both files say."""
        sizes, rest = np.split(item, [len(_SHAPES)])
        parts = np.split(rest, sizes.cumsum()[:-1])
        shaped = (part.reshape(s) for part, s in zip(parts, _SHAPES.values(), strict=True))
        return cls(tokens, *shaped)

    def within(self, tokens: int, nodes: int | None) -> "Page":
        """The beginning of the page: whole nodes, so many or fewer, of so many tokens. If not even
        the first of them fits, what does of its words, or of its first word, and no keyphrase;
        empty nodes in front may be left out then. With None for the nodes, whole words of the page
        as a text without nodes, where keyphrases may stand anywhere."""
        ends = np.append(self.starts[1:], len(self.tokens))  # of words
        words, phrases = int(np.searchsorted(ends, tokens, "right")), self.phrases
        if nodes is None:
            words, phrases = max(words, 1), self.anywhere
            kept, visual = np.array([[0, words]]), np.zeros((1, VISUAL), int)
        else:
            empty = int((self.nodes[:, 1] == 0).sum())
            first = empty if empty >= nodes else 0
            last = min(int((self.nodes[:, 1] <= words).sum()), first + nodes)
            if last > empty:
                words = int(self.nodes[last - 1, 1])
            else:  # the first node that is not empty is cut
                last, phrases = empty + 1, phrases[:0]
                words = max(min(words, int(self.nodes[empty, 1])), 1)
            kept, visual = self.nodes[first:last].clip(max=words), self.visual[first:last]
        return replace(
            self,
            tokens=self.tokens[: min(ends[words - 1], tokens)],
            starts=self.starts[:words],
            folded=self.folded[:words],
            nodes=kept,
            visual=visual,
            phrases=phrases[phrases.sum(1) <= words],
        )

    def first_places(self, words: int) -> np.ndarray:
        """Where each n-gram first stands in one node, as its first word, [5, words]: row i has
        those of i + 1 words. An n-gram that is in no node stands at its own place only, and so
        does what is behind the page's words."""
        places, folded = np.tile(np.arange(words), (MOST_WORDS, 1)), self.folded.tolist()
        for row in range(MOST_WORDS):
            seen: dict[tuple[int, ...], int] = {}
            for first, last in self.nodes.tolist():
                for place in range(first, last - row):
                    gram = tuple(folded[place : place + row + 1])
                    places[row, place] = seen.setdefault(gram, place)
        return places


def encode(
    record: PageRecord, *, model: Subwords, to_index: Sequence[int]
) -> tuple[Page, dict[str, Any]]:
    """A page in tokens, where the blank before a word belongs to it, and its line of
    ``SPLIT.jsonl``; ``to_index`` has the symbol in a dictionary of each of the model's ids."""
    text, known = " ".join(record.words), {}
    tokens, lengths = model.encode(text), np.array([len(word) + 1 for word in record.words])
    begins = np.cumsum(lengths) - lengths - 1
    word = np.searchsorted(begins, np.maximum(tokens.ends - 1, tokens.starts), "right") - 1
    folded = [known.setdefault(word.lower(), len(known)) for word in record.words]
    places = [phrase_places(record, nodes) for nodes in (record.nodes, ((0, len(folded)),))]
    page = Page(
        np.asarray(to_index)[tokens.ids],
        np.searchsorted(word, np.arange(len(record.words))),
        np.array(folded),
        np.array(record.nodes),
        np.array(record.visual),
        *(np.array(found, int).reshape(-1, 2) for found in places),
    )
    phrases = None if record.phrases is None else [" ".join(phrase) for phrase in record.phrases]
    return page, {"url": record.id, "text": text, "phrases": phrases}


class PageData(RecordData):
    """The pages of a split; see :class:`RecordData`."""

    def __init__(self, folder: Path | str, split: str) -> None:
        super().__init__(folder, split, PARTS, "python examples/etc/openkp/prepare.py")

    def __getitem__(self, index: int) -> Page:
        if not 0 <= index < len(self):
            raise IndexError(f"page {index} of {len(self)}")
        return Page.of(*(self._parts[part][index].long().numpy() for part in PARTS))


class PageDataset(BySize):
    """Pages with their keyphrases; those of more than ``max_positions`` tokens or ``max_nodes``
    nodes lose their last nodes (see `Page.within`). With ``only_with_phrases``, those that have no
    keyphrase left are out.

    Attributes:
        pages: the numbers in ``data`` of those that are used.
        cut: how many of all pages lose their end.
        nodes_left_out: how many nodes they lose.
    """

    def __init__(
        self,
        data: PageData,
        dictionary: Dictionary,
        *,
        split: str,
        max_positions: int,
        max_nodes: int | None,
        only_with_phrases: bool = False,
        shuffle: bool = True,
    ):
        self.data, self.dictionary, self.split, self.shuffle = data, dictionary, split, shuffle
        self._most = max_positions, max_nodes
        kept, sizes, self.cut, self.nodes_left_out = [], [], 0, 0
        for index, page in enumerate(map(data.__getitem__, range(len(data)))):
            part = page.within(*self._most)
            self.cut += len(part.starts) < len(page.starts)
            self.nodes_left_out += 0 if max_nodes is None else len(page.nodes) - len(part.nodes)
            if len(part.phrases) or not only_with_phrases:
                kept.append(index)
                sizes.append(len(part.tokens))
        self.pages, self.sizes = np.array(kept, np.int64), np.array(sizes, np.int64)

    def __len__(self) -> int:
        return len(self.pages)

    def __getitem__(self, index: int) -> dict[str, Any]:
        number = int(self.pages[index])
        return {"id": number, "page": self.data[number].within(*self._most)}

    def collater(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        """A batch: what the model reads, ``net_input``; the right ``phrases`` int64 [B, P, 2] (of
        no words: no more) and ``first`` int64 [B, 5, W], both as in `Page`, as ``target``; and
        the ``split`` that ``id`` counts in."""
        if not samples:
            return {}
        pages = [sample["page"] for sample in samples]
        inputs = batch_of_pages(pages, self.dictionary.pad())
        most = int(inputs["page"]["num_words"].max())
        first = np.stack([page.first_places(most) for page in pages])
        phrases = pad_sequence([torch.from_numpy(page.phrases) for page in pages], True)
        return {
            "id": torch.tensor([sample["id"] for sample in samples]),
            "split": self.split,
            "net_input": inputs,
            "target": {"phrases": phrases, "first": torch.from_numpy(first)},
            "nsentences": len(samples),
            "ntokens": sum(len(page.tokens) for page in pages),
        }


def batch_of_pages(pages: Sequence[Page], padding: int) -> dict[str, Any]:
    """What a model of keyphrases reads of B pages: ``src_tokens``, int64 [B, N], and ``page``: the
    word and the node of each token, ``words`` and ``token_nodes``, int64 [B, N]; the tokens
    [first, last) of ``nodes``, int64 [B, G, 2]; ``visual``, int64 [B, G, 20]; ``num_words`` and
    ``num_nodes``, int64 [B]. Padding is 0, except for tokens."""
    rows = []
    for page in pages:
        words = np.searchsorted(page.starts, np.arange(len(page.tokens)), "right") - 1
        node = np.arange(len(page.nodes)).repeat(page.nodes[:, 1] - page.nodes[:, 0])
        bounds = np.append(page.starts, len(page.tokens))[page.nodes]
        rows.append((page.tokens, words, node[words], bounds, page.visual))
    tokens, *more = (
        pad_sequence([torch.from_numpy(x) for x in column], True, fill)
        for column, fill in zip(zip(*rows, strict=True), (padding, 0, 0, 0, 0), strict=True)
    )
    batch = dict(zip(("words", "token_nodes", "nodes", "visual"), more, strict=True))
    batch["num_words"] = torch.tensor([len(page.starts) for page in pages])
    batch["num_nodes"] = torch.tensor([len(page.nodes) for page in pages])
    return {"src_tokens": tokens, "page": batch}
