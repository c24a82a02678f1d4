"""fairseq's Adam on a CPU is torch's fused one, and each goes on from the other's state."""

from types import SimpleNamespace

import pytest
import torch
from fairseq.optim.adam import Adam, FairseqAdam, FairseqAdamConfig
from torch import nn

import fairseq_clusterformer.plugin  # noqa: F401
from fairseq_clusterformer.compat.adam import FusedAdam

BETAS = "(0.9, 0.98)"


def make(weights: list[nn.Parameter], old: bool) -> FairseqAdam:
    cfg = FairseqAdamConfig(adam_betas=BETAS, weight_decay=0.1, use_old_adam=old, tpu=False)
    cfg.lr = [0.01]
    return FairseqAdam(cfg, weights)


def draw(dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    torch.manual_seed(1)
    shapes = ((7, 5), (5,), (3, 1))
    return [nn.Parameter(torch.randn(shape).to(dtype)) for shape in shapes]


def update(optimizer: FairseqAdam, weights: list[nn.Parameter], seed: int) -> None:
    torch.manual_seed(seed)
    for x in weights[:2]:  # the third never has a gradient
        x.grad = torch.randn_like(x)
    optimizer.step()


@pytest.mark.parametrize("changes_to", ["fused", "old", None])
def test_updates(changes_to):
    """As fairseq's own; also where another goes on from what one has saved."""
    expected, found = draw(), draw()
    old, new = make(expected, old=True), make(found, old=changes_to == "fused")
    assert isinstance(old.optimizer, Adam)
    for number in range(8):
        if number == 4 and changes_to:
            state = new.state_dict()
            new = make(found, old=changes_to == "old")
            new.load_state_dict(state)
            assert isinstance(new.optimizer, FusedAdam) == (changes_to == "fused")
            assert len(state["state"]) == 2
        for optimizer, weights in ((old, expected), (new, found)):
            update(optimizer, weights, number)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    assert isinstance(make(found, old=False).optimizer, FusedAdam)


def test_the_state_stays_fused_and_exact():
    """A saved state goes on as if nothing had happened, in one pass over memory."""
    weights, others = draw(), draw()
    one, other = make(weights, old=False), make(others, old=False)
    for number in range(2):
        update(one, weights, number)
        update(other, others, number)
    resumed = make(others, old=False)
    resumed.load_state_dict(other.state_dict())
    assert all(group["fused"] for group in resumed.param_groups)
    update(one, weights, 2)
    update(resumed, others, 2)
    assert all(torch.equal(*pair) for pair in zip(weights, others, strict=True))


def test_half_precision_keeps_fairseqs():
    """Whose moments are in float32; and its groups of weights are taken as they are."""
    assert isinstance(make(draw(torch.bfloat16), old=False).optimizer, Adam)
    groups = make([{"params": draw()[:1], "lr": 0.5}, {"params": draw()[1:]}], old=False)
    assert isinstance(groups.optimizer, FusedAdam)
    assert [group["lr"] for group in groups.param_groups] == [0.5, 0.01]


def test_flat_weights_are_allowed():
    optimizer = make(draw(), old=False)
    assert optimizer.supports_flat_params
    assert not optimizer.supports_memory_efficient_fp16
    assert SimpleNamespace(**optimizer.optimizer_config).betas == (0.9, 0.98)
