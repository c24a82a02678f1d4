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
def test_bucket_sizes_are_reported():
    module = layer("lsh", causal=True, num_clusters=3)
    (report,) = module(inputs())[1]
    assert report.cluster_sizes.shape == (2 * 2, 3)  # rounds and heads
    assert report.cluster_sizes.sum(-1).eq(BATCH * LENGTH).all()
    assert report.clustering_loss is None
