"""What a reader says of its states, by hand; which gradients it gives to what."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from fairseq_clusterformer.answers import TYPES
from fairseq_clusterformer.criterions.clusterformer_qa import (
    ClusterformerQA,
    ClusterformerQAConfig,
    answer_parts,
)
from fairseq_clusterformer.models.clusterformer_reader import ClusterformerReader
from fairseq_clusterformer.tasks.clusterformer_qa import ClusterformerQAConfig as TaskConfig
from tests.models.small import make_reader, ragged

STARTS = {0: (0, 9), 1: (0, 5, 33), 2: (0,), 3: (), 4: (0, 11)}  # of paragraphs, a document each


def batch(model: ClusterformerReader) -> dict[str, Tensor]:
    """Documents of several paragraphs; one has no token. The second of each has a title."""
    question, document, _, lengths = ragged(model.encoder.padding_idx)
    text = document.ne(model.encoder.padding_idx)
    for row, places in STARTS.items():
        assert all(place < lengths[row] for place in places)
        document[row, list(places)] = model.encoder.dictionary.bos()
        text[row, list(places)] = False
        if len(places) > 1:
            text[row, places[1] + 1] = False
    return {"question_tokens": question, "document_tokens": document, "text_mask": text}


def with_heads(**changes) -> ClusterformerReader:
    """Whose heads for types are no longer at their start."""
    model = make_reader(**changes)
    torch.nn.init.normal_(model.heads.answer_type.weight)
    return model


@torch.no_grad()
def test_logits_by_hand():
    model = with_heads()
    inputs = batch(model)
    logits, extra = model(**inputs)
    reading, heads = extra["reading"], model.heads
    real = inputs["document_tokens"] != model.encoder.padding_idx
    begins = inputs["document_tokens"] == model.encoder.dictionary.bos()
    of_states = [reading.document @ head.weight.t() + head.bias for head in heads.children()]
    for found, wanted, allowed in (
        (logits.start, of_states[0][..., 0], inputs["text_mask"] & real),
        (logits.end, of_states[0][..., 1], inputs["text_mask"] & real),
        (logits.paragraph, of_states[1][..., 0], begins),
    ):
        torch.testing.assert_close(found, wanted.masked_fill(~allowed, -torch.inf))
    for row in range(len(real)):
        # the mean over the windows that there are of the question's first state
        windows = ~reading.question_padding[row, :, 0]
        mean = reading.question[row, windows, 0].mean(0)
        torch.testing.assert_close(logits.type[row], heads.answer_type(mean))
    assert (logits.type.std(0) > 0.01).all()


@torch.no_grad()
def test_no_answer_is_a_place_among_the_spans():
    """Against softmaxes written out, over the other types, "no answer" and the tokens."""
    model, plain = with_heads(shared_softmax=True), with_heads()
    plain.load_state_dict(model.state_dict())
    inputs = batch(model)
    (logits, extra), (apart, _) = model(**inputs), plain(**inputs)
    question, hidden = extra["reading"].question, extra["reading"].question_padding
    spans = torch.tensor([[[2, 3]], [[7, 8]], [[-1, -1]], [[-1, -1]], [[-1, -1]]])
    types = torch.zeros(5, len(TYPES), dtype=torch.bool)
    types[range(5), [0, 0, TYPES.index("none"), TYPES.index("none"), TYPES.index("yes")]] = True
    parts = answer_parts(logits, spans, types)
    assert (parts["type"][0] == 0).all()
    for row in range(5):
        first = question[row, ~hidden[row, :, 0], 0].mean(0)
        none = model.heads.span.weight @ first + model.heads.span.bias
        others, loss, best = apart.type[row, 1:4] / 2, 0.0, []
        for side, of_tokens in enumerate((apart.start[row], apart.end[row])):
            right = none[side] if types[row, 4] else others[0]
            right = of_tokens[spans[row, 0, side]] if types[row, 0] else right
            loss += torch.cat([others, none[[side]], of_tokens]).logsumexp(0) - right
            best.append(of_tokens)
        torch.testing.assert_close(parts["span"][0][row], loss)
        length = len(best[0])
        pairs = [best[0][i] + best[1][j] for j in range(length) for i in range(j + 1)]
        wanted = torch.stack([max(pairs), *(2 * others), none.sum()])
        torch.testing.assert_close(logits.type[row], wanted)


@torch.no_grad()
def test_no_mask_makes_text_of_the_beginnings():
    model = with_heads()
    inputs = batch(model)
    barred = inputs["document_tokens"].eq(model.encoder.padding_idx)
    barred |= inputs["document_tokens"].eq(0)
    for mask in (None, torch.ones_like(barred)):
        logits, _ = model(**inputs | {"text_mask": mask})
        for found in (logits.start, logits.end):
            assert torch.equal(found == -torch.inf, barred)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    """Logits are in float32, of one and the same weights and states."""
    model = with_heads().to(dtype)
    logits, extra = model(**batch(model))
    assert extra["reading"].document.dtype == dtype
    assert {x.dtype for x in logits[:4]} == {torch.float32}
    states = extra["reading"].document.float()
    expected = states @ model.heads.span.weight.float().t() + model.heads.span.bias.float()
    some = logits.start > -torch.inf
    torch.testing.assert_close(logits.start[some], expected[..., 0][some])


def test_nothing_to_learn():
    """Every parameter has a gradient all the same, as data-parallel workers need it."""
    model = make_reader().train()
    inputs = batch(model)
    rows, length = inputs["document_tokens"].shape
    target = {
        "spans": torch.full((rows, 0, 2), -1),
        "paragraphs": torch.zeros(rows, length, dtype=torch.bool),
        "types": torch.ones(rows, len(TYPES), dtype=torch.bool),
    }
    sample = {"net_input": inputs, "target": target, "ntokens": rows * length}
    task = SimpleNamespace(target_dictionary=None, cfg=TaskConfig())
    loss, _, _ = ClusterformerQA.build_criterion(ClusterformerQAConfig(), task)(model, sample)
    loss.backward()
    assert all((parameter.grad == 0).all() for parameter in model.parameters())
