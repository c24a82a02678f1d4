"""Web pages and their keyphrases (OpenKP, Xiong et al. 2019): as they are read, on disk as
``prepare.py`` writes them, and as samples of a model.

A folder holds the model of its subwords, ``dict.txt`` and, for each split, ``SPLIT.document``
(.bin, .idx: fairseq's, the tokens of each page, without ``</s>``) and ``SPLIT.jsonl`` with
``SPLIT.lines.npy``, where each of its lines begins. A line says of a page

==========  ===================================================================================
``url``     its address
``text``    its words, with single blanks between them
``starts``  the first token of each word; that of the next one where it has none
``nodes``   words [first, last) of each node that has some; they cover all in their order
``visual``  what each node looks like, in whole numbers; see :data:`VISUAL`
``phrases`` the keyphrases, distinct, in lower case; null: unknown
``places``  the first word of each, where it first stands in one node, and its number of words;
            of those that do, and have 5 words or fewer
==========  ===================================================================================

Shape letters: B batch, N tokens, W words, G nodes, P keyphrases.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from fairseq.data import Dictionary
from torch.nn.utils.rnn import pad_sequence

from fairseq_clusterformer.corpora.question_answering import records
from fairseq_clusterformer.corpora.question_answering.records import Unusable, get
from fairseq_clusterformer.data.stored import BySize, RecordData
from fairseq_clusterformer.data.subwords import Subwords

VISUAL = 20  # numbers that say what a node looks like, ten its own, ten its parent's: prepare.py
MOST_WORDS = 5  # of a keyphrase
_YES_OR_NO = (4, 5, 6, 7, 9, 14, 15, 16, 17, 19)


def read_pages(path: Path, drops: records.Drops, *, keep_unfound: bool) -> Iterator[dict]:
    """Yield each line's page, the first of an address; ``keep_unfound``: without a phrase, too."""
    seen = set()
    for place, item in records.json_lines(path, drops):
        with drops.at(place):
            page = page_of(item)
            if not keep_unfound and not page["places"]:
                known = ", ".join(map(repr, page["phrases"] or ())) or "none"
                raise Unusable("no keyphrase in the text", f"{known} of {page['url']}")
            if page["url"] in seen:
                raise Unusable("url seen before", page["url"])
            seen.add(page["url"])
            yield page


def page_of(item: Mapping) -> dict[str, Any]:
    """A page as above, without ``starts``, from one as in OpenKP's files; raises `Unusable`."""
    url, text, vdom = get(item, "url"), get(item, "text"), get(item, "VDOM", (str, list))
    if half := records.half_in(url + text):
        raise Unusable("not valid Unicode", half)
    if isinstance(vdom, str):
        found = records.parse_json(vdom.encode("utf-8", "surrogatepass"))
        vdom = get({"VDOM": found}, "VDOM", list)
    words, nodes, visual = [], [], []
    for place, node in enumerate(vdom):
        looks = get(node, "feature", list)
        known = all(isinstance(x, int | float) and math.isfinite(x) for x in looks)
        if not known or len(looks) != VISUAL or {looks[n] for n in _YES_OR_NO} - {0, 1}:
            allowed = f"{VISUAL} numbers, those at {', '.join(map(str, _YES_OR_NO))} 0 or 1"
            problem = f"the feature of node {place} of {url} is {str(looks)[:80]}"
            raise Unusable("feature that is none", f"{problem}; allowed: {allowed}")
        if own := get(node, "text").split():
            nodes.append((len(words), len(words) + len(own)))
            visual.append(np.clip(looks, -1e9, 1e9).round().astype(int).tolist())
            words += own
    if not words or words != text.split():
        raise Unusable("nodes that do not cover the text", f"those of {url}")
    phrases = None
    if item.get("KeyPhrases") is not None:
        lower = (" ".join(each).lower().split() for each in get(item, "KeyPhrases", list))
        phrases = list(dict.fromkeys(" ".join(phrase) for phrase in lower if phrase))
    grams = {gram: first for gram, _, first in _grams([word.lower() for word in words], nodes)}
    known = (tuple(phrase.split()) for phrase in phrases or ())
    places = [(grams[gram], len(gram)) for gram in known if gram in grams]
    page = {"url": url, "text": " ".join(words), "nodes": nodes, "visual": visual}
    return page | {"phrases": phrases, "places": places}


def _grams(words: Sequence, nodes: Sequence) -> Iterator[tuple[tuple, int, int]]:
    """Yield each n-gram of 1 to 5 words in one node, its place, and where it first stands."""
    found: dict[tuple, int] = {}
    for first, last in nodes:
        for place in range(first, last):
            for end in range(place + 1, min(place + MOST_WORDS, last) + 1):
                gram = tuple(words[place:end])
                yield gram, place, found.setdefault(gram, place)


