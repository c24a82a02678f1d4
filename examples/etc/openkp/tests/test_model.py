"""ETC for keyphrases: one page among others, what nodes look like, the head, losses and scores."""

import math
from itertools import product

import numpy as np
import pytest
import torch
from torch.nn.functional import gelu

from openkp.model import ETCKeyphrases, PhraseHead, VisualFeatures
from openkp.pages import MOST_WORDS, Page, batch_of_pages
from openkp.task import best_keyphrases, keyphrase_scores, phrase_nll
from openkp.tests.conftest import HEADING, PLAIN
from tests.etc.models import CLOSE, assert_all_have_gradients, build

OPTIONS = [{}, {"hard_global": True, "encoder_normalize_before": True}]
OPTIONS += [{"no_visual_features": True}, {"fixed_blocks": True, "block": 4}]


def page(words: list[int], nodes: list[int]) -> Page:
    """Of random tokens, so many for each word, and nodes of so many words."""
    starts, bounds = (np.cumsum([0, *sizes]) for sizes in (words, nodes))
    looks = np.array([HEADING, PLAIN] * len(nodes)).astype(int)[: len(nodes)]
    looks[:, :4] += 3 * np.arange(len(nodes))[:, None]
    spans = np.stack([bounds[:-1], bounds[1:]], 1)
    tokens = torch.randint(4, 34, (int(starts[-1]),)).numpy()
    return Page(tokens, starts[:-1], np.arange(len(words)), spans, looks, spans[:0])


def pages() -> list[Page]:
    """The last has words fewer than a convolution is wide."""
    torch.manual_seed(3)
    long = page([1, 2, 1, 3, 1, 0, 2, 1, 1, 4, 1], [3, 2, 5, 1])
    return [page([2, 1, 1, 1, 2, 1], [2, 4]), long, page([1, 3], [2])]


@torch.no_grad()
@pytest.mark.parametrize("options", OPTIONS)
def test_a_page_alone_is_a_page_in_any_batch(options: dict) -> None:
    built, given = build(ETCKeyphrases, **options), pages()
    for parameter in built.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    together = built(**batch_of_pages(given, 1))[0]
    assert together.shape == (3, MOST_WORDS, 11)
    for row, one in enumerate(given):
        alone = built(**batch_of_pages([one], 1))[0]
        number = len(one.starts)
        torch.testing.assert_close(together[row, :, :number], alone[0], **CLOSE)
        assert (together[row, :, number:] == -torch.inf).all()
        there = torch.arange(number) + torch.arange(MOST_WORDS).unsqueeze(1) < number
        assert torch.equal(alone[0].isfinite(), there)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("only", [slice(0, 3), slice(2, 3)])
def test_every_parameter_has_a_gradient(options: dict, only: slice) -> None:
    """Workers expect it, also where no page has five words."""
    built = build(ETCKeyphrases, **options).train()
    logits = built(**batch_of_pages(pages()[only], 1))[0]
    logits.flatten(1).logsumexp(1).sum().backward()
    assert_all_have_gradients(built)


@torch.no_grad()
def test_logits_are_those_of_loops() -> None:
    head = PhraseHead(6).double()
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    states = torch.randn(1, 9, 6, dtype=torch.float64)
    words = torch.tensor([0, 0, 1, 3, 3, 4, 5, 6, 6])  # the third has no token
    found = head(states, words[None], torch.tensor([7]))[0]
    of_word = [head.word_norm(states[0, words == number].sum(0)) for number in range(7)]
    for length in range(1, MOST_WORDS + 1):
        convolution = head.convolutions[length - 1]
        for first in range(8 - length):
            x = convolution.bias.clone()
            for i in range(length):
                x += convolution.weight[:, :, i] @ of_word[first + i]
            logit = head.logits[length - 1].weight[0] @ head.norms[length - 1](gelu(x))
            torch.testing.assert_close(found[length - 1, first], logit, **CLOSE)
        assert (found[length - 1, 8 - length :] == -torch.inf).all()


