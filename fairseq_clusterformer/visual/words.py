"""What is in a cluster: its size, and its words (CF20, table 6).

This works on lists of tokens and of their clusters, and knows nothing of models.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from fairseq_clusterformer.clustering import cluster_use

MOST_ITEMS = 10  # of a cluster
LONGEST_ENDING = 12  # characters
LONGEST_RUN = 4
_LONG_RUN = re.compile(rf"((.)\2{{{LONGEST_RUN - 1}}})\2+", re.DOTALL)
_LAST_WORD = re.compile(r"\s{2,}\Z|\S*\s?\Z")


class Item(NamedTuple):
    """Something that a cluster has more of than chance would give it: ``inside`` the cluster so
    many times of its ``total`` times."""

    text: str
    inside: int
    total: int


@dataclass(frozen=True)
class Cluster:
    """What is in a cluster: tokens and endings typical of it."""

    index: int
    size: int  # in tokens
    share: float  # of them all
    tokens: list[Item]
    endings: list[Item]


@dataclass(frozen=True)
class DrawnLayer:
    """One clustering of a model, over a passage and over a text."""

    name: str  # such as "layer 2 of layers 0 to 3, all heads, neural"
    window: int | None  # keys of its own cluster that a query sees, if that is the rule
    passage: list[int]  # the cluster of each token of the passage
    clusters: list[Cluster]  # what is in each of them over the text

    @property
    def spread(self) -> float:
        """Among how many clusters the passage is divided: exp of the entropy of their shares."""
        sizes = torch.tensor([*Counter(self.passage).values()])
        return cluster_use(sizes).effective.item()


@dataclass(frozen=True)
class ClusteredText:
    """A passage and the clusters that a model puts its tokens into."""

    model: str  # one line that says which model this is
    unit: str  # what a token is: "byte", "piece" or "word"
    tokens: list[str]  # what each token of the passage shows; joined, they are the passage
    row: int  # tokens that the model sees at once; a longer passage is read in parts
    counted: str  # one sentence on the text whose clusters are counted
    note: str  # what else a reader of the page must know
    layers: list[DrawnLayer]  # one or more


def typical_items(
    items: Sequence[str], clusters: Sequence[int], num_clusters: int
) -> list[list[Item]]:
    """For each cluster, what it has more of than chance would give, most telling first: by
    ``inside * log(share of the item in the cluster / share of the cluster)``, what the pair adds
    to the mutual information of items and clusters. This puts neither the rare first nor what is
    frequent everywhere. There is an item for each token; empty ones count as tokens only."""
    total, size = Counter(items), Counter(clusters)
    ranked: list[list[tuple[float, Item]]] = [[] for _ in range(num_clusters)]
    for (cluster, text), count in Counter(zip(clusters, items, strict=True)).items():
        lift = count * len(items) / (total[text] * size[cluster])
        if text and lift > 1:
            ranked[cluster].append((-count * math.log(lift), Item(text, count, total[text])))
    return [[item for _, item in sorted(of_cluster)[:MOST_ITEMS]] for of_cluster in ranked]


def describe(
    tokens: Sequence[str], clusters: Sequence[int], num_clusters: int, endings: Sequence[str]
) -> list[Cluster]:
    """Describe each cluster of one layer over the tokens of a text, by what each of them reads and
    by its ending; see :func:`word_endings`."""
    size = Counter(clusters)
    typical = [typical_items(items, clusters, num_clusters) for items in (tokens, endings)]
    return [
        Cluster(i, size[i], size[i] / len(tokens), *of)
        for i, of in enumerate(zip(*typical, strict=True))
    ]


def word_endings(tokens: Sequence[str]) -> list[str]:
    """The word that each token ends, as far as it has been read: ``th``, ``the``, ``the ``. A
    blank belongs to the word before it; several are a word of their own. The last `LONGEST_ENDING`
    characters, and of one in a row at most `LONGEST_RUN`; empty where a token shows nothing, and
    for a single character, which is no word."""
    endings, tail = [], ""
    for token in tokens:
        tail = (tail + token)[-max(LONGEST_ENDING, len(token)) :]
        word = _LONG_RUN.sub(r"\1", _LAST_WORD.search(tail)[0])
        endings.append(word if token and len(word) > 1 else "")
    return endings
