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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq.data import Dictionary
from fairseq.data.data_utils import collate_tokens
from fairseq.data.indexed_dataset import best_fitting_int_dtype
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fairseq_clusterformer.data.by_size import BySize
from fairseq_clusterformer.data.stored import RecordData, RecordWriter
from fairseq_clusterformer.data.subwords import Subwords

from .records import MOST_WORDS, VISUAL, PageRecord, phrase_places

_PARTS = ("document", "page")


@dataclass(frozen=True, eq=False)
class Page:
    """A page to train on, or to find keyphrases in."""

    tokens: Tensor  # int64 [N]
    starts: Tensor  # the first token of each word, int64 [W]; that of the next where it has none
    folded: Tensor  # equal numbers for words that are equal in lower case, int64 [W]
    nodes: Tensor  # words [first, last) of each, which cover all in their order, int64 [G, 2]
    visual: Tensor  # what each node looks like, int64 [G, 20]; see `VISUAL`
    # the first word of each keyphrase where it first stands in one node, and its number of words,
    # int64 [P, 2]
    phrases: Tensor
    is_text: bool = False  # its only node is no node of the page

    def item(self) -> np.ndarray:
        """All but the tokens as an item of ``SPLIT.page``, int32: W, G and P; then all fields."""
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

    def as_text(self, record: PageRecord) -> "Page":
        """The page as text without nodes: keyphrases may stand anywhere in it."""
        one = replace(record, nodes=((0, len(record.words)),))
        return replace(
            self,
            nodes=torch.tensor(one.nodes),
            visual=torch.zeros(1, VISUAL, dtype=torch.int64),
            phrases=torch.tensor(phrase_places(one), dtype=torch.int64).view(-1, 2),
            is_text=True,
        )

    def within(self, tokens: int, nodes: int) -> "Page":
        """The beginning of the page: whole nodes, so many or fewer, of so many tokens; of a text,
        whole words. If not even the first of them fits, what does of its words, or of its first
        word, and no keyphrase; empty nodes in front may be left out then."""
        bounds = torch.cat([self.starts, self.starts.new_tensor([len(self.tokens)])])
        words = int((bounds[1:] <= tokens).sum())
        empty = int((self.nodes[:, 1] == 0).sum())
        first = empty if empty >= nodes else 0
        last = min(int((bounds[self.nodes[:, 1]] <= tokens).sum()), first + nodes)
        is_cut = last <= empty  # the first node that is not empty
        if is_cut:
            last, words = empty + 1, max(min(words, int(self.nodes[empty, 1])), 1)
        else:
            words = int(self.nodes[last - 1, 1])
        phrases = self.phrases[self.phrases.sum(1) <= words]
        return replace(
            self,
            tokens=self.tokens[: min(int(bounds[words]), tokens)],
            starts=self.starts[:words],
            folded=self.folded[:words],
            nodes=self.nodes[first:last].clamp(max=words),
            visual=self.visual[first:last],
            phrases=phrases[: 0 if is_cut and not self.is_text else None],
        )

    def words_of_tokens(self) -> Tensor:
        """The word of each token, int64 [N]."""
        place = torch.arange(len(self.tokens))
        return torch.searchsorted(self.starts.contiguous(), place, right=True) - 1

    def nodes_of_words(self) -> Tensor:
        """The node of each word, int64 [W]."""
        first, last = self.nodes.unbind(1)
        return torch.arange(len(self.nodes)).repeat_interleave(last - first)

    def first_places(self, words: int) -> Tensor:
        """Where each n-gram first stands in one node, as its first word, int64 [5, words]: row i
        has those of i + 1 words. An n-gram that is in no node stands at its own place only, and so
        does what is behind the page's words."""
        places = torch.arange(words).repeat(MOST_WORDS, 1)
        node, folded = self.nodes_of_words().numpy(), self.folded.numpy()
        number = len(folded)
        same = folded  # equal numbers for n-grams that are equal
        for length in range(1, min(MOST_WORDS, number) + 1):
            if length > 1:  # the n-gram of one word less, and one word
                pairs = same[:-1].astype(np.int64) * number + folded[length - 1 :]
                same = np.unique(pairs, return_inverse=True)[1]
            (whole,) = np.nonzero(node[: number - length + 1] == node[length - 1 :])
            _, first, of = np.unique(same[whole], return_index=True, return_inverse=True)
            places[length - 1, whole] = torch.from_numpy(whole[first][of])
        return places


@dataclass(frozen=True)
class Encoded:
    """A page in a subword model's ids [N], and the first token of each word [W]."""

    ids: np.ndarray
    starts: np.ndarray
    record: PageRecord


def encode_record(record: PageRecord, *, model: Subwords) -> Encoded:
    """The tokens of a page. The blank before a word belongs to it."""
    tokens = model.encode(" ".join(record.words))
    lengths = np.array([len(word) + 1 for word in record.words])
    begins = np.cumsum(lengths) - lengths - 1
    last = np.maximum(tokens.ends - 1, tokens.starts)
    word = np.searchsorted(begins, last, side="right") - 1
    starts = np.searchsorted(word, np.arange(len(record.words)))
    return Encoded(tokens.ids, starts, record)


