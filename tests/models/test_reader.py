"""The encoder of Cluster-Former against its equations, and what every attention in it promises."""

from argparse import Namespace

import pytest
import torch
from fairseq.models import ARCH_CONFIG_REGISTRY
from fairseq.modules.transformer_layer import TransformerEncoderLayerBase
from torch import Tensor, nn
from torch.func import functional_call

from fairseq_clusterformer.attention import attention_kinds
from fairseq_clusterformer.models import stack
from fairseq_clusterformer.models.clusterformer_reader import ClusterformerReader
from tests.models.small import letters, make_reader, make_task, ragged


def as_written(model: ClusterformerReader, question: Tensor, document: Tensor) -> list[Tensor]:
    """CF20's equations one after another, for one document: the states of each window."""
    encoder = model.encoder
    size, stride, asked = encoder.size, encoder.stride, len(question)
    starts = range(0, len(document), stride)
    plain = TransformerEncoderLayerBase(encoder.cfg).double().eval()
    plain.activation_fn = nn.functional.gelu  # fairseq's is taken in float32

    def transformer(layer: nn.Module, x: Tensor) -> Tensor:
        weights = {n: p for n, p in layer.named_parameters() if ".routers." not in n}
        return functional_call(plain, weights, (x.unsqueeze(1), None)).squeeze(1)

    texts = [torch.cat([question, document[s : s + size]]) for s in starts]
    windows = [encoder.forward_embedding(text.unsqueeze(0))[0][0] for text in texts]  # eq. 1
    for number, layer in enumerate(encoder.layers):
        if number not in encoder.cluster_layers:
            windows = [transformer(layer, h) for h in windows]  # eq. 2
            tokens = []
            for token in range(len(document)):  # eq. 3
                found = [
                    h[asked + token - s]
                    for s, h in zip(starts, windows, strict=True)
                    if s <= token < s + size
                ]
                tokens.append(sum(found) / len(found))
        else:
            blocks = [h[: asked + stride] for h in windows]  # eq. 4
            states = torch.cat(blocks)
            places = [i for block in blocks for i in range(len(block))]
            out: list = [None] * len(states)
            for chunk in chunks(layer, states, places, stride):
                for slot, row in zip(chunk, transformer(layer, states[chunk]), strict=True):
                    out[slot] = row  # eq. 7 to 9
            tokens = [row for row, place in zip(out, places, strict=True) if place >= asked]
            rest = [row for row, place in zip(out, places, strict=True) if place < asked]
            windows = [
                torch.stack(rest[asked * k : asked * (k + 1)]) if asked else states[:0]
                for k in range(len(windows))
            ]
        merged = torch.stack(tokens)
        windows = [
            torch.cat([h[:asked], merged[s : s + size]])
            for s, h in zip(starts, windows, strict=True)
        ]
    if encoder.layer_norm is not None:
        windows = [encoder.layer_norm(h) for h in windows]
    return windows


def chunks(layer: nn.Module, states: Tensor, places: list[int], size: int) -> list[list[int]]:
    """Which states attend to each other: eq. 5 and 6; of the strided baseline, each place."""
    if layer.kinds[0].kind == "full":
        return [[i for i, p in enumerate(places) if p == place] for place in sorted(set(places))]
    centroids = layer.self_attn.routers[0].clustering.centroids
    entered = layer.self_attn_layer_norm(states) if layer.normalize_before else states
    clusters = [
        int(torch.stack([torch.cosine_similarity(h, c, dim=0) for c in centroids]).argmax())
        for h in entered
    ]
    order = sorted(range(len(states)), key=lambda i: (clusters[i], i))
    return [order[start : start + size] for start in range(0, len(order), size)]


@pytest.mark.parametrize(
    ("length", "asked", "size", "stride"),
    [
        *((1, 3, 7, 5), (6, 1, 7, 5), (23, 3, 7, 5), (30, 2, 7, 5), (13, 0, 7, 5), (19, 2, 9, 4)),
        *((11, 2, 6, 1), (16, 2, 4, 4), (9, 4, 15, 12), (13, 1, 7, 2), (5, 2, 15, 2)),
    ],
)
@pytest.mark.parametrize(
    ("attention", "norm_first"), [("kmeans", True), ("strided", False), ("kmeans", False)]
)
def test_equations(attention, length, asked, size, stride, norm_first):
    """Outputs and gradients, as a plain loop has them."""
    model = make_reader(
        cluster_attention=attention,
        window_size=size,
        window_stride=stride,
        encoder_normalize_before=norm_first,
    )
    question, document = letters(asked), letters(length)
    reading = model.encoder(question.unsqueeze(0), document.unsqueeze(0))
    expected = as_written(model, question, document)
    assert reading.question.shape == (1, len(expected), asked, 16)
    outputs = []
    for k, h in enumerate(expected):
        text = reading.document[0, stride * k : stride * k + size]
        outputs.append(torch.cat([reading.question[0, k], text]))
        torch.testing.assert_close(outputs[-1], h, rtol=0, atol=1e-12)
    weights = [torch.randn_like(h) for h in expected]
    gradients = []
    for states in (outputs, expected):
        loss = sum((h * w).sum() for h, w in zip(states, weights, strict=True))
        parameters = [p for p in model.encoder.parameters() if p.requires_grad]
        gradients.append(torch.autograd.grad(loss, parameters, allow_unused=True))
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-10)


