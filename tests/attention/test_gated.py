"""What gated heads learn, report and explore."""

import pytest
import torch

from fairseq_clusterformer.attention import Batch, MultiheadAttention, Tokens, parse_layer

from ..kinds import by_steps


@pytest.mark.parametrize("causal", [True, False])
def test_the_task_teaches_keys_and_centroids(causal):
    """Through the bias of keys, which holds their shares, with assignments as they are."""
    kinds = "gated(3,clusters=3,temperature=0.5,exploration=0.0)"
    router = MultiheadAttention(8, 2, kinds=kinds, causal=causal).double().routers[0]
    router.normalizer.log_normalizer.normal_()
    q, k = torch.randn(2, 1, 2, 7, 4, dtype=torch.float64)
    x = q.new_zeros(1, 7, 8)

    def bias(k, centroids):
        tokens = Tokens(x, (q, k), Batch())
        seen = torch.func.functional_call(router, {"centroids": centroids}, (tokens,))
        return seen.assignment.key_bias

    k, centroids = (t.detach().requires_grad_() for t in (k, router.centroids))
    assert torch.autograd.gradcheck(bias, (k, centroids), eps=1e-7, atol=1e-6)
    for gradient in torch.autograd.grad(bias(k, centroids).square().sum(), (k, centroids)):
        assert (gradient.abs().amax(-1) > 0).all()


@pytest.mark.parametrize("spec", ["gated", "gated(gap=4)", "lsh"])
@torch.no_grad()
def test_steps_round_what_the_parallel_pass_rounds(spec):
    """In half precision: a layer behind this one would move what differs to other clusters."""
    torch.manual_seed(0)
    kinds = parse_layer(spec, window=8, clusters=4)
    module = MultiheadAttention(32, 4, kinds=kinds, causal=True).bfloat16().eval()
    for name in ("q", "k", "v", "out"):  # nothing else rounds
        projection = getattr(module, f"{name}_proj")
        torch.nn.init.eye_(projection.weight)
        torch.nn.init.zeros_(projection.bias)
    x = torch.randn(2, 64, 32).bfloat16()
    steps, _ = by_steps(module, x)
    for parallel in (module(x)[0], module.step(x, None)[0]):
        share = (steps != parallel).double().mean()
        assert share < 0.02


def test_half_precision_routes_by_float32_of_its_own_heads():
    """Others are not computed: those of a window read none."""
    attention = MultiheadAttention(16, 4, kinds="window+gated", causal=True).bfloat16()
    x, seen = torch.randn(2, 9, 16).bfloat16(), {}
    router, project = attention.routers[1], attention.project
    router.register_forward_pre_hook(lambda _, given: seen.update(tokens=given[0]))

    def noted(*args, **kwargs):
        heads = project(*args, **kwargs)
        return seen.update(heads=heads) or heads

    attention.project = noted
    attention(x)
    for name, found in (("q", seen["tokens"].q), ("k", seen["tokens"].k)):
        of = getattr(attention, f"{name}_proj")
        whole = torch.nn.functional.linear(x.float(), of.weight.float(), of.bias.float())
        torch.testing.assert_close(
            found, attention.split(name, whole)[:, 2:], rtol=1e-5, atol=1e-6
        )
    assert [t.size(1) for t in seen["heads"].exact] == [2, 2]