def page_of(item: Encoded, to_index: Sequence[int]) -> Page:
    """A page in symbols of a dictionary; ``to_index`` has the one of each of the model's ids."""
    record = item.record
    known: dict[str, int] = {}
    folded = [known.setdefault(word.lower(), len(known)) for word in record.words]
    return Page(
        tokens=torch.from_numpy(np.asarray(to_index)[item.ids]),
        starts=torch.from_numpy(item.starts),
        folded=torch.tensor(folded),
        nodes=torch.tensor(record.nodes).view(-1, 2),
        visual=torch.tensor(record.visual).view(-1, VISUAL),
        phrases=torch.tensor(phrase_places(record), dtype=torch.int64).view(-1, 2),
    )


class PageWriter(RecordWriter):
    """Writes a split into a folder with a ``dict.txt`` of so many symbols, in a ``with``."""

    def __init__(self, folder: Path, split: str, *, vocab_size: int) -> None:
        dtypes = (best_fitting_int_dtype(vocab_size), np.int32)
        super().__init__(folder, split, dict(zip(_PARTS, dtypes, strict=True)))

    def add(self, page: Page, texts: Mapping) -> None:
        """Add a page, and what becomes its line of ``SPLIT.jsonl``."""
        self.write((page.tokens, page.item()), texts)


class PageData(RecordData):
    """The pages of a split; see :class:`RecordData`."""

    def __init__(self, folder: Path | str, split: str) -> None:
        super().__init__(folder, split, _PARTS, "python examples/etc/openkp/prepare.py")

    def __getitem__(self, index: int) -> Page:
        if not 0 <= index < len(self):
            raise IndexError(f"page {index} of {len(self)}")
        return Page.of(*(self._parts[part][index].long() for part in _PARTS))

    def record(self, index: int) -> PageRecord:
        """The words and keyphrases of a page, without its nodes."""
        texts = self.texts(index)
        phrases = [tuple(phrase.split(" ")) for phrase in texts["phrases"] or ()]
        return PageRecord(texts["url"], tuple(texts["text"].split(" ")), (), (), tuple(phrases))


class PageDataset(BySize):
    """Pages with their keyphrases; those of more than ``max_positions`` tokens or ``max_nodes``
    nodes lose their last nodes. With ``only_with_phrases``, those that have no keyphrase left are
    out. With ``as_text``, pages have no nodes, and lose words.

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
        max_nodes: int,
        only_with_phrases: bool = False,
        as_text: bool = False,
        shuffle: bool = True,
    ):
        self.data, self.dictionary, self.split = data, dictionary, split
        self.max_positions, self.max_nodes, self.shuffle = max_positions, max_nodes, shuffle
        self.as_text = as_text
        kept, sizes, self.cut, self.nodes_left_out = [], [], 0, 0
        for index in range(len(data)):
            page, part = data[index], self._part(index)
            self.cut += len(part.starts) < len(page.starts)
            self.nodes_left_out += 0 if as_text else len(page.nodes) - len(part.nodes)
            if len(part.phrases) or not only_with_phrases:
                kept.append(index)
                sizes.append(len(part.tokens))
        self.pages, self.sizes = np.array(kept, np.int64), np.array(sizes, np.int64)

    def __len__(self) -> int:
        return len(self.pages)

    def __getitem__(self, index: int) -> dict[str, Any]:
        number = int(self.pages[index])
        return {"id": number, "page": self._part(number)}

    def _part(self, number: int) -> Page:
        page = self.data[number]
        if self.as_text:
            page = page.as_text(self.data.record(number))
        return page.within(self.max_positions, self.max_nodes)

    def collater(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        """A batch: what the model reads, ``net_input``; the right ``phrases`` int64 [B, P, 2] (of
        no words: no more) and ``first`` int64 [B, 5, W], both as in `Page`, as ``target``; and
        the ``split`` that ``id`` counts in."""
        if not samples:
            return {}
        pages = [sample["page"] for sample in samples]
        inputs = batch_of_pages(pages, self.dictionary.pad())
        most = int(inputs["page"]["num_words"].max())
        return {
            "id": torch.tensor([sample["id"] for sample in samples]),
            "split": self.split,
            "net_input": inputs,
            "target": {
                "phrases": pad_sequence([page.phrases for page in pages], True),
                "first": torch.stack([page.first_places(most) for page in pages]),
            },
            "nsentences": len(samples),
            "ntokens": sum(len(page.tokens) for page in pages),
        }


def batch_of_pages(pages: Sequence[Page], padding: int) -> dict[str, Any]:
    """What a model of keyphrases reads of B pages: ``src_tokens``, int64 [B, N], and ``page``: the
    word and the node of each token, ``words`` and ``token_nodes``, int64 [B, N]; the tokens
    [first, last) of ``nodes``, int64 [B, G, 2]; ``visual``, int64 [B, G, 20]; ``num_words`` and
    ``num_nodes``, int64 [B]. Padding is 0, except for tokens."""
    words = [page.words_of_tokens() for page in pages]
    rows = {
        "words": words,
        "token_nodes": [p.nodes_of_words()[w] for p, w in zip(pages, words, strict=True)],
        "nodes": [torch.cat([p.starts, torch.tensor([len(p.tokens)])])[p.nodes] for p in pages],
        "visual": [page.visual for page in pages],
    }
    batch = {name: pad_sequence(tensors, True) for name, tensors in rows.items()}
    batch["num_words"] = torch.tensor([len(page.starts) for page in pages])
    batch["num_nodes"] = torch.tensor([len(page.nodes) for page in pages])
    return {"src_tokens": collate_tokens([p.tokens for p in pages], padding), "page": batch}
