"""Web pages in OpenKP's format."""

import json
import random
from collections.abc import Sequence
from pathlib import Path

#: x, width, y, height; block, inline, heading, leaf; font size; bold; each of the parent too
PLAIN = [48.0, 619.0, 114.0, 36.0, 1.0, 0.0, 0.0, 0.0, 16.0, 0.0] * 2
HEADING = [48.0, 619.0, 90.0, 36.0, 1.0, 0.0, 1.0, 0.0, 26.0, 1.0] * 2
_WORDS = "red blue green iron gold tin cat dog cow sun moon star".split()


def page(
    nodes: Sequence[tuple[str, list[float]]], phrases: Sequence[str] | None, url: str = "a.com"
) -> dict:
    """A page of nodes, each of a text and what it looks like."""
    words, vdom = [], []
    for text, look in nodes:
        own = text.split(" ")
        span = {"start_idx": len(words), "end_idx": len(words) + len(own)}
        vdom.append({"Id": 0, "text": text, "feature": look, **span})
        words += own
    item = {"url": url, "text": " ".join(words), "VDOM": json.dumps(vdom)}
    return item if phrases is None else item | {"KeyPhrases": [p.split(" ") for p in phrases]}


def write_pages(path: Path, items: Sequence[dict]) -> Path:
    path.write_text("".join(json.dumps(item) + "\n" for item in items))
    return path


def pages_with_headings(number: int) -> list[dict]:
    """Words at random, of which a heading is the keyphrase."""
    draw, made = random.Random(1), []
    for i in range(number):
        texts = [" ".join(draw.choices(_WORDS, k=draw.randint(3, 6))) for _ in range(3)]
        phrase = " ".join(draw.sample(_WORDS, 2))
        nodes = [(text, PLAIN) for text in texts]
        nodes.insert(draw.randrange(4), (phrase.title(), HEADING))
        made.append(page(nodes, [phrase], f"a.com/{i}"))
    return made
