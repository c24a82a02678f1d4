"""Web pages in OpenKP's format, and a folder of them."""

import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from openkp import prepare

#: x, width, y, height; block, inline, heading, leaf; font size; bold; each of the parent too
PLAIN = [48.0, 619.0, 114.0, 36.0, 1.0, 0.0, 0.0, 0.0, 16.0, 0.0] * 2
HEADING = [48.0, 619.0, 90.0, 36.0, 1.0, 0.0, 1.0, 0.0, 26.0, 1.0] * 2
_WORDS = "red blue green iron gold tin cat dog cow sun moon star".split()


def page(nodes: Sequence[tuple], phrases: Sequence[str] | None, url: str = "a.com") -> dict:
    """A page of nodes, each of a text and what it looks like."""
    vdom = [{"Id": 0, "text": text, "feature": look} for text, look in nodes]
    item = {"url": url, "text": " ".join(text for text, _ in nodes), "VDOM": json.dumps(vdom)}
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


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``valid`` is as ``train``; keyphrases of two other test pages are nowhere, or unknown."""
    folder = tmp_path_factory.mktemp("pages")
    items = pages_with_headings(16)
    path = write_pages(folder / "pages.jsonl", items)
    nodes = [("red gold", HEADING), ("cat", PLAIN)]
    others = [page(nodes, ["no such"], "b.com"), page(nodes, None, "c.com")]
    test = write_pages(folder / "test.jsonl", [*items[:2], *others])
    words = ("--train", path, "--valid", path, "--test", test)
    assert prepare.main([str(folder / "data"), *map(str, words)]) == 0
    return folder / "data"
