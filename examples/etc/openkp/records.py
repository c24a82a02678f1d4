"""OpenKP (Xiong et al. 2019): web pages, what their parts look like, and their keyphrases, as
``prepare.py`` describes a line of its files."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

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
_YES_OR_NO = (4, 5, 6, 7, 9, 14, 15, 16, 17, 19)
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
        if not keep_unfound and not phrase_places(record, record.nodes):
            known = ", ".join(map(repr, map(" ".join, record.phrases or ())))
            raise Unusable("no keyphrase in the text", f"{known or 'none'} of {record.id}")
        return record

    return convert(json_lines(path, drops), to_record, drops)


def page_record(item: Mapping) -> PageRecord:
    """The record of one page, given as in OpenKP's files; raises `Unusable`."""
    url, text, vdom = get(item, "url"), get(item, "text"), get(item, "VDOM", (str, list))
    check_unicode(url + text + (vdom if isinstance(vdom, str) else ""))
    if isinstance(vdom, str):
        vdom = get({"VDOM": parse_json(vdom.encode())}, "VDOM", list)
    given, nodes, visual, last = text.split(" "), [], [], 0
    # words that are empty, as between two blanks, are left out
    number = list(accumulate((bool(word.strip()) for word in given), initial=0))
    words = tuple(word for word in given if word.strip())
    if not words:
        raise Unusable("empty text", f"text of {url}")
    for place, node in enumerate(vdom):
        start, end = get(node, "start_idx", int), get(node, "end_idx", int)
        if start != last or not start <= end <= len(given):
            problem = f"node {place} of {url} is words [{start}, {end})"
            allowed = f"from {last} to {len(given)} or before"
            raise Unusable("nodes that do not cover the text", f"{problem}; allowed: {allowed}")
        last, found = end, " ".join(given[start:end])
        if get(node, "text") != found:
            problem = f"{node['text'][:60]!r}, where the text has {found[:60]!r}"
            raise Unusable("node of another text", f"node {place} of {url} is {problem}")
        nodes.append((number[start], number[end]))
        visual.append(_visual(node, f"node {place} of {url}"))
    if last != len(given):
        problem = f"the last node of {url} ends at word {last}; allowed: {len(given)}"
        raise Unusable("nodes that do not cover the text", problem)
    phrases = None
    if item.get("KeyPhrases") is not None:
        given = ({"keyphrase": words} for words in get(item, "KeyPhrases", list))
        lower = (" ".join(get(words, "keyphrase", list)).lower().split() for words in given)
        phrases = tuple(dict.fromkeys(tuple(phrase) for phrase in lower if phrase))
    return PageRecord(url, words, tuple(nodes), tuple(visual), phrases)


def _visual(node: Mapping, name: str) -> tuple[int, ...]:
    numbers = get(node, "feature", list)
    known = all(isinstance(x, int | float) and math.isfinite(x) for x in numbers)
    if not known or len(numbers) != VISUAL or any(numbers[n] not in (0, 1) for n in _YES_OR_NO):
        allowed = f"{VISUAL} numbers, those at {', '.join(map(str, _YES_OR_NO))} 0 or 1"
        problem = f"the feature of {name} is {str(numbers)[:80]}; allowed: {allowed}"
        raise Unusable("feature that is none", problem)
    return tuple(max(-_MOST_PIXELS, min(round(value), _MOST_PIXELS)) for value in numbers)


def phrase_places(record: PageRecord, nodes: tuple[tuple[int, int], ...]) -> list[tuple[int, int]]:
    """Where each keyphrase first stands in one of the words [first, last): its first word, and its
    number of words; without those that do not, or that have more than :data:`MOST_WORDS`."""
    lower, places = [word.lower() for word in record.words], []
    for phrase in record.phrases or ():
        length = len(phrase)
        found = (
            place
            for first, last in nodes
            for place in range(first, last - length + 1)
            if length <= MOST_WORDS and tuple(lower[place : place + length]) == phrase
        )
        places += [(place, length) for place in [next(found, None)] if place is not None]
    return places
