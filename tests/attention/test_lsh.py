"""What hashing promises."""

import torch
from torch import Tensor
from torch.nn.functional import normalize
from torch.utils.checkpoint import checkpoint

from .plain import BATCH, WIDTH, layer, projected

LENGTH = 17


def inputs(batch: int = BATCH, length: int = LENGTH) -> Tensor:
    return torch.randn(batch, length, WIDTH, dtype=torch.float64)


@torch.no_grad()
def test_keys_are_queries_at_length_1():
    q, k, _ = projected(layer("lsh", causal=True), inputs())
    torch.testing.assert_close(k, normalize(q, dim=-1))


def test_both_projections_learn():
    module = layer("lsh", causal=True, num_clusters=2)
    module(inputs())[0].square().sum().backward()
    assert module.q_proj.weight.grad.abs().max() > 0
    assert module.k_proj.weight.grad.abs().max() > 0


@torch.no_grad()
def test_rotations_change_in_training_only():
    module, x = layer("lsh", causal=True, num_clusters=4), inputs()
    kept = module.routers[0].rotations.clone()
    assert torch.equal(module(x)[0], module(x)[0])
    module.train()
    assert not torch.allclose(module(x)[0], module(x)[0])
    assert torch.equal(module.routers[0].rotations, kept)
    assert "routers.0.rotations" in module.state_dict()


def test_activation_checkpoints_replay_the_rotations():
    module, x = layer("lsh", causal=True, num_clusters=4).train(), inputs()
    gradients = []
    for again in (False, True):
        torch.manual_seed(1)
        module.zero_grad()
        run = checkpoint(module, x, use_reentrant=False) if again else module(x)
        run[0].square().sum().backward()
        gradients.append(module.v_proj.weight.grad.clone())
    assert torch.equal(*gradients)


@torch.no_grad()
def test_equal_vectors_share_a_bucket_and_near_ones_more_with_rounds():
    module = layer("lsh", causal=True, num_clusters=16, hash_rounds=8)
    unit = normalize(inputs(length=500).unflatten(-1, (2, -1)).transpose(1, 2), dim=-1)
    near = normalize(unit + 0.2 * torch.randn_like(unit), dim=-1)
    buckets = [torch.stack(module.routers[0]._buckets(k)) for k in (unit, near, 3 * unit)]
    assert torch.equal(buckets[0], buckets[2])
    together = buckets[0] == buckets[1]
    shares = [together[:rounds].any(0).double().mean() for rounds in (1, 2, 4, 8)]
    far = (buckets[0] == buckets[0].flip(-1)).double().mean()
    assert far < 0.15 < shares[0] < shares[1] - 0.05 < shares[2] - 0.1 < shares[3] - 0.1
    assert shares[3] > 0.95


@torch.no_grad()
def test_bucket_sizes_are_reported():
    module = layer("lsh", causal=True, num_clusters=3)
    (report,) = module(inputs())[1]
    assert report.cluster_sizes.shape == (2 * 2, 3)  # rounds and heads
    assert report.cluster_sizes.sum(-1).eq(BATCH * LENGTH).all()
    assert report.clustering_loss is None