@torch.no_grad()
@pytest.mark.parametrize("rule", ["chunk", "recent"])
@pytest.mark.parametrize("attention", attention_kinds())
def test_a_document_alone_is_a_document_in_any_batch(attention, rule):
    model = make_reader(cluster_attention=attention, cluster_rule=rule, attention_window=3)
    question, document, asked, lengths = ragged(model.encoder.padding_idx)
    together = model.encoder(question, document)
    for row in range(5):
        q, n = asked[row], lengths[row]
        alone = model.encoder(question[[row], :q], document[[row], :n])
        windows = alone.question.size(1)
        for found, expected in (
            (together.document[row, :n], alone.document[0]),
            (together.question[row, :windows, :q], alone.question[0]),
        ):
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
        real = ~together.question_padding[row]
        assert real.sum(1).tolist() == [asked[row]] * windows + [0] * (len(real) - windows)
        assert (~together.document_padding[row]).sum() == lengths[row]


@torch.no_grad()
@pytest.mark.parametrize("attention", attention_kinds())
def test_portions_give_what_the_whole_gives(attention, monkeypatch):
    """Without gradients no feed-forward block sees more tokens than it may, or than a row has."""
    model = make_reader(cluster_attention=attention)
    question, document, *_ = ragged(model.encoder.padding_idx)
    with torch.enable_grad():
        whole = model.encoder(question, document)
    seen = []
    for layer in model.encoder.layers:
        layer.fc1.register_forward_hook(lambda _, inputs, out: seen.append(out[..., 0].numel()))
    for at_once, most in ((1, 5 * 11), (60, 60), (120, 120)):  # a row of each document at least
        monkeypatch.setattr(stack, "AT_ONCE_CPU", at_once)
        seen.clear()
        portions = model.encoder(question, document)
        assert len(seen) > len(model.encoder.layers)
        assert max(seen) <= most
        for mine, theirs in zip(portions[:4], whole[:4], strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)


@torch.no_grad()
def test_the_bank_holds_what_enters_a_cluster_layer():
    """Real states alone, the question's of every window too, and centroids come of them."""
    model = make_reader(dropout=0.0, attention_dropout=0.0).train()
    question, document, asked, lengths = ragged(model.encoder.padding_idx)
    entered = []
    layers = [model.encoder.layers[number] for number in model.encoder.cluster_layers]
    for layer in layers:
        layer.register_forward_pre_hook(
            lambda _, inputs: entered.append(inputs[0].transpose(0, 1)[~inputs[1]])
        )
    model.set_num_updates(0)
    model(question, document)
    number = sum(q * max(1, -(-n // 5)) + n for q, n in zip(asked, lengths, strict=True))
    clusterings = [layer.self_attn.routers[0].clustering for layer in layers]
    assert len(clusterings) == len(entered) == 2
    for clustering, states in zip(clusterings, entered, strict=True):
        assert len(states) == number
        expected = nn.functional.normalize(states, dim=-1).half()
        assert torch.equal(clustering.bank.latest(1000), expected)
    before = [clustering.centroids.clone() for clustering in clusterings]
    model.set_num_updates(1)
    for clustering, centroids in zip(clusterings, before, strict=True):
        assert not torch.equal(clustering.centroids, centroids)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window_stride": 8}, "--window-stride is 8; allowed: 1 to --window-size, which is 7"),
        ({"window_positions": 6}, "--window-positions is 6; allowed: --window-size"),
        ({"token_types": 1}, "--token-types is 1; allowed: 0 or 2"),
        ({"positions": "rotary"}, "--positions is rotary; allowed: none in a reader"),
        ({"cluster_layers": "2,5"}, "--cluster-layers is 2,5; allowed: layers 1 to 4"),
        ({"cluster_attention": "dense"}, "--cluster-attention is dense: unknown kind 'dense'"),
        ({"cluster_attention": "kmeans+strided"}, "allowed: window or strided alone, or heads"),
        ({"kmeans_bank_size": 3}, "--kmeans-bank-size is 3; allowed: 4 or more, the clusters"),
        (
            {"cluster_rule": "leaking-chunk", "cluster_attention": "gated"},
            "--cluster-rule is leaking-chunk; allowed: chunk, recent$",
        ),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        make_reader(**options)


def test_bad_input():
    model = make_reader()
    document = letters(1, 30)
    with pytest.raises(ValueError, match="a window of 21 tokens, 14 of the question; allowed: 20"):
        model(letters(1, 14), document)
    document[0, 3] = model.encoder.padding_idx
    with pytest.raises(ValueError, match="document_tokens: padding before a token"):
        model(letters(1, 3), document)


@pytest.mark.parametrize(
    ("architecture", "layers", "across", "millions"),
    [("base", 12, (7, 10), 85.1), ("large", 24, (15, 20), 302.3)],
)
def test_sizes_are_those_of_roberta(architecture, layers, across, millions):
    """All but the embeddings; RoBERTa's layers have these numbers of parameters."""
    args = Namespace()
    ARCH_CONFIG_REGISTRY[f"clusterformer_reader_{architecture}"](args)
    with torch.device("meta"):
        encoder = ClusterformerReader.build_model(args, make_task()).encoder
    assert len(encoder.layers) == layers
    assert encoder.cluster_layers == across
    number = sum(p.numel() for p in encoder.layers.parameters())
    assert round(number / 1e6, 1) == millions
