"""What is in a cluster: its size, its words (CF20, table 6), where they stand, how far it reaches.

This works on lists of tokens and of their clusters, and knows nothing of models.
"""

import math
import re
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from fairseq_clusterformer.attention.inspect import oldest_key_in_sight
from fairseq_clusterformer.clustering import cluster_use
from fairseq_clusterformer.errors import bad_option

LONGEST_ENDING = 12  # characters
LONGEST_RUN = 4
_LONG_RUN = re.compile(rf"((.)\2{{{LONGEST_RUN - 1}}})\2+", re.DOTALL)
_LAST_WORD = re.compile(r"\s{2,}\Z|\S*\s?\Z")
# Paul Tol's "light" scheme, made for the backgrounds of text; neighbours are far apart in it.
_LIGHT = "#77aadd #ee8866 #eedd88 #44bb99 #ffaabb #bbcc33 #99ddff #dddddd #aaaa00".split()
# From the tenth cluster on, the colours come again with a pattern: the angles of its stripes.
_PATTERNS = {"": (), "//": (-45,), "\\\\": (45,), "xx": (-45, 45)}

#: what a token is called, and the words that tokens belong to, by the unit of the text
LABELS = {
    "byte": ("characters", "words, as far as read"),
    "piece": ("pieces", "words, as far as read"),
    "word": ("words", "after the one before"),
    "subword": ("subwords", "whole words"),
}


class Item(NamedTuple):
    """Something that a cluster has more of than chance would give it: ``inside`` the cluster so
    many times of its ``total`` times."""

    text: str
    inside: int
    total: int


@dataclass(frozen=True)
class Cluster:
    """What is in a cluster: tokens and endings typical of it, and its ``reach``: how many tokens
    back a query in it sees, the median (None: unknown)."""

    index: int
    size: int  # in tokens
    share: float  # of them all
    tokens: list[Item]
    endings: list[Item]
    reach: int | None


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
    unit: str  # what a token is: "byte", "piece", "word" or "subword"
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
    rows: Sequence[Sequence[str]],
    clusters: Sequence[Sequence[int]],
    num_clusters: int,
    *,
    window: int | None = None,
    endings: Sequence[Sequence[str]],
) -> list[Cluster]:
    """Describe each cluster of one layer over a text.

    Args:
        rows: what each token reads, for each row that the model saw on its own.
        clusters, endings: of the same tokens; see :func:`word_endings`.
        window: keys of its own cluster that a query sees (causal, recent rule), if that is known.
    """
    flat = [cluster for row in clusters for cluster in row]
    size = Counter(flat)
    of_tokens = typical_items([t for row in rows for t in row], flat, num_clusters)
    of_endings = typical_items([e for row in endings for e in row], flat, num_clusters)
    reach = [None] * num_clusters if window is None else _reach(clusters, num_clusters, window)
    return [
        Cluster(i, size[i], size[i] / max(len(flat), 1), of_tokens[i], of_endings[i], reach[i])
        for i in range(num_clusters)
    ]


def _reach(clusters: Sequence[Sequence[int]], num_clusters: int, window: int) -> list[int | None]:
    """Median distance from a query to the oldest key that it sees, for each cluster."""
    distances: list[list[int]] = [[] for _ in range(num_clusters)]
    for row in clusters:
        oldest = oldest_key_in_sight(torch.tensor(row), window).tolist()
        for position, (cluster, first) in enumerate(zip(row, oldest, strict=True)):
            distances[cluster].append(position - first)
    return [round(statistics.median(d)) if d else None for d in distances]


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
    """Background of a cluster, ``#rrggbb``."""
    return _LIGHT[cluster % len(_LIGHT)]


def pattern(cluster: int) -> str:
    """Matplotlib's hatch over the background; empty for the first clusters."""
    return [*_PATTERNS][cluster // len(_LIGHT) % len(_PATTERNS)]


def css(cluster: int) -> str:
    """Background of a cluster, hatch included, as a CSS declaration."""
    stripe = "repeating-linear-gradient({}deg,#0003 0 1px,#0000 1px 5px)"
    stripes = ",".join(map(stripe.format, _PATTERNS[pattern(cluster)]))
    return f"background:{stripes} {colour(cluster)}"
