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
def test_mean_pooling_is_the_mean_of_real_tokens():
    task = make_task()
    model = make_model(task, encoder_attention="full")
    pooled = []
    model.classifier.register_forward_pre_hook(lambda _, inputs: pooled.append(inputs[0]))
    tokens = batch(task)["src_tokens"]
    model(tokens)
    outputs = model.encoder(tokens)["encoder_out"][0].transpose(0, 1)
    for row, text, length in zip(pooled[0], outputs, LENGTHS, strict=True):
        torch.testing.assert_close(row, text[:length].mean(0))


@torch.no_grad()
def test_features_of_a_siamese_pair():
    """One encoder: exchanging the texts exchanges u and v, and leaves |u - v| and u * v."""
    task = make_task("siamese")
    model = make_model(task)
    features = []
    model.classifier.register_forward_pre_hook(lambda _, inputs: features.append(inputs[0]))
    tokens = batch(task)
    model(**tokens)
    model(tokens["pair_tokens"], pair_tokens=tokens["src_tokens"])
    u, v, difference, product = features[0].chunk(4, dim=1)
    assert torch.equal(torch.cat([v, u, difference, product], 1), features[1])
    assert torch.equal(difference, (u - v).abs())
    assert torch.equal(product, u * v)
    assert difference.min() > 0 or difference.mean() > 1e-3


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


@pytest.mark.parametrize("form", FORMS)
def test_every_parameter_is_trained(form):
    task = make_task(form)
    model = make_model(task, encoder_attention="neural").train()
    logits, extra = model(**batch(task))
    auxiliary = sum(r.clustering_loss + r.sorting_loss for r in extra["reports"]["encoder"])
    (logits.square().sum() + auxiliary).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


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


class TestDataset:
    """Words are numbers from 10 on; <s> 0, <pad> 1, </s> 2."""

    def make(self, *texts: list[list[int]], form: str, longest: int, end=True) -> SentenceDataset:
        ends = [2] * end
        lines = ([torch.tensor(row + ends).int() for row in text] for text in texts)
        rows = [ListDataset(text, np.array([*map(len, text)])) for text in lines]
        labels = torch.arange(len(texts[0]))
        return SentenceDataset(
            rows, labels, Dictionary(), pair_form=form, max_positions=longest, shuffle=False
        )

    @pytest.mark.parametrize("end", [True, False])
    def test_forms(self, end):
        a, b = [[10, 11], [12]], [[13], []]
        joined = self.make(a, b, form="joined", longest=20, end=end)
        batch = joined.collater([joined[0], joined[1]])
        assert batch["net_input"]["src_tokens"].tolist() == [
            [0, 10, 11, 2, 13, 2],
            [0, 12, 2, 2, 1, 1],
        ]
        assert "pair_tokens" not in batch["net_input"]
        assert joined.sizes.tolist() == [6, 4]
        siamese = self.make(a, b, form="siamese", longest=20, end=end)
        batch = siamese.collater([siamese[0], siamese[1]])
        assert batch["net_input"]["src_tokens"].tolist() == [[0, 10, 11, 2], [0, 12, 2, 1]]
        assert batch["net_input"]["pair_tokens"].tolist() == [[0, 13, 2], [0, 2, 1]]
        assert siamese.sizes.tolist() == [4, 3]
        assert batch["target"].tolist() == [0, 1]
        assert (batch["ntokens"], batch["nsentences"]) == (12, 2)

    @pytest.mark.parametrize(
        ("lengths", "kept"),
        [((9, 9), (3, 2)), ((1, 9), (1, 4)), ((9, 1), (4, 1)), ((2, 3), (2, 3)), ((0, 9), (0, 5))],
    )
    def test_of_a_joined_pair_the_longer_text_is_cut(self, lengths, kept):
        a, b = (list(range(start, start + n)) for start, n in zip((10, 30), lengths, strict=True))
        dataset = self.make([a], [b], form="joined", longest=8)
        (row,) = dataset[0]["sequences"]
        assert row.tolist() == [0, *a[: kept[0]], 2, *b[: kept[1]], 2]
        assert dataset.sizes[0] == len(row)
