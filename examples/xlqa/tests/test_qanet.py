"""QANet: each part against a plain loop, and what it promises with every kind of attention."""

import math

import pytest
import torch
from torch import Tensor

from fairseq_clusterformer.attention import Batch, attention_kinds
from xlqa import qanet as qanet_reader
from xlqa.qanet import sinusoids, stochastic_depth
from xlqa.tests.word_readers import (
    assert_all_learn,
    assert_rows_alone,
    make,
    of_size,
    ragged,
    tokens,
)

MIXED = ("window+taught", "window*2,neural", "window(2),lsh+kmeans")


class TestStochasticDepth:
    def test_rows_are_left_out_or_scaled(self):
        x, change = torch.randn(2000, 1, 2), torch.randn(2000, 1, 2)
        out = stochastic_depth(x, change, 0.8, training=True)
        left = (out == x).all(-1)
        torch.testing.assert_close(out[~left], (x + change / 0.8)[~left])
        assert 0.17 < left.float().mean() < 0.23

    def test_in_inference_nothing_is_left_out(self):
        x, change = torch.randn(5, 1, 2), torch.randn(5, 1, 2)
        assert torch.equal(stochastic_depth(x, change, 0.3, training=False), x + change)
        assert torch.equal(stochastic_depth(x, change, 1.0, training=True), x + change)

    def test_the_deeper_the_rarer(self, monkeypatch):
        """1 - l / L (1 - p) of sublayer l of L, in each stack and in each pass anew."""
        seen = []

        def recorded(x: Tensor, change: Tensor, survival: float, training: bool) -> Tensor:
            seen.append(survival)
            return x + change

        monkeypatch.setattr(qanet_reader, "stochastic_depth", recorded)
        model = make("qanet", stochastic_depth=0.2).train()
        question, document, *_ = ragged()
        model(question, document)
        first = [1 - 0.2 * i / 6 for i in range(1, 7)]
        model_encoder = [1 - 0.2 * i / 8 for i in range(1, 9)]
        assert seen == pytest.approx(2 * first + 3 * model_encoder)


def test_positions():
    x = sinusoids(9, 6)
    for place in range(9):
        for i in range(3):
            angle = place / 10_000 ** (i / 2)
            assert x[place, i].item() == pytest.approx(math.sin(angle), abs=1e-5)
            assert x[place, 3 + i].item() == pytest.approx(math.cos(angle), abs=1e-5)
    assert sinusoids(4, 5).shape == (4, 5)


@torch.no_grad()
def test_block_as_written():
    """x + f(norm(x)) for convolutions, attention and feed-forward, one after another."""
    model = make("qanet")
    block = model.encoder.layers[0]
    x = torch.randn(1, 7, 12).double()
    padding = torch.zeros(1, 7, dtype=torch.bool)
    found, _ = block(x, Batch(), padding, [1.0] * 6)
    y = x[0] + sinusoids(7, 12)
    for norm, convolution in zip(block.norms, block.convolutions, strict=False):
        y = y + convolution(norm(y).unsqueeze(0), padding)[0]
    z, attention = block.norms[4](y), block.self_attn
    q, k, v = (
        getattr(attention, f"{name}_proj")(z).view(7, 4, 3).transpose(0, 1) for name in "qkv"
    )
    weights = (q @ k.mT / math.sqrt(3)).softmax(-1)
    y = y + attention.out_proj((weights @ v).transpose(0, 1).flatten(1))
    y = y + block.feed_forward(block.norms[5](y))
    torch.testing.assert_close(found[0], y, rtol=0, atol=1e-7)  # positions are float32


@torch.no_grad()
def test_three_passes_of_the_same_blocks():
    """A start comes of the first and the second, an end of the first and the third."""
    model = make("qanet")
    question, document, *_ = ragged()
    seen = []
    model.encoder.layers[-1].register_forward_hook(lambda _, inputs, out: seen.append(out[0]))
    reading = model(question, document)[1]["reading"]
    assert len(seen) == 3
    assert torch.equal(reading.begin, torch.cat([seen[0], seen[1]], dim=-1))
    assert torch.equal(reading.end, torch.cat([seen[0], seen[2]], dim=-1))
    assert torch.equal(reading.document, reading.words.at_tokens(seen[2]))


@torch.no_grad()
@pytest.mark.parametrize(
    ("attention", "rule"),
    [*((kind, "chunk") for kind in (*attention_kinds(), *MIXED)), *((m, "recent") for m in MIXED)],
)
def test_a_document_alone_is_a_document_in_any_batch(attention, rule):
    model = make("qanet", attention=attention, cluster_rule=rule, word_matches=True)
    question, document, *_ = ragged()
    assert_rows_alone(model, question, document, torch.rand(5, 40) < 0.8)