@torch.no_grad()
def test_what_a_node_looks_like_written_out() -> None:
    """A bold inline leaf in a heading of 24 pixels; below every range, and in the middle of it."""
    features, buckets = VisualFeatures(5).double(), {0: 0, 1: 1, 9: 2, 25: 18, 50: 23, 60: 23}
    parent = [725, 750, 2975, 9000, 1, 0, 1, 0, 24, 0]
    dense = torch.tensor([-1, -1, -1, -1, 0, 0, 0, 0, 1, 1, 1, 0, 0], dtype=torch.float64)
    for layer in features.dense:
        dense = gelu(layer.weight @ dense + layer.bias)
    looks = ((0, 0, 1), (0, 1, 0), (1, 0, 1))
    for (size, bucket), (block, heading, bold) in product(buckets.items(), looks):
        own = [-99, -99, -99, -99, block, 1, heading, 1, size, bold]
        crossed = features.crossed.weight[4 * block + 2 * heading + bold]
        expected = features.fonts[0].weight[bucket] + features.fonts[1].weight[17]
        found = features(torch.tensor([[own + parent]]))[0, 0]
        torch.testing.assert_close(found, expected + crossed + dense, **CLOSE)


def test_what_nodes_look_like_reaches_their_words_and_global_tokens() -> None:
    """Two words of three tokens, then four of five."""
    built, seen = build(ETCKeyphrases), {}
    hook = built.encoder.register_forward_pre_hook
    hook(lambda _, given, more: seen.update(more, structure=given[1]), with_kwargs=True)
    built(**batch_of_pages(pages()[:1], 1))
    of_nodes = built.visual(torch.from_numpy(pages()[0].visual))
    assert torch.equal(seen["global_types"][0], of_nodes)
    assert torch.equal(seen["types"][0], of_nodes[[0, 0, 0, 1, 1, 1, 1, 1]])
    assert seen["structure"].spans[0].tolist() == [[0, 3], [3, 8]]


NONE = -torch.inf


def test_each_phrase_once_by_its_largest_logit() -> None:
    logits = torch.tensor([[1.0, 4.0, 3.0, 2.0], [6.0, -1.0, 5.0, NONE]])
    words = ["Star", "Trek", "star", "trek", "behind the end"]
    expected = ["star trek", "trek", "star", "trek star"]
    assert best_keyphrases(logits, words) == expected
    assert best_keyphrases(logits, words, 2) == expected[:2]
    assert best_keyphrases(torch.full((2, 4), NONE), words) == []


def test_scores_written_out() -> None:
    """Precision, recall and F1 of 1, 3 and 5 phrases."""
    for found, expected in {
        "ax": [1, 1 / 2, 2 / 3, 1 / 3, 1 / 2, 2 / 5, 1 / 5, 1 / 2, 2 / 7],
        "xbyza": [0, 0, 0, 1 / 3, 1 / 2, 2 / 5, 2 / 5, 1, 4 / 7],
        "": [0] * 9,
    }.items():
        scores = keyphrase_scores([*found], ["a", "b"])
        assert [x / 100 for x in scores.values()] == pytest.approx(expected)


def test_what_is_right() -> None:
    """Of "a b a b", n-grams of one word and of two; nothing in a page without a keyphrase. No
    gradient where there is no n-gram."""
    first = torch.tensor([[[0, 1, 0, 1], [0, 1, 0, 3]]] * 2)
    phrases = torch.tensor([[[0, 2], [1, 1], [0, 0]], [[0, 0]] * 3])  # "a b", "b"; no more
    given = [[[1.0, 2.0, 4.0, 0.5], [3.0, -1.0, 5.0, NONE]]] * 2
    for place, right, all_ in (
        ("first", [3, 2], [1, 2, 4, 0.5, 3, -1, 5]),
        ("max", [5, 2], [4, 2, 5, -1]),  # of "a" 4, of "b" 2, of "a b" 5; others stand once
    ):
        logits = torch.tensor(given, dtype=torch.float64, requires_grad=True)
        loss = phrase_nll(logits, phrases, first, place)
        expected = math.log(sum(map(math.exp, all_))) - sum(right) / len(right)
        assert loss.tolist() == pytest.approx([expected, 0])
        loss.sum().backward()
        assert logits.grad.isfinite().all()
        assert not logits.grad[logits == NONE].any()
