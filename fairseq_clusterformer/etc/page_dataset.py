"""Web pages as samples of a model of keyphrases."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from fairseq.data import Dictionary
from fairseq.data.data_utils import collate_tokens
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from fairseq_clusterformer.data.by_size import BySize

from .pages import Page, PageData


class PageDataset(BySize):
    """Pages with their keyphrases; long ones lose their end.

    Args:
        data, split: the pages of a split, and its name, which is in each batch.
        dictionary: of its tokens.
        max_positions, max_nodes: tokens and nodes of a page.
        only_with_phrases: leave out pages of which no keyphrase is left.
        shuffle: pages of one length come in a random order.

    Attributes:
        pages: the numbers in ``data`` of those that are used.
        cut: how many of all pages lose their end.
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
        shuffle: bool = True,
    ):
        self.data, self.dictionary, self.split = data, dictionary, split
        self.max_positions, self.max_nodes, self.shuffle = max_positions, max_nodes, shuffle
        kept, sizes, self.cut = [], [], 0
        for index, page in enumerate(data):
            part = page.within(max_positions, max_nodes)
            self.cut += len(part.starts) < len(page.starts)
            if len(part.phrases) or not only_with_phrases:
                kept.append(index)
                sizes.append(len(part.tokens))
        self.pages, self.sizes = np.array(kept, np.int64), np.array(sizes, np.int64)

    def __len__(self) -> int:
        return len(self.pages)

    def __getitem__(self, index: int) -> dict[str, Any]:
        number = int(self.pages[index])
        return {"id": number, "page": self.data[number].within(self.max_positions, self.max_nodes)}

    def collater(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        """A batch: what the model reads as ``net_input``; what is right as ``target``: ``phrases``
        int64 [B, P, 2] (of no words: no more) and ``first`` int64 [B, 5, W], both as in `Page`;
        and the ``split`` that ``id`` counts in."""
        if not samples:
            return {}
        pages = [sample["page"] for sample in samples]
        inputs = batch_of_pages(pages, self.dictionary.pad())
        most = int(inputs["page"]["num_words"].max())
        places = torch.arange(most)
        return {
            "id": torch.tensor([sample["id"] for sample in samples]),
            "split": self.split,
            "net_input": inputs,
            "target": {
                "phrases": pad_sequence([page.phrases for page in pages], True),
                "first": torch.stack([_wide(page.first_places(), places) for page in pages]),
            },
            "nsentences": len(samples),
            "ntokens": sum(len(page.tokens) for page in pages),
        }


def batch_of_pages(pages: Sequence[Page], padding: int) -> dict[str, Any]:
    """What a model of keyphrases reads of B pages: ``src_tokens``, int64 [B, N], and ``page``.

    That has the word and the node of each token, ``words`` and ``token_nodes``, int64 [B, N]; the
    tokens [first, last) of ``nodes``, int64 [B, G, 2]; ``visual``, int64 [B, G, 20]; ``num_words``
    and ``num_nodes``, int64 [B]. Padding is 0, except for tokens.
    """
    words = [page.words_of_tokens() for page in pages]
    rows = {
        "words": words,
        "token_nodes": [p.nodes_of_words()[w] for p, w in zip(pages, words, strict=True)],
        "nodes": [_in_tokens(page) for page in pages],
        "visual": [page.visual for page in pages],
    }
    batch = {name: pad_sequence(tensors, True) for name, tensors in rows.items()}
    batch["num_words"] = torch.tensor([len(page.starts) for page in pages])
    batch["num_nodes"] = torch.tensor([len(page.nodes) for page in pages])
    return {"src_tokens": collate_tokens([p.tokens for p in pages], padding), "page": batch}


def _in_tokens(page: Page) -> Tensor:
    """Tokens [first, last) of each node."""
    return torch.cat([page.starts, page.starts.new_tensor([len(page.tokens)])])[page.nodes]


def _wide(first: Tensor, places: Tensor) -> Tensor:
    """Of [5, W] as many words as there are places; those behind stand at their own."""
    number = first.size(1)
    return pad(first, (0, len(places) - number)) + places * (places >= number)
