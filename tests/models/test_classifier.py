"""The classifier and the masked language model as fairseq builds them."""

from argparse import Namespace

import numpy as np
import pytest
import torch
from fairseq.data import Dictionary, ListDataset
from torch import Tensor

from fairseq_clusterformer.data.sentences import SentenceDataset
from fairseq_clusterformer.models.clusterformer_classifier import ClusterformerClassifier
from fairseq_clusterformer.models.clusterformer_masked_lm import ClusterformerMaskedLM
from tests.models.small import ENCODERS, make_task, sentences

FORMS = ("text", "joined", "siamese")
LENGTHS = (9, 2, 17, 12)


def make_model(task, model=ClusterformerClassifier, **changes):
    values = {
        **{"encoder_layers": 2, "encoder_embed_dim": 32, "encoder_ffn_embed_dim": 64},
        **{"encoder_attention_heads": 4, "attention_window": 5, "dropout": 0.0},
    }
    return model.build_model(Namespace(**{**values, **changes}), task).double().eval()


def batch(task, side: str = "right") -> dict[str, Tensor]:
    """Texts, or pairs of them, padded on a side."""
    tokens = {"src_tokens": sentences(task, list(LENGTHS), side)}
    if task.is_siamese:
        tokens["pair_tokens"] = sentences(task, list(LENGTHS[::-1]), side)
    elif task.is_pair:
        for row, length in zip(tokens["src_tokens"], LENGTHS, strict=True):
            start = len(row) - length if side == "left" else 0
            row[start + length // 2 - 1] = task.source_dictionary.eos()
    return tokens


def alone(tokens: Tensor, pad: int) -> list[Tensor]:
    return [row[row != pad].unsqueeze(0) for row in tokens]


@torch.no_grad()
@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("pooling", ["mean", "first"])
def test_a_text_alone_is_a_text_in_any_batch(encoder, form, pooling):
    """With padding on either side."""
    task = make_task(form)
    model = make_model(task, pooling=pooling, **ENCODERS[encoder])
    pad = task.source_dictionary.pad()
    left = batch(task, "left")
    right = {}
    for name, tokens in left.items():
        right[name] = torch.full_like(tokens, pad)
        for row, text in zip(right[name], alone(tokens, pad), strict=True):
            row[: text.size(1)] = text[0]
    logits = model(**left)[0]
    assert logits.shape == (4, 3)
    assert logits.std(0).min() > 1e-3
    torch.testing.assert_close(model(**right)[0], logits, rtol=0, atol=1e-12)
    rows = zip(*(alone(tokens, pad) for tokens in left.values()), strict=True)
    single = [model(**dict(zip(left, row, strict=True)))[0] for row in rows]
    torch.testing.assert_close(torch.cat(single), logits, rtol=0, atol=1e-12)


@torch.no_grad()
@pytest.mark.parametrize("form", ["text", "siamese"])
def test_what_the_classifier_sees(form):
    """The mean of the real tokens; of a siamese pair [u; v; |u - v|; u * v]."""
    model, features = make_model(make_task(form)), []
    model.classifier.register_forward_pre_hook(lambda _, inputs: features.append(inputs[0]))
    tokens = batch(make_task(form))
    model(**tokens)
    means = [
        torch.stack([model.encoder(row)["encoder_out"][0].mean((0, 1)) for row in alone(text, 1)])
        for text in tokens.values()
    ]
    if form == "siamese":
        u, v = means
        means = [u, v, (u - v).abs(), u * v]
    torch.testing.assert_close(features[0], torch.cat(means, dim=1))


@torch.no_grad()
def test_segments_begin_behind_the_first_separator():
    task = make_task("joined")
    model = make_model(task, encoder_attention="full", no_token_positional_embeddings=True)
    given = []
    model.segments.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0]))
    d = task.source_dictionary
    a, b, end, pad = d.index("a"), d.index("b"), d.eos(), d.pad()
    pair = [d.bos(), a, end, b, b, end]
    model(torch.tensor([[*pair, pad, pad], [pad, pad, *pair]]))
    assert given[0][0, :6].tolist() == given[0][1, 2:].tolist() == [0, 0, 0, 1, 1, 1]
    # and they reach the classifier
    swapped = [d.bos(), b, b, end, a, end]
    logits = model(torch.tensor([pair, swapped]))[0]
    assert (logits[0] - logits[1]).abs().max() > 1e-3
    model.segments.weight.copy_(model.segments.weight[0].clone())
    logits = model(torch.tensor([pair, swapped]))[0]
    torch.testing.assert_close(logits[0], logits[1])


