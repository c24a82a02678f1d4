"""What is in a cluster: its size, and its words (CF20, table 6).

This works on lists of tokens and of their clusters, and knows nothing of models.
"""

import colorsys
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from fairseq_clusterformer.clustering import cluster_use
from fairseq_clusterformer.errors import bad_option

LONGEST_ENDING = 12  # characters
LONGEST_RUN = 4
_LONG_RUN = re.compile(rf"((.)\2{{{LONGEST_RUN - 1}}})\2+", re.DOTALL)
_LAST_WORD = re.compile(r"\s{2,}\Z|\S*\s?\Z")

#: what a token is called, and the words that tokens belong to, by the unit of the text
LABELS = {
    "byte": ("characters", "words, as far as read"),
    "piece": ("pieces", "words, as far as read"),
    "word": ("words", "after the one before"),
}


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

    number: int  # of the layer, from 0
    name: str  # such as "layer 2 of layers 0 to 3, all heads, neural"
    window: int | None  # keys of its own cluster that a query sees, if that is the rule
    passage: list[int]  # the cluster of each token of the passage
    clusters: list[Cluster]  # what is in each of them over the text

    def largest(self, most: int) -> list[Cluster]:
        """The clusters of most tokens, in the order of their numbers."""
        return sorted(sorted(self.clusters, key=lambda c: -c.size)[:most], key=lambda c: c.index)

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

    def most_spread(self, number: int | None = None) -> DrawnLayer:
        """Of the layer with this number, or of all, the clustering that divides the passage most
        evenly, and of equals the last: heads may cluster apart, and some put all into one. Raises
        UserError if that layer does not cluster."""
        numbers = sorted({layer.number for layer in self.layers})
        if number is not None and number not in numbers:
            allowed = ", ".join(map(str, numbers))
            raise bad_option("--layer", number, allowed, "this layer does not cluster")
        some = [layer for layer in self.layers if number in (None, layer.number)]
        return max(reversed(some), key=lambda layer: round(layer.spread, 3))


def typical_items(
    items: Sequence[str], clusters: Sequence[int], num_clusters: int, most: int = 10
) -> list[list[Item]]:
    """For each cluster, what it has more of than chance would give, most telling first: by
    ``inside * log(share of the item in the cluster / share of the cluster)``, what the pair adds
    to the mutual information of items and clusters. This puts neither the rare first nor what is
    frequent everywhere. There is an item for each token; empty ones count as tokens only."""
    total = Counter(items)
    inside = Counter(zip(clusters, items, strict=True))
    size = Counter(clusters)
    ranked: list[list[tuple[float, Item]]] = [[] for _ in range(num_clusters)]
    for (cluster, text), count in inside.items():
        lift = count * len(items) / (total[text] * size[cluster])
        if text and lift > 1:
            ranked[cluster].append((-count * math.log(lift), Item(text, count, total[text])))
    return [[item for _, item in sorted(of_cluster)[:most]] for of_cluster in ranked]


def describe(
    tokens: Sequence[str], clusters: Sequence[int], num_clusters: int, endings: Sequence[str]
) -> list[Cluster]:
    """Describe each cluster of one layer over the tokens of a text, by what each of them reads and
    by its ending; see :func:`word_endings`."""
    size = Counter(clusters)
    of_tokens = typical_items(tokens, clusters, num_clusters)
    of_endings = typical_items(endings, clusters, num_clusters)
    return [
        Cluster(i, size[i], size[i] / max(len(tokens), 1), of_tokens[i], of_endings[i])
        for i in range(num_clusters)
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


def word_pairs(tokens: Sequence[str]) -> list[str]:
    """Each token with the one before it; the first one alone."""
    return [before + token for before, token in zip(["", *tokens], tokens, strict=False)]


def visible(text: str) -> str:
    """Blanks, tabs and line ends as signs."""
    return text.replace(" ", "\u2423").replace("\n", "\u23ce").replace("\t", "\u21e5")


def colour(cluster: int) -> str:
    """Background of a cluster, ``#rrggbb``: light, its hue far from those of its neighbours."""
    rgb = colorsys.hls_to_rgb(0.618 * cluster % 1, (0.78, 0.68, 0.86)[cluster % 3], 0.75)
    return "#" + "".join(f"{round(255 * part):02x}" for part in rgb)
