"""Pages: what is read of OpenKP's files, and samples of a model."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np

from fairseq_clusterformer.corpora.question_answering.records import Drops
from fairseq_clusterformer.data.subwords import Tokens
from openkp.pages import MOST_WORDS, VISUAL, Page, batch_of_pages, encode, page_of, read_pages
from openkp.tests.conftest import HEADING, PLAIN, page, write_pages

NODES = [("Star Trek Discovery Season 1", HEADING), ("", PLAIN), ("the star  trek cast", PLAIN)]
#: a b | a b c | c a: seven words of ten tokens, of which the fourth has none
SAMPLE = Page(
    tokens=np.arange(10, 20),
    starts=np.array([0, 2, 3, 4, 4, 7, 9]),
    folded=np.array([0, 1, 0, 1, 2, 2, 0]),
    nodes=np.array([[0, 2], [2, 5], [5, 7]]),
    visual=np.arange(3 * VISUAL).reshape(3, VISUAL) - 7,
    places=np.array([[0, 2], [4, 1], [5, 2]]),
)


def test_a_page_written_out() -> None:
    """Empty words are none; a node without words is left out; a phrase stands in one node."""
    item = page(NODES, ["star Trek", "Season 1", "STAR trek", "", "1 the", "s", NODES[0][0]])
    found = page_of(item)
    expected = {"url": "a.com", "nodes": [(0, 5), (5, 9)], "places": [(0, 2), (3, 2), (0, 5)]}
    expected["text"] = "Star Trek Discovery Season 1 the star trek cast"
    expected["visual"] = [[*map(int, look)] for look in (HEADING, PLAIN)]
    expected["phrases"] = ["star trek", "season 1", "1 the", "s", "star trek discovery season 1"]
    assert found == expected
    assert page_of(item | {"VDOM": json.loads(item["VDOM"])}) == found
    del item["KeyPhrases"]
    assert page_of(item) == found | {"phrases": None, "places": []}


def test_what_cannot_be_used_is_named(tmp_path: Path) -> None:
    good, none = page(NODES, ["star trek"]), "feature that is none"
    for item, reason, detail in (
        (good | {"VDOM": "[{"}, "broken JSON", "Expecting property name"),
        (good | {"VDOM": "{}"}, "no VDOM", "VDOM is {}; allowed: list"),
        (good | {"VDOM": "[]"}, "nodes that do not", "those of a.com"),
        (page([("a b", PLAIN[:10])], []), none, "of node 0 of a.com .*: 20 numbers"),
        (page([("a b", [float("nan")] * 20)], []), none, "is .nan, nan"),
        (page([("a b", [0.5] * 20)], []), none, "those at 4, 5, .* 0 or 1"),
        (page(NODES, None), "no keyphrase in the text", "none of a.com"),
        (page(NODES, ["trek the"]), "no keyphrase in the text", "'trek the' of a.com"),
        (page([(" ", PLAIN)], ["x"]), "nodes that do not", "those of a.com"),
        (page([("\ud800", PLAIN)], ["x"]), "not valid Unicode", "half a character"),
        (page(NODES, ["star trek"], "b.com"), "url seen before", "b.com"),
    ):
        items = [page(NODES, ["star trek"], "b.com"), item]
        path, drops = write_pages(tmp_path / "pages.jsonl", items), Drops()
        assert [x["url"] for x in read_pages(path, drops, keep_unfound=False)] == ["b.com"]
        ((found, (example,)),) = drops.examples.items()
        assert found.startswith(reason)
        assert re.search(f"{re.escape(str(path))}: line 2: .*{detail}", example), example


def test_tokens_of_words() -> None:
    """The blank before a word is the word's, whether it is a token or a part of one."""
    for words, spans, starts in (
        ("ab c", [(0, 1), (1, 2), (2, 4)], [0, 2]),
        ("ab c", [(0, 0), (0, 2), (2, 3), (3, 4)], [0, 2]),
        ("ab c", [(0, 2), (2, 2), (3, 4)], [0, 1]),
        ("a b c", [(0, 1), (3, 5)], [0, 1, 1]),  # a model that leaves out the middle one
    ):
        tokens = Tokens(np.arange(len(spans)), *np.array(spans).T)
        model = SimpleNamespace(encode=MagicMock(return_value=tokens))
        assert encode({"text": words}, model=model, to_index=range(9))[1]["starts"] == starts


def test_the_beginning_of_a_page() -> None:
    for (tokens, nodes), kept in {
        (99, 9): [10, 7, 3, 3],
        (8, 3): [7, 5, 2, 2],  # the sixth word has two tokens
        (9, 3): [7, 5, 2, 2],  # and all of the node that does not fit
        (10, 1): [3, 2, 1, 1],
        (2, 3): [2, 1, 1, 0],  # of the first node its first word
        (1, 3): [1, 1, 1, 0],  # and of that its first token
    }.items():
        part = SAMPLE.within(tokens, nodes)
        assert [*map(len, (part.tokens, part.starts, part.nodes, part.places))] == kept
        assert part.nodes.tolist() == SAMPLE.nodes[: kept[2]].clip(max=kept[1]).tolist()
        assert len(part.visual) == kept[2]


def test_a_batch_written_out() -> None:
    batch = batch_of_pages([SAMPLE.within(3, 1), SAMPLE], 1)
    assert batch["src_tokens"][0].tolist() == [10, 11, 12, *[1] * 7]
    page = batch["page"]
    assert page["words"].tolist() == [[0, 0, 1, *[0] * 7], [0, 0, 1, 2, 4, 4, 4, 5, 5, 6]]
    assert page["token_nodes"][1].tolist() == [0, 0, 0, 1, 1, 1, 1, 2, 2, 2]
    assert page["nodes"].tolist() == [[[0, 3], [0, 0], [0, 0]], [[0, 3], [3, 7], [7, 10]]]
    assert page["visual"][1].tolist() == SAMPLE.visual.tolist()
    assert (page["num_words"].tolist(), page["num_nodes"].tolist()) == ([2, 7], [1, 3])
    found = SAMPLE.first_places(8).tolist()  # what is behind the page stands at its own place
    assert [row[:7] for row in found[:2]] == [[0, 1, 0, 1, 4, 4, 0], [0, 1, 0, 3, 4, 5, 6]]
    assert found[2:] == [list(range(8))] * (MOST_WORDS - 2)
