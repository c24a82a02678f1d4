"""Pages: their beginnings, and where the same words stand again."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fairseq.data import Dictionary

from fairseq_clusterformer.data.stored import RecordWriter
from openkp.pages import MOST_WORDS, PARTS, VISUAL, Page, PageData, PageDataset, batch_of_pages

# a b | a b c | c a: seven words of ten tokens, of which the fourth has none
SAMPLE = Page(
    tokens=np.arange(10, 20),
    starts=np.array([0, 2, 3, 4, 4, 7, 9]),
    folded=np.array([0, 1, 0, 1, 2, 2, 0]),
    nodes=np.array([[0, 2], [2, 5], [5, 7]]),
    visual=np.arange(3 * VISUAL).reshape(3, VISUAL) - 7,
    phrases=np.array([[0, 2], [4, 1], [5, 2]]),
    anywhere=np.array([[1, 2], [3, 2]]),
)


@pytest.mark.parametrize(
    ("tokens", "nodes", "kept"),
    [
        (10, 3, (10, 7, 3, 3)),
        (99, 9, (10, 7, 3, 3)),
        (8, 3, (7, 5, 2, 2)),  # the sixth word has two tokens
        (9, 3, (7, 5, 2, 2)),  # and all of the node that does not fit
        (10, 2, (7, 5, 2, 2)),
        (10, 1, (3, 2, 1, 1)),
        (2, 3, (2, 1, 1, 0)),  # of the first node its first word, and no keyphrase
        (1, 3, (1, 1, 1, 0)),  # and of that its first token
        (9, None, (9, 6, 1, 2)),  # a text loses words, and has keyphrases across nodes
        (6, None, (4, 4, 1, 1)),
        (1, None, (1, 1, 1, 0)),
    ],
)
def test_the_beginning_of_a_page(tokens: int, nodes: int | None, kept: tuple[int, ...]) -> None:
    part = SAMPLE.within(tokens, nodes)
    assert (len(part.tokens), len(part.starts), len(part.nodes), len(part.phrases)) == kept
    expected = SAMPLE.nodes[: kept[2]].clip(max=kept[1]).tolist()
    assert part.nodes.tolist() == (expected if nodes else [[0, kept[1]]])


@pytest.mark.parametrize(("nodes", "kept"), [(1, [[0, 2]]), (2, [[0, 2], [2, 5]]), (3, None)])
def test_empty_nodes_leave_room_for_the_first_word(nodes: int, kept: list | None) -> None:
    """Two of them stand in front of it."""
    empty, visual = np.zeros((2, 2), int), np.concatenate([SAMPLE.visual[:2], SAMPLE.visual])
    page = replace(SAMPLE, nodes=np.concatenate([empty, SAMPLE.nodes]), visual=visual)
    part = page.within(100, nodes)
    assert part.nodes.tolist() == (kept or [[0, 0], [0, 0], [0, 2]])
    assert len(part.visual) == nodes
    assert batch_of_pages([part], 1)["page"]["num_nodes"].tolist() == [nodes]


def test_first_places() -> None:
    """In one node; of a text, anywhere. What is behind the page stands at its own place."""
    found = SAMPLE.first_places(8).tolist()
    assert [row[:7] for row in found[:2]] == [[0, 1, 0, 1, 4, 4, 0], [0, 1, 0, 3, 4, 5, 6]]
    assert found[2:] == [list(range(8))] * 3
    assert [row[7] for row in found] == [7] * MOST_WORDS
    text = replace(SAMPLE, folded=np.array([0, 1, 2, 0, 1, 2, 0])).within(10, None)
    assert text.first_places(7)[:3].tolist() == [
        [0, 1, 2, 0, 1, 2, 0],
        [0, 1, 2, 0, 1, 2, 6],
        [0, 1, 2, 0, 1, 5, 6],
    ]


def test_a_batch_written_out() -> None:
    batch = batch_of_pages([SAMPLE.within(3, 1), SAMPLE], 1)
    assert batch["src_tokens"][0].tolist() == [10, 11, 12, *[1] * 7]
    page = batch["page"]
    assert page["words"].tolist() == [[0, 0, 1, *[0] * 7], [0, 0, 1, 2, 4, 4, 4, 5, 5, 6]]
    assert page["token_nodes"][1].tolist() == [0, 0, 0, 1, 1, 1, 1, 2, 2, 2]
    assert page["nodes"].tolist() == [[[0, 3], [0, 0], [0, 0]], [[0, 3], [3, 7], [7, 10]]]
    assert page["visual"][1].tolist() == SAMPLE.visual.tolist()
    assert (page["num_words"].tolist(), page["num_nodes"].tolist()) == ([2, 7], [1, 3])


def test_what_is_written_is_read_as_samples(tmp_path: Path) -> None:
    """Pages without a keyphrase are left out where they are asked to be."""
    with RecordWriter(tmp_path, "train", dict.fromkeys(PARTS, np.int32)) as writer:
        for page in (SAMPLE, SAMPLE.within(1, 1)):
            writer.write((page.tokens, page.item()), {})
    data = PageData(tmp_path, "train")
    for name, values in vars(SAMPLE).items():
        assert np.array_equal(getattr(data[0], name), values), name
    made = {"split": "train", "max_positions": 9, "max_nodes": 9}
    dataset = PageDataset(data, Dictionary(), **made)
    assert (len(dataset), dataset.cut, dataset.sizes.tolist()) == (2, 1, [7, 1])
    assert dataset.nodes_left_out == 1
    batch = dataset.collater([dataset[1], dataset[0]])
    assert (batch["id"].tolist(), batch["ntokens"]) == ([1, 0], 8)
    assert batch["target"]["phrases"].tolist() == [[[0, 0], [0, 0]], [[0, 2], [4, 1]]]
    assert batch["target"]["first"].shape == (2, MOST_WORDS, 5)
    assert batch["target"]["first"][0].tolist() == [list(range(5))] * 5
    some = PageDataset(data, Dictionary(), **made, only_with_phrases=True)
    assert some.pages.tolist() == [0]