@pytest.mark.parametrize("attention", [*attention_kinds(), *MIXED])
def test_every_attention_trains(attention):
    """Answers and clustering losses reach every parameter."""
    model = make("qanet", attention=attention, dropout=0.1, stochastic_depth=0.2).train()
    question, document, *_ = ragged()
    logits, extra = model(question, document)
    reports = extra["reports"]["encoder"]
    layers = 2 + 3 * 2  # the first block of questions and documents, the others three times
    assert len(reports) == sum(
        len(model.encoder.layers[number].kinds) for number in [0, 0, *3 * [1, 2]]
    )
    assert len(extra["reading"].layers) == layers
    losses = [
        loss
        for report in reports
        for loss in (report.clustering_loss, report.sorting_loss, report.routing_loss)
        if loss is not None
    ]
    answered = sum(x[x > -math.inf].square().sum() for x in (*logits[:4], logits.slots))
    (answered + sum(losses)).backward()
    assert_all_learn(model)


@torch.no_grad()
def test_what_clusters_see_is_committed():
    """K-Means finds its centroids in what entered the block, in all passes."""
    model = make("qanet", attention="full,kmeans,full", kmeans_bank_size=500).train()
    question, document, *_ = ragged()
    clustering = model.encoder.layers[1].self_attn.routers[0].clustering
    model.set_num_updates(0)
    reading = model(question, document)[1]["reading"]
    words = int((~reading.words.padding).sum())
    assert len(clustering.bank.latest(1000)) == 3 * words
    before = clustering.centroids.clone()
    model.set_num_updates(1)
    assert not torch.equal(before, clustering.centroids)


@torch.no_grad()
@pytest.mark.parametrize("attention", ["kmeans", "window+neural", "lsh", "full"])
def test_clusters_of_tokens(attention):
    """Tokens of one word are in one cluster: that of the last pass."""
    model = make("qanet", attention=attention)
    reading = model(tokens(1, 4), torch.cat([torch.zeros(1, 1, dtype=int), tokens(1, 30)], 1))[1][
        "reading"
    ]
    found = model.encoder.clusters(reading)
    assert bool(found) == (attention != "full")
    if not found:
        return
    assert {number for number, _ in found} == {0, 1, 2}
    for (number, label), clusters in found.items():
        assert clusters.shape == (31,)
        assert label.startswith(f"layer {number} of layers 0 to 2, ")
        for word in reading.words.of_token[0].unique():
            assert len(clusters[reading.words.of_token[0] == word].unique()) == 1
    number, reports = reading.layers[-1]
    report = next(report for report in reports if report.clusters is not None)
    own = next(clusters for (layer, _), clusters in found.items() if layer == number)
    assert torch.equal(own, reading.words.at_tokens(report.clusters[:, 0])[0])


def test_rotary_positions_take_the_place_of_sines():
    question, document = tokens(1, 4), tokens(1, 9)
    sizes = {"encoder_embed_dim": 16}
    plain, rotary = (make("qanet", positions=name, **sizes) for name in (None, "rotary"))
    seen = []
    for model in (plain, rotary):
        block = model.encoder.layers[0]
        block.norms[0].register_forward_hook(lambda _, inputs, out: seen.append(inputs[0]))
        embedded = model.encoder.embedding(model.encoder.embedding.speller(question))
        model(question, document)
        moved = seen[0] - embedded
        expected = sinusoids(*embedded.shape[1:]) if model is plain else 0 * moved[0]
        torch.testing.assert_close(moved[0].float(), expected.float())
        seen.clear()


@pytest.mark.parametrize(
    ("architecture", "width", "millions"),
    [("qanet_reader_xlqa", 128, 1.3), ("qanet_reader_xlqa_large", 256, 5.0)],
)
def test_sizes_are_those_of_the_report(architecture, width, millions):
    """Counted from widths and numbers of layers; but for vectors and the slots' heads."""
    model, args = of_size(architecture)
    assert args.encoder_attention_heads * 32 == width  # the report's heads are 32 wide
    d, letters = width, model.encoder.embedding.speller.num_letters

    def block(convolutions: int, kernel: int) -> int:
        separable = d * kernel + d * d + d
        norms = 2 * d * (convolutions + 2)
        return convolutions * separable + 4 * (d * d + d) + 2 * (d * d + d) + norms

    counted = letters * 64 + 3 * 64 * 64 + 64 + (300 + 64) * d + 2 * 2 * (d * d + d)
    counted += block(4, 7) + 7 * block(2, 5) + (3 * d + 1) + 4 * d * d
    counted += 2 * (2 * d + 1)
    counted += 300 + (2 * 3 + 1) * (2 * d + 1)  # other words' vector; slots and paragraphs
    assert sum(p.numel() for p in model.parameters()) == counted
    assert round(counted / 1e6, 1) == millions


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attention": "dense"}, "--attention is dense: unknown kind 'dense'; allowed: full"),
        ({"attention": "window(0)"}, "--attention is window"),
        ({"encoder_attention_heads": 5}, "--encoder-attention-heads is 5; allowed: a number"),
        ({"positions": "learned"}, "--positions is learned; allowed: sinusoidal, rotary"),
        ({"positions": "none"}, "--positions is none; allowed: sinusoidal, rotary"),
        ({"positions": "old"}, "--positions is old; allowed: "),
        ({"copying_start": True}, "--copying-start is True; allowed: in"),
        ({"attention_sinks": 4}, "--attention-sinks is 4; allowed: in models with a decoder"),
        ({"kmeans_bank_size": 2}, "--kmeans-bank-size is 2; allowed: 3 or more, the clusters"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(").replace(")", r"\)")):
        make("qanet", **options)
