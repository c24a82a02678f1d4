"""Losses of answers against plain loops, in float64."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from fairseq_clusterformer.answers import TYPES, AnswerLogits
from fairseq_clusterformer.criterions.clusterformer_qa import (
    MARGINALS,
    ClusterformerQA,
    ClusterformerQAConfig,
    QACriterion,
    answer_parts,
    marginal_nll,
    span_nll,
)
from fairseq_clusterformer.tasks.clusterformer_qa import ClusterformerQAConfig as TaskConfig


def as_written(logits: Tensor, gold: Tensor) -> float:
    """- log sum over gold of exp(logit) / sum over all of exp(logit), of one question."""
    values = logits.tolist()
    right = sum(math.exp(v) for v, is_right in zip(values, gold, strict=True) if is_right)
    return -math.log(right / sum(map(math.exp, values))) if right else 0.0


def span_as_written(start: Tensor, end: Tensor, spans: list[list[int]], marginal: str) -> float:
    """Of one question, by the probabilities of all starts and all ends."""
    starts, ends = ([math.exp(v) for v in logits.tolist()] for logits in (start, end))
    starts, ends = ([value / sum(of) for value in of] for of in (starts, ends))
    spans = [(first, last) for first, last in spans if first >= 0]
    if not spans:
        return 0.0
    if marginal == "joint":
        return -math.log(sum(starts[first] * ends[last] for first, last in spans))
    of_starts = sum(starts[first] for first in {first for first, _ in spans})
    return -math.log(of_starts) - math.log(sum(ends[last] for last in {last for _, last in spans}))


def draw_spans(start: Tensor, end: Tensor) -> Tensor:
    """A question's gold spans a row, up to four of which some share an end; the first has none."""
    spans = torch.full((len(start), 4, 2), -1)
    for row in range(1, len(start)):
        pairs = {(first, last) for first in (2, 5, 7) for last in (7, 9)}
        possible = [p for p in sorted(pairs) if start[row, p[0]] + end[row, p[1]] > -torch.inf]
        for number, pair in enumerate(possible[: 1 + row % 4]):
            spans[row, number] = torch.tensor(pair)
    return spans


def draw(rows: int, length: int) -> tuple[Tensor, Tensor]:
    """Logits, some barred, and what of the others is right; in the first row nothing is."""
    logits = torch.randn(rows, length, dtype=torch.float64)
    barred = torch.rand(rows, length) < 0.3
    gold = (torch.rand(rows, length) < 0.2) & ~barred
    gold[0] = False
    return logits.masked_fill(barred, -torch.inf), gold


@pytest.mark.parametrize("marginal", ["", *MARGINALS])
def test_gradients(marginal):
    """Nothing comes of rows in which nothing is right, or nothing possible."""
    logits = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    barred, gold = (torch.zeros(4, 6, dtype=torch.bool) for _ in range(2))
    barred[1], barred[2, 0] = True, True
    gold[2, 4], gold[3, 1], gold[3, 5] = True, True, True
    spans = torch.tensor([[[-1, -1]] * 2, [[-1, -1]] * 2, [[4, 4], [-1, -1]], [[1, 3], [4, 4]]])

    def loss(x: Tensor) -> Tensor:
        x = x.masked_fill(barred, -torch.inf)
        return span_nll(x, x.flip(-1), spans, marginal) if marginal else marginal_nll(x, gold)

    loss(logits).sum().backward()
    assert (logits.grad[:2] == 0).all()
    assert (logits.grad[2:].abs().sum(1) > 0).all()
    assert torch.isfinite(logits.grad).all()
    assert torch.autograd.gradcheck(loss, logits)


class Model:
    """Says what it was given to say; two reports stand for layers that cluster."""

    training = True

    def __init__(self, logits: AnswerLogits):
        self.logits = logits

    def __call__(self, **inputs):
        return self.logits, {"reports": {"encoder": []}}


