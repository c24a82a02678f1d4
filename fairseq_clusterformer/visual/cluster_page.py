"""The clusters of a passage as one HTML file that needs nothing else."""

import json
from html import escape
from itertools import groupby
from pathlib import Path

from fairseq_clusterformer.visual.colours import css
from fairseq_clusterformer.visual.language_model import Layer, Reading
from fairseq_clusterformer.visual.words import Cluster, Item, visible

MOST_ROWS = 24  # clusters in a table; the largest, if there are more
MOST_POSITIONS = 8  # of the passage, for each cluster
TEMPLATES = Path(__file__).parent / "templates"


def page(reading: Reading, first: Layer) -> str:
    """Return the page, which opens with the layer `first`."""
    layers = range(len(reading.layers))
    template = (TEMPLATES / "cluster_page.html").read_text()
    parts = {
        "STYLE": "\n".join(map(_layer_style, layers, reading.layers)),
        "MODEL": escape(reading.model),
        "UNIT": reading.unit,
        "NOTE": escape(_note(reading)),
        "RADIOS": "".join(_radio(i, reading.layers[i] is first) for i in layers),
        "TABS": "".join(map(_tab, layers, reading.layers)),
        "LEGENDS": "".join(map(_legend, layers, reading.layers)),
        "PASSAGE": "".join(_token(reading, i) for i, text in enumerate(reading.tokens) if text),
        "TABLES": "".join(_table(reading, i) for i in layers),
        "DATA": json.dumps(
            {
                "unit": reading.unit,
                "row": reading.row,
                "layers": [
                    {"window": layer.window, "clusters": layer.passage} for layer in reading.layers
                ],
            },
            separators=(",", ":"),
        ),
    }
    for name, part in parts.items():
        template = template.replace(f"<!--{name}-->", part)
    return template


def _note(reading: Reading) -> str:
    note = f"Sizes, characters and words: over {reading.counted:,} {reading.unit}s of text that "
    note += "the model was not trained on."
    if len(reading.tokens) > reading.row:
        note += f" The model reads the passage in parts of {reading.row:,} {reading.unit}s."
    if reading.cut:
        note += f" The passage is cut after {len(reading.tokens):,} {reading.unit}s."
    return note


def _layer_style(index: int, layer: Layer) -> str:
    """What a chosen layer shows, and the colours of its tokens."""
    shown = [
        f"#layer{index}:checked~nav label[for=layer{index}]{{background:#1c2733;color:#fff}}",
        f"#layer{index}:focus-visible~nav label[for=layer{index}]{{outline:3px solid #0a64c8}}",
        f"#layer{index}:checked~.of-layer{index}{{display:block}}",
    ]
    colours = [
        f"#layer{index}:checked~.passage .l{index}c{c.index}{{{css(c.index)}}}"
        for c in layer.clusters
    ]
    return "\n".join(shown + colours)


def _radio(index: int, checked: bool) -> str:
    checked = " checked" if checked else ""
    return f'<input type="radio" name="layer" id="layer{index}" value="{index}"{checked}>'


def _tab(index: int, layer: Layer) -> str:
    text = f"{escape(layer.name)}<small>{escape(layer.heads)}</small>"
    return f'<label for="layer{index}">{text}</label>'


def _legend(index: int, layer: Layer) -> str:
    chips = "".join(
        f'<button type="button" aria-pressed="false" data-cluster="{c.index}" '
        f'style="{css(c.index)}">{c.index}</button>'
        for c in _shown(layer)
    )
    return f'<div class="legend of-layer{index}" role="group" aria-label="Clusters">{chips}</div>'


def _token(reading: Reading, i: int) -> str:
    """One token of the passage; its classes give its cluster in each layer."""
    text = reading.tokens[i]
    classes = [f"l{n}c{layer.passage[i]}" for n, layer in enumerate(reading.layers)]
    if text in (" ", "\n", "\t"):
        classes.append({" ": "blank", "\n": "end", "\t": "tab"}[text])
    return f'<span data-i="{i}" class="{" ".join(classes)}">{escape(text)}</span>'


def _shown(layer: Layer) -> list[Cluster]:
    """The clusters to list: all of a few, the largest of many."""
    largest = sorted(layer.clusters, key=lambda c: -c.size)[:MOST_ROWS]
    return sorted(largest, key=lambda c: c.index)


def _table(reading: Reading, index: int) -> str:
    layer = reading.layers[index]
    most = max(c.share for c in layer.clusters)
    rows = "".join(_row(reading, layer, c, most) for c in _shown(layer))
    left = len(layer.clusters) - len(_shown(layer))
    more = f"<p>{left} smaller clusters are not listed.</p>" if left else ""
    return f'<section class="table of-layer{index}">{rows}{more}</section>'


def _row(reading: Reading, layer: Layer, cluster: Cluster, most: float) -> str:
    bar = f"width:{100 * cluster.share / (most or 1):.1f}%;{css(cluster.index)}"
    tokens = "characters" if reading.unit == "byte" else f"{reading.unit}s"
    endings = "after the one before" if reading.unit == "word" else "words, as far as read"
    facts = [(tokens, _chips(cluster.tokens)), (endings, _chips(cluster.endings, ending=True))]
    facts.append(("in this passage", _positions(layer.passage, cluster.index)))
    if cluster.reach is not None:
        sight = f"a query in it sees {layer.window} of its tokens, the oldest "
        facts.append(("reach", f"{sight}<b>{cluster.reach:,}</b> {reading.unit}s back (median)"))
    body = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in facts)
    return (
        f'<article><h3 style="{css(cluster.index)}">{cluster.index}</h3>'
        f'<div class="size"><div class="bar" style="{bar}"></div>'
        f"<span>{cluster.share:.1%} <small>{cluster.size:,}</small></span></div>"
        f"<dl>{body}</dl></article>"
    )


def _chips(items: list[Item], ending: bool = False) -> str:
    if not items:
        return "<i>none above chance</i>"
    return " ".join(_chip(item, ending) for item in items)


def _chip(item: Item, ending: bool) -> str:
    text = visible(item.text)
    shown = f"{escape(text[:-1])}<b>{escape(text[-1])}</b>" if ending else escape(text)
    title = f"{item.inside:,} of {item.total:,} are in this cluster"
    return (
        f'<span class="chip" title="{title}"><code>{shown}</code>'
        f"<small>{item.inside:,}/{item.total:,}</small></span>"
    )


def _positions(passage: list[int], cluster: int) -> str:
    """Where a cluster stands in the passage: the first runs of positions, and the last."""
    places = [i for i, c in enumerate(passage) if c == cluster]
    if not places:
        return "nowhere"
    runs = []
    for _, run in groupby(enumerate(places), lambda pair: pair[1] - pair[0]):
        run = [place for _, place in run]
        runs.append(f"{run[0]}" if len(run) == 1 else f"{run[0]}\u2013{run[-1]}")
    if len(runs) > MOST_POSITIONS:
        runs = [*runs[: MOST_POSITIONS - 1], "\u2026", runs[-1]]
    return f"{len(places):,} positions: " + ", ".join(runs)
