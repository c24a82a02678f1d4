"""Cross-entropy in chunks against fairseq's, whose logits are those of all tokens."""

import pytest
import torch
from fairseq.criterions.cross_entropy import CrossEntropyCriterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    label_smoothed_nll_loss,
)
from torch import Tensor, nn

from fairseq_clusterformer.criterions import fairseq_losses
from fairseq_clusterformer.criterions.fairseq_losses import (
    ClusterformerLabelSmoothedCrossEntropy,
    ClusterformerLabelSmoothedCrossEntropyConfig,
)
from tests.models.small import Largest, gradients, lm_sample, make_criterion, make_lm, make_task

TOKENS, WIDTH, WORDS, PAD = 23, 12, 31, 1
#: of sums over tokens and of long sums of products, in each precision
ROUNDING = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}


@pytest.fixture(autouse=True)
def _short_chunks(monkeypatch):
    monkeypatch.setattr(fairseq_losses, "LOGITS", 1)
    monkeypatch.setattr(fairseq_losses, "TOKENS", 5)


def draw(dtype: torch.dtype, bias: bool) -> tuple[Tensor, nn.Linear, Tensor]:
    features = torch.randn(1, TOKENS, WIDTH, dtype=dtype, requires_grad=True)
    target = torch.randint(PAD + 1, WORDS, (1, TOKENS))
    target[:, 3:11] = PAD  # a chunk has no other
    return features, nn.Linear(WIDTH, WORDS, bias=bias, dtype=dtype), target


def of_all_logits(
    features: Tensor, output: nn.Linear, target: Tensor, smoothing: float
) -> tuple[Tensor, ...]:
    log_probs = output(features).log_softmax(-1)
    return label_smoothed_nll_loss(log_probs, target, smoothing, ignore_index=PAD)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", ROUNDING)
def test_losses_and_gradients(dtype, smoothing, bias):
    """Of the same numbers in float64; and of a loss that is scaled."""
    features, output, target = draw(dtype, bias)
    given = [features, *output.parameters()]
    how = {"ignore_index": PAD, "smoothing": smoothing}
    found = fairseq_losses.cross_entropy_in_chunks(features, output, target, **how)
    assert all(x.dtype == torch.promote_types(dtype, torch.float32) for x in found)
    assert not found[1].requires_grad
    gradients = torch.autograd.grad(3 * found[0], given)
    assert [x.dtype for x in gradients] == [dtype] * len(given)
    exact = nn.Linear(WIDTH, WORDS, bias=bias, dtype=torch.float64)
    exact.load_state_dict(output.state_dict())
    wide = features.detach().double().requires_grad_()
    expected = of_all_logits(wide, exact, target, smoothing)
    wanted = torch.autograd.grad(3 * expected[0], [wide, *exact.parameters()])
    for one, other in zip((*found, *gradients), (*expected, *wanted), strict=True):
        error = (one.double() - other).abs().max() / other.abs().max()
        assert error <= ROUNDING[dtype]
    assert (gradients[0][:, 3:11] == 0).all()


def test_no_tensor_is_of_all_logits():
    sizes = []
    for loss in (fairseq_losses.cross_entropy_in_chunks, of_all_logits):
        features, output, target = draw(torch.float32, False)
        how = {"smoothing": 0.1} if loss is of_all_logits else {"ignore_index": PAD}
        with Largest() as largest:
            loss(features, output, target, **how)[0].backward()
        sizes.append(largest.size // 4)
    assert sizes == [WORDS * WIDTH, TOKENS * WORDS]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("attention", ["window+neural", "full"])
def test_criterion(attention, tied):
    """Tied weights get both gradients."""
    model = make_lm(attention=attention, share_decoder_input_output_embed=tied).train()
    sample = lm_sample((12, 7))
    both = make_criterion(mu=0.0, nu=0.0), CrossEntropyCriterion(make_task(), False)
    found, expected = (gradients(model, criterion, sample) for criterion in both)
    assert len(expected) > 20
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("prefix", [0, 3])
def test_label_smoothing(prefix):
    model, sample = make_lm().train(), lm_sample((12, 7))
    how = {"label_smoothing": 0.2, "ignore_prefix_size": prefix, "sentence_avg": False}
    config = ClusterformerLabelSmoothedCrossEntropyConfig(
        clustering_loss_weight=0.0, centroid_sorting_loss_weight=0.0, **how
    )
    ours = ClusterformerLabelSmoothedCrossEntropy.build_criterion(config, make_task())
    plain = LabelSmoothedCrossEntropyCriterion(make_task(), **how)
    (loss, _, log), (expected, _, logged) = (one(model, sample) for one in (ours, plain))
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(log["nll_loss"], logged["nll_loss"])
    assert loss != log["nll_loss"]


@pytest.mark.parametrize("which", ["", "accuracy", "each token", "unused parameters"])
def test_what_wants_all_logits(which):
    """And where DistributedDataParallel would take the output for unused. Nothing else does."""
    model, sample = make_lm().train(), lm_sample((12, 7))
    calls = []
    model.decoder.output_projection.register_forward_hook(lambda *_: calls.append(1))
    criterion, reduce = make_criterion(), which != "each token"
    if which == "accuracy":
        criterion.report_accuracy = True
    elif which == "unused parameters":
        model.find_unused_parameters = True
    loss, *_ = criterion(model, sample, reduce=reduce)
    assert bool(calls) is bool(which)
    assert loss.numel() == (1 if reduce else 24)