@pytest.mark.parametrize("marginal", MARGINALS)
def test_the_criterion_is_the_sum_of_its_parts(marginal):
    batch = 9
    (start, _), (end, _) = draw(batch, 12), draw(batch, 12)
    spans = draw_spans(start, end)
    paragraph, paragraphs = draw(batch, 12)
    types = torch.rand(batch, len(TYPES)) < 0.3
    types[0], types[1:, 1] = True, True
    logits = AnswerLogits(start, end, paragraph, torch.randn(types.shape, dtype=torch.float64))
    target = {"spans": spans, "paragraphs": paragraphs, "types": types}
    sample = {"net_input": {}, "target": target, "ntokens": 108}
    task = SimpleNamespace(target_dictionary=None, cfg=TaskConfig())
    criterion = ClusterformerQA.build_criterion(
        ClusterformerQAConfig(span_marginal=marginal), task
    )
    loss, size, log = criterion(Model(logits), sample)

    def total(*pair: Tensor) -> float:
        return sum(as_written(*row) for row in zip(*pair, strict=True))

    parts = {
        "span_loss": sum(
            span_as_written(*row[:2], row[2].tolist(), marginal)
            for row in zip(start, end, spans, strict=True)
        ),
        "long_loss": total(paragraph, paragraphs),
        "type_loss": total(logits.type, types),
    }
    assert size == batch
    assert float(loss) == pytest.approx(sum(parts.values()), abs=1e-10)
    assert {name: float(log[name]) for name in parts} == pytest.approx(parts, abs=1e-10)
    assert log["type_size"] == batch - 1
    assert log["span_size"] == (spans[:, 0, 0] >= 0).sum()
    assert log["long_size"] == paragraphs.any(1).sum()
    each, _, _ = criterion(Model(logits), sample, reduce=False)
    assert each.shape == (batch,)
    assert float(each.sum()) == pytest.approx(float(loss), abs=1e-10)


@pytest.mark.parametrize("candidates", [False, True])
def test_the_loss_of_a_structured_reader_is_the_mean_of_its_parts(candidates):
    """Where a candidate is right, it and the supporting sentences are all that is learned."""
    (start, _), (end, _), (paragraph, _) = (draw(2, 9) for _ in range(3))
    start, end = (x.nan_to_num(neginf=0.0) for x in (start, end))
    sentences = torch.randn(2, 4, dtype=torch.float64)
    sentences[0, 3] = -torch.inf  # the first question has no more
    sentences.requires_grad_()
    of_candidates = torch.randn(2, 3, dtype=torch.float64) if candidates else None
    types = torch.randn(2, 5, dtype=torch.float64)
    logits = AnswerLogits(start, end, paragraph, types, sentences, of_candidates)
    target = {
        "spans": torch.tensor([[[2, 3]], [[-1, -1]]]),
        "paragraphs": torch.zeros(2, 9, dtype=torch.bool),
        "types": torch.tensor([[True, False, False, False, False]] * 2),
        "supporting": torch.tensor([[0, 1, 1, -1], [1, 0, 0, 0]]),
        "candidate": torch.tensor([2, -1]),
    }
    sample = {"net_input": {}, "target": target, "ntokens": 18, "nsentences": 2}
    criterion = QACriterion(SimpleNamespace(cfg=TaskConfig()), "joint")
    loss, size, logged = criterion(Model(logits), sample, reduce=False)
    supporting = []
    for row, told in zip(sentences, target["supporting"].tolist(), strict=True):
        likely = row.sigmoid().tolist()
        pairs = [(p, t) for p, t in zip(likely, told, strict=True) if t >= 0]
        supporting.append(-sum(math.log(p if t else 1 - p) for p, t in pairs))
    spans = span_nll(start, end, target["spans"], "joint")
    expected = spans + marginal_nll(types, target["types"])
    if candidates:
        expected[0] = as_written(of_candidates[0], [False, False, True])
    assert size == 2
    torch.testing.assert_close(loss, (expected + torch.tensor(supporting).double()) / 5)
    loss.sum().backward()
    assert torch.isfinite(sentences.grad).all()
    assert logged["support_size"] == 2
    assert logged["candidate_size"] == candidates
    assert logged["span_size"] == 1 - candidates


def test_types_that_share_the_softmaxes_of_spans():
    """- log p(start) - log p(end), each among words and slots; one word has two tokens."""
    inf, slots = torch.inf, torch.tensor([[[-5.0, -6.0, -7.0, 2.0], [-1.0] * 4]])
    starts, ends = torch.tensor([[-inf, 1.0, -inf, 4.0]]), torch.tensor([[-inf, -inf, 0.5, 3.0]])
    bounds = torch.tensor([[[0, 0], [1, 2], [1, 2], [3, 3]]])
    logits = AnswerLogits.shared(starts, ends, torch.zeros(1, 4), slots, bounds)
    both = (torch.cat([of[0], slots[0, i]]) for i, of in enumerate((starts, ends)))
    first, last = (x.log_softmax(0) for x in both)
    for spans, type_, start, end in (
        ([[2, 2]], "short", 1, 2),  # a part of a word is the word
        ([[1, 1], [2, 2]], "short", 1, 2),  # and counts once
        ([[-1, -1]], "none", 7, 7),
        ([[-1, -1]], "yes", 4, 4),
    ):
        types = torch.tensor([[name == type_ for name in TYPES]])
        loss, _ = answer_parts(logits, torch.tensor([spans]), types)["span"]
        assert -loss.item() == pytest.approx(float(first[start] + last[end]), abs=1e-6)
