"""ETC for keyphrases: one page among others, what nodes look like, and the head."""

from argparse import Namespace

import pytest
import torch
from fairseq.data import Dictionary
from torch.nn.functional import gelu

from fairseq_clusterformer.etc import encoder as etc
from openkp import model as etc_keyphrases
from openkp.model import (
    ETCKeyphrases,
    ETCKeyphrasesConfig,
    PhraseHead,
    VisualFeatures,
)
from openkp.pages import MOST_WORDS, Page, batch_of_pages
from openkp.tests.web_pages import HEADING, PLAIN
from tests.etc.models import CLOSE, assert_all_have_gradients, build, of_size

OPTIONS = [
    {},
    {"hard_global": True, "encoder_normalize_before": True},
    {"no_visual_features": True},
    {"fixed_blocks": True, "block": 4},
]


def model(**options) -> ETCKeyphrases:
    return build(ETCKeyphrases, **options)


def page(words: list[int], nodes: list[int]) -> Page:
    """Of random tokens.

    Args:
        words: tokens of each.
        nodes: words of each.
    """
    starts = torch.tensor([0, *words]).cumsum(0)
    bounds = torch.tensor([0, *nodes]).cumsum(0)
    looks = torch.tensor([HEADING, PLAIN] * len(nodes)).long()[: len(nodes)]
    return Page(
        tokens=torch.randint(4, 34, (int(starts[-1]),)),
        starts=starts[:-1],
        folded=torch.arange(len(words)),
        nodes=torch.stack([bounds[:-1], bounds[1:]], 1),
        visual=looks + torch.arange(len(nodes)).unsqueeze(1) * torch.tensor([3] * 4 + [0] * 16),
        phrases=torch.zeros(1, 2, dtype=torch.int64),
    )


def pages() -> list[Page]:
    """The last has words fewer than a convolution is wide."""
    torch.manual_seed(3)
    long = page([1, 2, 1, 3, 1, 0, 2, 1, 1, 4, 1], [3, 2, 0, 5, 1])
    return [page([2, 1, 1, 1, 2, 1], [2, 4]), long, page([1, 3], [2])]


@torch.no_grad()
@pytest.mark.parametrize("options", OPTIONS)
def test_a_page_alone_is_a_page_in_any_batch(options: dict) -> None:
    built, given = model(**options), pages()
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
    built = model(**options).train()
    logits = built(**batch_of_pages(pages()[only], 1))[0]
    logits.flatten(1).logsumexp(1).sum().backward()
    assert_all_have_gradients(built)


def test_in_half_precision() -> None:
    """The head is computed in float32, as pixels are."""
    built, batch = model().float().train(), batch_of_pages(pages(), 1)
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
    words = [0, 0, 1, 3, 3, 4, 5, 6, 6]  # the third has no token
    found = head(states, torch.tensor([words]), torch.tensor([7]))[0]
    of_word = []
    for number in range(7):
        mine = [states[0, i] for i, word in enumerate(words) if word == number]
        of_word.append(head.word_norm(sum(mine, torch.zeros(6, dtype=torch.float64))))
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
    features = VisualFeatures(5).double()
    own = [-99, -99, -99, -99, 0, 1, 0, 1, 60, 1]
    parent = [725, 750, 2975, 9000, 1, 0, 1, 0, 24, 0]
    visual = torch.tensor([[own + parent]])
    pixels = features.scaled(visual[..., etc_keyphrases._PIXELS])
    assert pixels[0, 0].tolist() == [-1, -1, -1, -1, 0, 0, 0, 0]
    dense = torch.tensor([-1, -1, -1, -1, 0, 0, 0, 0, 1, 1, 1, 0, 0], dtype=torch.float64)
    for layer in features.dense:
        dense = gelu(layer.weight @ dense + layer.bias)
    expected = features.fonts[0].weight[23] + features.fonts[1].weight[17]
    expected = expected + features.crossed.weight[1] + dense
    torch.testing.assert_close(features(visual)[0, 0], expected, **CLOSE)


def test_buckets_of_fonts_and_what_is_crossed() -> None:
    """24 buckets; blocks, headings and bold text make eight."""
    features = VisualFeatures(4)
    fonts = [0, 1, 8, 9, 16, 24, 25, 29, 30, 49, 50, 400]
    buckets = torch.bucketize(torch.tensor(fonts), features.sizes)
    assert buckets.tolist() == [0, 1, 1, 2, 9, 17, 18, 18, 19, 22, 23, 23]
    assert features.fonts[0].num_embeddings == 24
    visual = torch.zeros(1, 8, 20, dtype=torch.int64)
    for number in range(8):
        visual[0, number, 4], visual[0, number, 6] = number >> 2, number >> 1 & 1
        visual[0, number, 9] = number & 1
    seen = []
    features.crossed.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0]))
    features(visual)
    assert seen[0].tolist() == [list(range(8))]


@torch.no_grad()
def test_what_nodes_look_like_reaches_their_words_and_global_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    built, seen = model(), {}
    forward = etc.ETCEncoder.forward

    def spy(self, tokens, structure, **more):
        seen.update(more, structure=structure)
        return forward(self, tokens, structure, **more)

    monkeypatch.setattr(etc.ETCEncoder, "forward", spy)
    given = pages()[:1]
    batch = batch_of_pages(given, 1)
    built(**batch)
    of_nodes = built.visual(given[0].visual)
    assert torch.equal(seen["global_types"][0], of_nodes)
    # two words of three tokens, then four of five
    assert torch.equal(seen["types"][0], of_nodes[[0, 0, 0, 1, 1, 1, 1, 1]])
    assert seen["structure"].spans[0].tolist() == [[0, 3], [3, 8]]
    x = built.encoder.embed_tokens(batch["src_tokens"]) + built.encoder.embed_types.weight[1]
    expected = built.encoder.layernorm_embedding(x + seen["types"])
    found = built.encoder._embedded(batch["src_tokens"], seen["types"], 1)
    torch.testing.assert_close(found, expected, **CLOSE)


def test_parameters_of_the_papers_base() -> None:
    """What is new has 10 million."""
    with torch.device("meta"):
        args = of_size("base", ETCKeyphrasesConfig)
        built = ETCKeyphrases(args, Namespace(source_dictionary=Dictionary()))
    width = args.encoder_embed_dim
    norms, head = 2 * width, 15 * width * width + 5 * width
    assert sum(p.numel() for p in built.head.parameters()) == head + 6 * norms + 5 * width
    visual = (24 + 24 + 8) * width + (13 + 1) * width + (width + 1) * width
    assert sum(p.numel() for p in built.visual.parameters()) == visual
