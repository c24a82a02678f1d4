"""OpenKP (Xiong et al. 2019): web pages, what their parts look like, and their keyphrases.

A line of its files is a JSON object with ``url``, ``text``, ``VDOM`` and ``KeyPhrases``. Words are
what stands between single blanks. ``VDOM`` is JSON in a string: the nodes of the page in their
order, each with its ``text``, its words from ``start_idx`` to ``end_idx``, and 20 numbers as its
``feature``; see :data:`VISUAL`.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from fairseq_clusterformer.corpora.question_answering.records import (
    Drops,
    Unusable,
    check_unicode,
    convert,
    get,
    json_lines,
    parse_json,
)

#: numbers that say what a node looks like, ten of its own and then ten of its parent: x, width, y
#: and height in pixels; whether it is a block, inline, a heading, a leaf; the size of its font;
#: whether it is bold
VISUAL = 20
MOST_WORDS = 5  # of a keyphrase
_YES_OR_NO = {4, 5, 6, 7, 9, 14, 15, 16, 17, 19}
_MOST_PIXELS = 1 << 30  # what is stored is int32


@dataclass(frozen=True)
class PageRecord:
    """A page."""

    id: str  # its address
    words: tuple[str, ...]  # none is empty
    nodes: tuple[tuple[int, int], ...]  # words [first, last) of each; they cover all in order
    visual: tuple[tuple[int, ...], ...]  # what each node looks like, in whole numbers
    phrases: tuple[tuple[str, ...], ...] | None  # distinct, in lower case; None: unknown


def openkp(path: Path, drops: Drops, *, keep_unfound: bool = False) -> Iterator[PageRecord]:
    """Yield the record of each line, of one address the first; with ``keep_unfound`` also of pages
    whose keyphrases are unknown, or stand in none of their nodes."""

    def to_record(item: Mapping) -> PageRecord:
        record = page_record(item)
        if not keep_unfound and not phrase_places(record):
            known = ", ".join(map(repr, map(" ".join, record.phrases or ())))
            raise Unusable("no keyphrase in the text", f"{known or 'none'} of {record.id}")
        return record

    return convert(json_lines(path, drops), to_record, drops)


def page_record(item: Mapping) -> PageRecord:
    """The record of one page, given as in OpenKP's files; raises `Unusable`."""
    url, text = get(item, "url"), get(item, "text")
    check_unicode(url + text)
    given = text.split(" ")
    # words that are empty, as between two blanks, are left out
    number = list(accumulate((bool(word.strip()) for word in given), initial=0))
    words = tuple(word for word in given if word.strip())
    if not words:
        raise Unusable("empty text", f"text of {url}")
    nodes, visual, last = [], [], 0
    for place, node in enumerate(_parsed(item, "VDOM")):
        name = f"node {place} of {url}"
        start, end = get(node, "start_idx", int), get(node, "end_idx", int)
        if start != last or not start <= end <= len(given):
            allowed = f"from {last} to {len(given)} or before"
            problem = f"{name} is words [{start}, {end}); allowed: {allowed}"
            raise Unusable("nodes that do not cover the text", problem)
        last, found = end, " ".join(given[start:end])
        if get(node, "text") != found:
            problem = f"{name} is {node['text'][:60]!r}, where the text has {found[:60]!r}"
            raise Unusable("node of another text", problem)
        nodes.append((number[start], number[end]))
        visual.append(_visual(node, name))
    if last != len(given):
        problem = f"the last node of {url} ends at word {last}; allowed: {len(given)}"
        raise Unusable("nodes that do not cover the text", problem)
    return PageRecord(url, words, tuple(nodes), tuple(visual), _phrases(item))


def phrase_places(record: PageRecord) -> list[tuple[int, int]]:
    """Where each keyphrase first stands in one node: its first word, and its number of words;
    without those that do not, or that have more than :data:`MOST_WORDS`."""
    lower = [word.lower() for word in record.words]
    places = []
    for phrase in record.phrases or ():
        length = len(phrase)
        starts = (
            place
            for first, last in record.nodes
            for place in range(first, last - length + 1)
            if tuple(lower[place : place + length]) == phrase
        )
        found = next(starts, None) if length <= MOST_WORDS else None
        if found is not None:
            places.append((found, length))
    return places


def _parsed(item: Mapping, name: str) -> list:
    """A list, which may be JSON in a string."""
    value = get(item, name, (str, list))
    if isinstance(value, str):
        try:
            value = parse_json(value.encode())
        except Unusable as error:
            raise Unusable(f"{error.reason} in {name}", error.detail) from None
        if not isinstance(value, list):
            raise Unusable(f"no {name}", f"{name} is {str(value)[:80]}; allowed: a list")
    return value


def _visual(node: Mapping, name: str) -> tuple[int, ...]:
    numbers = get(node, "feature", list)
    for place, value in enumerate(numbers):
        known = isinstance(value, int | float) and math.isfinite(value)
        if not known or (place in _YES_OR_NO and value not in (0, 1)):
            allowed = "0 or 1" if place in _YES_OR_NO else "a number"
            problem = f"feature {place} of {name} is {value}; allowed: {allowed}"
            raise Unusable("feature that is none", problem)
    if len(numbers) != VISUAL:
        problem = f"{name} has {len(numbers)} features; allowed: {VISUAL}"
        raise Unusable("feature that is none", problem)
    return tuple(max(-_MOST_PIXELS, min(round(value), _MOST_PIXELS)) for value in numbers)


def _phrases(item: Mapping) -> tuple[tuple[str, ...], ...] | None:
    if item.get("KeyPhrases") is None:
        return None
    phrases = (_words(phrase) for phrase in _parsed(item, "KeyPhrases"))
    return tuple(dict.fromkeys(phrase for phrase in phrases if phrase))


def _words(phrase: Any) -> tuple[str, ...]:
    """Of a list of words, or of a text."""
    words = [phrase] if isinstance(phrase, str) else phrase
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise Unusable("no keyphrase", f"{str(phrase)[:80]}; allowed: a list of words")
    return tuple(" ".join(words).lower().split())