@torch.no_grad()
@pytest.mark.parametrize("encoder", ENCODERS)
def test_masked_lm(encoder):
    task = make_task()
    model = make_model(task, ClusterformerMaskedLM, **ENCODERS[encoder])
    tokens = batch(task)["src_tokens"]
    logits, extra = model(tokens)
    assert logits.shape == (*tokens.shape, len(task.source_dictionary))
    assert len(extra["reports"]["encoder"]) == (3 if encoder == "mixed" else 2)
    masked = torch.rand(tokens.shape) < 0.3
    torch.testing.assert_close(model(tokens, masked_tokens=masked)[0], logits[masked])
    single = [model(text)[0][0] for text in alone(tokens, task.source_dictionary.pad())]
    for row, text in zip(logits, single, strict=True):
        torch.testing.assert_close(row[: len(text)], text, rtol=0, atol=1e-12)
    assert model.lm_head.weight is model.encoder.embed_tokens.weight


def dataset(a: list, b: list, form: str, longest: int, ends=(2,)) -> SentenceDataset:
    """Words are numbers from 10 on; <s> 0, <pad> 1, </s> 2."""
    lines = [[torch.tensor([*row, *ends]).int() for row in text] for text in (a, b)]
    rows = [ListDataset(text, np.array([*map(len, text)])) for text in lines]
    labels = torch.arange(len(a))
    how = {"pair_form": form, "max_positions": longest, "shuffle": False}
    return SentenceDataset(rows, labels, Dictionary(), **how)


@pytest.mark.parametrize("ends", [(2,), ()])
@pytest.mark.parametrize(
    ("form", "first", "second"),
    [
        ("joined", [[0, 10, 11, 2, 13, 2], [0, 12, 2, 2, 1, 1]], None),
        ("siamese", [[0, 10, 11, 2], [0, 12, 2, 1]], [[0, 13, 2], [0, 2, 1]]),
    ],
)
def test_forms_of_pairs(form, first, second, ends):
    pairs = dataset([[10, 11], [12]], [[13], []], form, 20, ends)
    found = pairs.collater([pairs[0], pairs[1]])
    assert found["net_input"]["src_tokens"].tolist() == first
    assert ("pair_tokens" in found["net_input"]) == (second is not None)
    if second is not None:
        assert found["net_input"]["pair_tokens"].tolist() == second
    assert found["target"].tolist() == [0, 1]
    assert (found["ntokens"], found["nsentences"]) == (12 if second else 10, 2)
    assert pairs.sizes.tolist() == ([4, 3] if second else [6, 4])


@pytest.mark.parametrize(
    ("lengths", "kept"),
    [((9, 9), (3, 2)), ((1, 9), (1, 4)), ((9, 1), (4, 1)), ((2, 3), (2, 3)), ((0, 9), (0, 5))],
)
def test_of_a_joined_pair_the_longer_text_is_cut(lengths, kept):
    a, b = (list(range(start, start + n)) for start, n in zip((10, 30), lengths, strict=True))
    pairs = dataset([a], [b], "joined", 8)
    (row,) = pairs[0]["sequences"]
    assert row.tolist() == [0, *a[: kept[0]], 2, *b[: kept[1]], 2]
    assert pairs.sizes[0] == len(row)
