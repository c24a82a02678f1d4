"""ETC for keyphrases: one page among others, what nodes look like, and the head."""

import numpy as np
import pytest
import torch
from torch.nn.functional import gelu

from fairseq_clusterformer.etc import encoder as etc
from openkp.model import ETCKeyphrases, PhraseHead, VisualFeatures
from openkp.pages import MOST_WORDS, Page, batch_of_pages
from openkp.tests.web_pages import HEADING, PLAIN
from tests.etc.models import CLOSE, assert_all_have_gradients, build

OPTIONS = [
    {},
    {"hard_global": True, "encoder_normalize_before": True},
    {"no_visual_features": True},
    {"fixed_blocks": True, "block": 4},
]


def page(words: list[int], nodes: list[int]) -> Page:
    """Of random tokens, so many for each word, and nodes of so many words."""
    starts, bounds = (np.cumsum([0, *sizes]) for sizes in (words, nodes))
    looks = np.array([HEADING, PLAIN] * len(nodes)).astype(int)[: len(nodes)]
    looks[:, :4] += 3 * np.arange(len(nodes))[:, None]
    spans, none = np.stack([bounds[:-1], bounds[1:]], 1), np.zeros((0, 2), int)
    tokens = torch.randint(4, 34, (int(starts[-1]),)).numpy()
    return Page(tokens, starts[:-1], np.arange(len(words)), spans, looks, none, none)


def pages() -> list[Page]:
    """The last has words fewer than a convolution is wide."""
    torch.manual_seed(3)
    long = page([1, 2, 1, 3, 1, 0, 2, 1, 1, 4, 1], [3, 2, 0, 5, 1])
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


def test_in_half_precision() -> None:
    """The head is computed in float32, as pixels are."""
    built, batch = build(ETCKeyphrases).float().train(), batch_of_pages(pages(), 1)
    expected = built(**batch)[0]
    found = built.bfloat16()(**batch)[0]
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.01)
    found.flatten(1).logsumexp(1).sum().backward()
    assert all(p.grad.dtype == torch.bfloat16 for p in built.parameters())


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
@pytest.mark.parametrize(
    ("size", "bucket"), [(0, 0), (1, 1), (9, 2), (25, 18), (50, 23), (60, 23)]
)
def test_what_a_node_looks_like_written_out(size: int, bucket: int) -> None:
    """A bold inline leaf in a heading of 24 pixels; below every range, and in the middle of it.
    Font sizes have 24 buckets."""
    features = VisualFeatures(5).double()
    own = [-99, -99, -99, -99, 0, 1, 0, 1, size, 1]
    parent = [725, 750, 2975, 9000, 1, 0, 1, 0, 24, 0]
    dense = torch.tensor([-1, -1, -1, -1, 0, 0, 0, 0, 1, 1, 1, 0, 0], dtype=torch.float64)
    for layer in features.dense:
        dense = gelu(layer.weight @ dense + layer.bias)
    expected = features.fonts[0].weight[bucket] + features.fonts[1].weight[17]
    for block, heading, bold in ((0, 0, 1), (0, 1, 0), (1, 0, 1)):
        own[4], own[6], own[9] = block, heading, bold
        crossed = features.crossed.weight[4 * block + 2 * heading + bold]
        found = features(torch.tensor([[own + parent]]))[0, 0]
        torch.testing.assert_close(found, expected + crossed + dense, **CLOSE)


@torch.no_grad()
def test_what_nodes_look_like_reaches_their_words_and_global_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    built, seen, forward = build(ETCKeyphrases), {}, etc.ETCEncoder.forward

    def spy(self, tokens, structure, **more):
        seen.update(more, structure=structure)
        return forward(self, tokens, structure, **more)

    monkeypatch.setattr(etc.ETCEncoder, "forward", spy)
    built(**batch_of_pages(pages()[:1], 1))
    of_nodes = built.visual(torch.from_numpy(pages()[0].visual))
    assert torch.equal(seen["global_types"][0], of_nodes)
    # two words of three tokens, then four of five
    assert torch.equal(seen["types"][0], of_nodes[[0, 0, 0, 1, 1, 1, 1, 1]])
    assert seen["structure"].spans[0].tolist() == [[0, 3], [3, 8]]
