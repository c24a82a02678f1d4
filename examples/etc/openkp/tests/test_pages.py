"""Pages: their files, their beginnings, and where the same words stand again."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fairseq.data import Dictionary

from openkp.pages import (
    MOST_WORDS,
    VISUAL,
    Page,
    PageData,
    PageDataset,
    PageWriter,
    batch_of_pages,
)
from openkp.records import PageRecord

NAMES = ("tokens", "starts", "folded", "nodes", "visual", "phrases")
# a b | a b c | c a: seven words of ten tokens, of which the fourth has none
SAMPLE = Page(
    tokens=torch.arange(10, 20),
    starts=torch.tensor([0, 2, 3, 4, 4, 7, 9]),
    folded=torch.tensor([0, 1, 0, 1, 2, 2, 0]),
    nodes=torch.tensor([[0, 2], [2, 5], [5, 7]]),
    visual=torch.arange(3 * VISUAL).view(3, VISUAL) - 7,
    phrases=torch.tensor([[0, 2], [4, 1], [5, 2]]),
)


def assert_equal(page: Page, other: Page) -> None:
    for name in NAMES:
        assert torch.equal(getattr(page, name), getattr(other, name)), name


@pytest.mark.parametrize(
    ("tokens", "nodes", "kept"),
    [
        (10, 3, (10, 7, 3, 3)),
        (99, 9, (10, 7, 3, 3)),
        (8, 3, (7, 5, 2, 2)),  # the sixth word has two tokens
        (9, 3, (7, 5, 2, 2)),  # and all of the node that does not fit
        (10, 2, (7, 5, 2, 2)),
        (10, 1, (3, 2, 1, 1)),
        (2, 3, (2, 1, 1, 0)),  # of the first node its first word
        (1, 3, (1, 1, 1, 0)),  # and of that its first token
    ],
)
def test_the_beginning_of_a_page(tokens: int, nodes: int, kept: tuple[int, ...]) -> None:
    part = SAMPLE.within(tokens, nodes)
    assert (len(part.tokens), len(part.starts), len(part.nodes), len(part.phrases)) == kept
    assert torch.equal(part.nodes, SAMPLE.nodes[: kept[2]].clamp(max=kept[1]))
    assert len(part.nodes_of_words()) == kept[1]


def test_a_node_that_is_too_long_has_no_keyphrase() -> None:
    page = replace(SAMPLE, nodes=torch.tensor([[0, 7]]), visual=SAMPLE.visual[:1])
    assert page.within(9, 1).phrases.tolist() == []
    assert page.within(9, 1).nodes.tolist() == [[0, 6]]
    assert len(page.within(10, 1).phrases) == 3


def test_a_page_as_text_has_keyphrases_anywhere() -> None:
    """The second stands in two nodes; what is cut are words. The same words are one phrase."""
    phrases = (("b", "a"), ("b", "c"), ("x",))
    record = PageRecord("", ("a", "b", "A", "b", "c", "c", "a"), ((0, 2), (2, 5)), (), phrases)
    page = SAMPLE.as_text(record)
    assert page.phrases.tolist() == [[1, 2], [3, 2]]
    assert SAMPLE.first_places(7)[1].tolist() == [0, 1, 0, 3, 4, 5, 6]
    assert page.within(9, 1).first_places(7)[1].tolist() == [0, 1, 0, 3, 4, 5, 6]
    assert page.within(9, 1).phrases.tolist() == [[1, 2], [3, 2]]
    assert page.within(6, 1).phrases.tolist() == [[1, 2]]


@pytest.mark.parametrize(("nodes", "kept"), [(1, [[0, 2]]), (2, [[0, 2], [2, 5]]), (3, None)])
def test_empty_nodes_leave_room_for_the_first_word(nodes: int, kept: list | None) -> None:
    """Two of them stand in front of it."""
    empty = torch.zeros(2, 2, dtype=torch.long)
    visual = torch.cat([SAMPLE.visual[:2], SAMPLE.visual])
    page = Page(**{**vars(SAMPLE), "nodes": torch.cat([empty, SAMPLE.nodes]), "visual": visual})
    part = page.within(100, nodes)
    assert part.nodes.tolist() == (kept or [[0, 0], [0, 0], [0, 2]])
    assert len(part.visual) == nodes
    assert batch_of_pages([part], 1)["page"]["num_nodes"].tolist() == [nodes]


def test_first_places_are_those_of_loops() -> None:
    draw = random.Random(1)
    for _ in range(30):
        lengths = [draw.randint(0, 9) for _ in range(4)] + [1]
        ends = [sum(lengths[: i + 1]) for i in range(5)]
        nodes = [[end - length, end] for end, length in zip(ends, lengths, strict=True)]
        words = [draw.randrange(3) for _ in range(ends[-1])]
        page = Page(None, None, torch.tensor(words), torch.tensor(nodes), None, None)
        found = page.first_places(len(page.folded)).tolist()
        for length in range(1, MOST_WORDS + 1):
            expected, seen = list(range(len(words))), {}
            for first, last in nodes:
                for place in range(first, last - length + 1):
                    gram = tuple(words[place : place + length])
                    expected[place] = seen.setdefault(gram, place)
            assert found[length - 1] == expected


def test_a_batch_written_out() -> None:
    other = SAMPLE.within(3, 1)
    batch = batch_of_pages([other, SAMPLE], 1)
    assert batch["src_tokens"][0].tolist() == [10, 11, 12, *[1] * 7]
    page = batch["page"]
    assert page["words"].tolist() == [[0, 0, 1, *[0] * 7], [0, 0, 1, 2, 4, 4, 4, 5, 5, 6]]
    assert page["token_nodes"][1].tolist() == [0, 0, 0, 1, 1, 1, 1, 2, 2, 2]
    assert page["nodes"].tolist() == [[[0, 3], [0, 0], [0, 0]], [[0, 3], [3, 7], [7, 10]]]
    assert torch.equal(page["visual"][1], SAMPLE.visual)
    assert (page["num_words"].tolist(), page["num_nodes"].tolist()) == ([2, 7], [1, 3])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    texts = {"url": "é.com", "text": "A b", "phrases": ["a b"]}
    with PageWriter(tmp_path, "train", vocab_size=30) as writer:
        writer.add(SAMPLE, texts)
        writer.add(SAMPLE.within(1, 1), {"url": "b.com"})
    return tmp_path


def test_what_is_written_is_read(folder: Path) -> None:
    data = PageData(folder, "train")
    assert len(data) == 2
    assert data.sizes.tolist() == [10, 1]
    assert_equal(data[0], SAMPLE)
    assert (data.texts(0)["url"], data.texts(1)["url"]) == ("é.com", "b.com")
    with pytest.raises(IndexError, match="page 2 of 2"):
        data[2]


def test_samples(folder: Path) -> None:
    """Pages without a keyphrase are left out where they are asked to be."""
    made = {"split": "train", "max_positions": 9, "max_nodes": 9}
    dataset = PageDataset(PageData(folder, "train"), Dictionary(), **made)
    assert (len(dataset), dataset.cut, dataset.sizes.tolist()) == (2, 1, [7, 1])
    assert dataset.nodes_left_out == 1
    batch = dataset.collater([dataset[1], dataset[0]])
    assert batch["id"].tolist() == [1, 0]
    assert batch["ntokens"] == 8
    assert batch["target"]["phrases"].tolist() == [[[0, 0], [0, 0]], [[0, 2], [4, 1]]]
    assert batch["target"]["first"].shape == (2, MOST_WORDS, 5)
    assert batch["target"]["first"][0].tolist() == [list(range(5))] * 5
    some = PageDataset(PageData(folder, "train"), Dictionary(), **made, only_with_phrases=True)
    assert some.pages.tolist() == [0]
