"""``--truncated-bptt``: an update sums what the segments of its rows give."""

from argparse import Namespace

import pytest
import torch
from fairseq.tasks.language_modeling import LanguageModelingTask

from tests.models.small import lm_sample, make_criterion, make_lm, make_task

SPEC = "window(16)+gated,neural"


@pytest.fixture(scope="module")
def task():
    return LanguageModelingTask(Namespace(), make_task().source_dictionary)


@pytest.fixture
def sample():
    return {**lm_sample((40, 30)), "nsentences": 2}


def updated(task, model, sample) -> tuple:
    """What an update returns and logs, and the gradients that it leaves."""
    torch.manual_seed(1)
    model.zero_grad()
    optimizer = Namespace(backward=lambda loss: loss.backward())
    loss, *others = task.train_step(sample, model, make_criterion(), optimizer, 0)
    return loss.item(), *others, {n: p.grad for n, p in model.named_parameters()}


@pytest.mark.parametrize(("size", "sizes"), [(13, [13, 13, 14]), (16, [16, 16, 8]), (38, [38, 2])])
def test_segments(task, sample, size, sizes):
    """The loss, all counts and the gradients of the loss are sums; no segment has one token."""
    model = make_lm(attention=SPEC).double()
    whole = task.valid_step(sample, model, make_criterion())
    model.truncated_bptt, read = size, []
    model.decoder.layers[0].register_forward_pre_hook(lambda _, given: read.append(len(given[0])))
    found = task.valid_step(sample, model, make_criterion())
    assert read == sizes
    assert found[1] == whole[1] == 70
    torch.testing.assert_close(found[0], whole[0], rtol=1e-6, atol=0)
    for name in ("ntokens", "nsentences", "sample_size", "loss"):
        torch.testing.assert_close(found[2][name], whole[2][name], rtol=1e-6, atol=0)
    *_, gradients = updated(task, model, sample)
    for name, gradient in gradients.items():
        assert gradient.isfinite().all(), name
        assert gradient.any(), name


def test_losses_that_count_by_rows(task, sample):
    """``--sentence-avg``: segments of the same rows are no more rows."""
    model, criterion = make_lm(attention=SPEC), make_criterion()
    criterion.sentence_avg = True
    model.truncated_bptt = 13
    loss, size, logged = task.valid_step(sample, model, criterion)
    assert size == logged["sample_size"] == logged["nsentences"] == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"truncated_bptt": 1}, "is 1; allowed: 0, or 2"),
        ({"separate_documents": True}, "--separate-documents is True"),
        ({"checkpoint_activations": True}, "--checkpoint-activations is True"),
        ({"decoder_layerdrop": 0.1}, "--decoder-layerdrop is 0.1"),
        ({"attention": "neural(rule=leaking-chunk)"}, "is 8, and .* rule leaking-chunk cannot"),
    ],
)
def test_what_does_not_go_with_segments(options, message):
    with pytest.raises(ValueError, match=message):
        make_lm(**{"truncated_bptt": 8, **options})
