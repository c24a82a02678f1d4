"""Pages of clusters: which tokens a model puts together, and what is typical of a cluster.

Each page is one HTML file that needs no network. The templates escape all text. Data for their
scripts is JSON in which no character can end the script.
"""

import colorsys
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import jinja2
import numpy as np
import torch
from fairseq.data import indexed_dataset
from torch import Tensor

from fairseq_clusterformer.attention.inspect import token_clusters
from fairseq_clusterformer.checkpoints.load import Loaded
from fairseq_clusterformer.data.coding import TextCoding
from fairseq_clusterformer.errors import bad_option, check_file
from fairseq_clusterformer.metrics.clusters import cluster_use

MOST_COUNTED = 1 << 16  # tokens of the validation text
MOST_SHOWN = 1 << 13  # tokens of the passage
MOST_ITEMS = 10  # of a cluster
MOST_ROWS = 24  # clusters in a table; the largest, if there are more
LONGEST_ENDING = 12  # characters
LONGEST_RUN = 4
_LONG_RUN = re.compile(rf"((.)\2{{{LONGEST_RUN - 1}}})\2+", re.DOTALL)
_LAST_WORD = re.compile(r"\s{2,}\Z|\S*\s?\Z")
SIGNS = {" ": "\u00b7", "\n": "\u23ce", "\t": "\u21e5"}  # of tokens that would not be seen
#: what a token is called, and the words that tokens belong to, by the unit of the text
LABELS = {
    "byte": ("characters", "words, as far as read"),
    "piece": ("pieces", "words, as far as read"),
    "word": ("words", "after the one before"),
}


class Item(NamedTuple):
    """Something that a cluster has more of than chance would give it."""

    text: str
    inside: int  # times in the cluster
    total: int


@dataclass(frozen=True)
class Cluster:
    """What is in a cluster (CF20, table 6)."""

    index: int
    size: int  # in tokens
    share: float  # of them all
    tokens: list[Item]  # typical of it
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
        return cluster_use(torch.tensor([*Counter(self.passage).values()])).effective.item()


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
    to the mutual information of items and clusters. There is an item for each token; empty ones
    count as tokens only."""
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
    """Each cluster of one layer over a text; see :func:`word_endings`."""
    size = Counter(clusters)
    typical = [typical_items(items, clusters, num_clusters) for items in (tokens, endings)]
    both = enumerate(zip(*typical, strict=True))
    return [Cluster(i, size[i], size[i] / len(tokens), *items) for i, items in both]


def word_endings(tokens: Sequence[str]) -> list[str]:
    """The word that each token ends, as far as it has been read: ``th``, ``the``, ``the ``. A
    blank belongs to the word before it; several are a word of their own. The last `LONGEST_ENDING`
    characters, of one in a row at most `LONGEST_RUN`; "" of nothing, and of a single character."""
    endings, tail = [], ""
    for token in tokens:
        tail = (tail + token)[-max(LONGEST_ENDING, len(token)) :]
        word = _LONG_RUN.sub(r"\1", _LAST_WORD.search(tail)[0])
        endings.append(word if token and len(word) > 1 else "")
    return endings


def colour(cluster: int) -> str:
    """Background of a cluster, ``#rrggbb``: light, its hue far from those of its neighbours."""
    rgb = colorsys.hls_to_rgb(0.618 * cluster % 1, (0.78, 0.68, 0.86)[cluster % 3], 0.75)
    return "#" + "".join(f"{round(255 * part):02x}" for part in rgb)


ENVIRONMENT = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
ENVIRONMENT.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
_SEEN = str.maketrans(SIGNS | {" ": "\u2423"})
ENVIRONMENT.filters |= {"visible": lambda text: text.translate(_SEEN), "colour": colour}


def cluster_page(text: ClusteredText) -> str:
    """The clusters of a passage, in every layer that clusters. It opens with the clustering that
    divides the passage most evenly, and of equals the last: some heads put all into one."""
    spread, listed = [round(layer.spread, 3) for layer in text.layers], []
    for layer in text.layers:
        largest = sorted(layer.clusters, key=lambda c: -c.size)[:MOST_ROWS]
        listed.append(sorted(largest, key=lambda c: c.index))
    colours = [colour(i) for i in range(max(len(layer.clusters) for layer in text.layers))]
    layers = [{"window": layer.window, "clusters": layer.passage} for layer in text.layers]
    return ENVIRONMENT.get_template("cluster_page.html").render(
        title="What clustered together",
        text=text,
        layers=[layer.name for layer in text.layers],
        first=max(range(len(spread)), key=lambda i: (spread[i], i)),
        tokens=[(i, token, SIGNS.get(token)) for i, token in enumerate(text.tokens) if token],
        labels=LABELS[text.unit],
        listed=listed,
        data={"unit": text.unit, "row": text.row, "colours": colours, "layers": layers},
    )