def encode(
    page: dict[str, Any], *, model: Subwords, to_index: Sequence[int]
) -> tuple[np.ndarray, dict[str, Any]]:
    """The tokens of a page, where the blank before a word belongs to it, and the page with
    ``starts``; ``to_index`` has the symbol in a dictionary of each of the model's ids."""
    tokens = model.encode(page["text"])
    lengths = np.array([len(word) + 1 for word in page["text"].split(" ")])
    begins = np.cumsum(lengths) - lengths - 1
    word = np.searchsorted(begins, np.maximum(tokens.ends - 1, tokens.starts), "right") - 1
    starts = np.searchsorted(word, np.arange(len(lengths))).tolist()
    return np.asarray(to_index)[tokens.ids], page | {"starts": starts}


class Page(NamedTuple):
    """A page to train on, or to find keyphrases in, in whole numbers; see above."""

    tokens: np.ndarray  # [N]
    starts: np.ndarray  # [W]
    folded: np.ndarray  # equal numbers for words that are equal in lower case, [W]
    nodes: np.ndarray  # [G, 2]
    visual: np.ndarray  # [G, 20]
    places: np.ndarray  # [P, 2]

    @classmethod
    def of(cls, tokens: np.ndarray, page: Mapping[str, Any]) -> "Page":
        _, folded = np.unique(page["text"].lower().split(" "), return_inverse=True)
        nodes, visual = np.array(page["nodes"], int), np.array(page["visual"], int)
        places = np.array(page["places"], int).reshape(-1, 2)
        return cls(tokens, np.array(page["starts"]), folded, nodes, visual, places)

    def within(self, tokens: int, nodes: int) -> "Page":
        """The beginning of the page: whole nodes, so many or fewer, of so many tokens; of the
        first node at least what fits, and its first word."""
        ends = np.append(self.starts[1:], len(self.tokens))  # of words
        words = max(int(np.searchsorted(ends, tokens, "right")), 1)
        kept = max(min(int((self.nodes[:, 1] <= words).sum()), nodes), 1)
        words = min(words, int(self.nodes[kept - 1, 1]))
        own, starts = self.tokens[: min(ends[words - 1], tokens)], self.starts[:words]
        bounds, places = self.nodes[:kept].clip(max=words), self.places
        places = places[places.sum(1) <= words]
        return Page(own, starts, self.folded[:words], bounds, self.visual[:kept], places)

    def first_places(self, words: int) -> np.ndarray:
        """Where each n-gram first stands in one node, as its first word, [5, words]: row i has
        those of i + 1 words. What is in no node stands at its own place."""
        places = np.tile(np.arange(words), (MOST_WORDS, 1))
        for gram, place, first in _grams(self.folded.tolist(), self.nodes.tolist()):
            places[len(gram) - 1, place] = first
        return places


class PageData(RecordData):
    """The pages of a split. Raises FileNotFoundError or ValueError: see :class:`RecordData`."""

    def __init__(self, folder: Path, split: str) -> None:
        super().__init__(folder, split, ("document",), "python examples/etc/openkp/prepare.py")

    def __getitem__(self, index: int) -> Page:
        with self.reading(index):
            return Page.of(self._parts["document"][index].long().numpy(), self.texts(index))


class PageDataset(BySize):
    """Pages of a split with their keyphrases. By the task's options, ``cut`` of all pages lose
    their last nodes; training leaves out those that have no keyphrase left, as in the paper.
    ``pages`` are the numbers in ``data`` of those that are used."""

    def __init__(self, data: PageData, split: str, dictionary: Dictionary, cfg: Any):
        self.data, self.split, self.dictionary = data, split, dictionary
        self.shuffle, self._most = not cfg.no_shuffle, (cfg.max_positions, cfg.max_nodes)
        kept, self.cut = {}, 0  # the sizes of pages
        for index, page in enumerate(map(data.__getitem__, range(len(data)))):
            part = page.within(*self._most)
            self.cut += len(part.starts) < len(page.starts)
            if len(part.places) or split != cfg.train_subset:
                kept[index] = len(part.tokens)
        self.pages, self.sizes = (np.array([*x], np.int64) for x in (kept, kept.values()))

    def __getitem__(self, index: int) -> dict[str, Any]:
        number = int(self.pages[index])
        return {"id": number, "page": self.data[number].within(*self._most)}

    def batch(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        """Its targets are ``places``, int64 [B, P, 2] (of no words: no more), and
        ``first``, int64 [B, 5, W], see `Page.first_places`."""
        pages = [sample["page"] for sample in samples]
        inputs = batch_of_pages(pages, self.dictionary.pad())
        most = int(inputs["page"]["num_words"].max())
        first = np.stack([page.first_places(most) for page in pages])
        places = pad_sequence([torch.from_numpy(page.places) for page in pages], True)
        target = {"places": places, "first": torch.from_numpy(first)}
        more = {"split": self.split, "ntokens": sum(len(page.tokens) for page in pages)}
        return {"net_input": inputs, "target": target, **more}


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
    columns = ([torch.from_numpy(x) for x in column] for column in zip(*rows, strict=True))
    tokens = pad_sequence(next(columns), True, padding)
    names = ("words", "token_nodes", "nodes", "visual")
    batch = {n: pad_sequence(column, True) for n, column in zip(names, columns, strict=True)}
    batch["num_words"] = torch.tensor([len(page.starts) for page in pages])
    batch["num_nodes"] = torch.tensor([len(page.nodes) for page in pages])
    return {"src_tokens": tokens, "page": batch}