def read_clusters(loaded: Loaded, text: Path) -> ClusteredText:
    """Run a language model over the passage of a file and over its validation text (``valid.bin``
    of the data folder), by which clusters are described; where there is none, as in a bundle, by
    the passage. Raises UserError if no layer clusters, or the file has no text."""
    model, row = loaded.model, loaded.model.max_positions()
    coding = TextCoding.from_folder(loaded.folder, loaded.task.source_dictionary)
    check_file("--text", text, "a file of text")
    passage = coding.encode(text.read_bytes(), f"--text is {text}")
    if not len(passage):
        raise bad_option("--text", text, f"a text of one {coding.unit} or more", "is empty")
    counted = shown = passage[:MOST_SHOWN]
    if indexed_dataset.dataset_exists(valid := str(loaded.folder / "valid"), "mmap"):
        data = indexed_dataset.make_dataset(valid, "mmap")
        items = int(np.searchsorted(np.cumsum(data.sizes), MOST_COUNTED)) + 1
        counted = torch.cat([data[i] for i in range(min(items, len(data)))])[:MOST_COUNTED].long()
    of_passage, of_counted = (_clusters_by_row(model, tokens, row) for tokens in (shown, counted))
    if not of_counted:
        allowed = "a model with a kind that clusters in its --attention, such as neural"
        what = f"no layer of this {type(model).__name__} clusters"
        raise bad_option("--checkpoint", loaded.path, allowed, what)
    shows, endings = [], []
    for tokens in counted.split(row):
        shows += (of_row := shown_tokens(coding, tokens))
        joined = map(str.__add__, ["", *of_row], of_row)  # each word with the one before it
        endings += joined if coding.unit == "word" else word_endings(of_row)
    layers = []
    for (name, head), clusters in of_counted.items():
        rule = model.get_submodule(name).rule
        window = rule.window if rule.can_step and rule.gap == 0 else None
        described = describe(shows, clusters, rule.clusters, endings)
        own = of_passage[name, head]
        layers.append(DrawnLayer(_label(model, name, head), window, own, described))
    notes = []
    if len(shown) > row:
        notes.append(f"The model reads the passage in parts of {row:,} {coding.unit}s.")
    if len(passage) > len(shown):
        notes.append(f"The passage is cut after {len(shown):,} {coding.unit}s.")
    what = "the passage itself" if counted is shown else "validation text"
    return ClusteredText(
        model=describe_model(loaded),
        unit=coding.unit,
        tokens=shown_tokens(coding, shown),
        row=row,
        counted=f"Sizes and words are counted over {len(counted):,} {coding.unit}s of {what}.",
        note=" ".join(notes),
        layers=layers,
    )


def shown_tokens(coding: TextCoding, tokens: Tensor) -> list[str]:
    """What each token shows; the first one begins a line. Joined, it is the text."""
    shown, last = list(coding.stream(tokens)), len(tokens) - 1
    return [*shown[:last], "".join(shown[last:])]


def describe_model(loaded: Loaded) -> str:
    """One line: the checkpoint, the class of the model and its size."""
    parameters = sum(p.numel() for p in loaded.model.parameters())
    return f"{loaded.path.name}: {type(loaded.model).__name__}, {parameters:,} parameters"


def _clusters_by_row(model, tokens: Tensor, row: int) -> dict[tuple[str, int | None], list[int]]:
    """Clusters of tokens [N], read in rows, by router and head; None: all heads share them."""
    found: dict[tuple[str, int | None], list[int]] = {}
    for part in tokens.split(row):
        for name, clusters in token_clusters(model, part.unsqueeze(0)).items():
            for head, of_head in enumerate(clusters[0].tolist()):
                key = (name, head if clusters.size(1) > 1 else None)
                found.setdefault(key, []).extend(of_head)
    return found


def _label(model, name: str, head: int | None) -> str:
    """Which layer and heads a router's clusters serve, for people."""
    stack, number, _, _, router = name.rsplit(".", 4)  # ... layers.3.self_attn.routers.1
    layers = model.get_submodule(stack)
    kinds, heads = layers[int(number)].kinds, layers[int(number)].self_attn.num_heads
    share = heads // len(kinds)
    first, last = int(router) * share, (int(router) + 1) * share - 1
    if head is not None:
        first = last = first + head
    which = f"head {first}" if first == last else f"heads {first} to {last}"
    which = "all heads" if last - first + 1 == heads else f"{which} of heads 0 to {heads - 1}"
    place = f"layer {number} of layers 0 to {len(layers) - 1}"
    return f"{place}, {which}, {kinds[int(router)].written}"
