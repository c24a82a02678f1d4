"""What gated heads learn, report and explore."""

import math

import pytest
import torch

from fairseq_clusterformer.attention import Batch, MultiheadAttention, Tokens, parse_layer
from fairseq_clusterformer.attention.heads import Convolved
from fairseq_clusterformer.clustering import cluster_use

from ..kinds import by_steps, pads

BATCH, LENGTH, HEADS, WIDTH, CLUSTERS, WINDOW = 2, 15, 2, 4, 3, 3


def make(causal=True, **options) -> MultiheadAttention:
    shared = {"window": WINDOW, "clusters": CLUSTERS, "temperature": 0.5, "exploration": 0.0}
    kinds = parse_layer("gated", **{**shared, **options})
    module = MultiheadAttention(
        HEADS * WIDTH, HEADS, kinds=kinds, causal=causal, kernel="reference"
    ).double()
    module.routers[0].normalizer.log_normalizer.normal_()
    return module


def projected(module: MultiheadAttention, x: torch.Tensor) -> list[torch.Tensor]:
    """Queries, keys and values [B, H, N, E]."""
    return [t.detach() for t in module.project(x, Convolved(Batch()))[1:4]]


def route(router, x, q, k, mask=None):
    return router(Tokens(x, (q, k), Batch(mask))).assignment


def inputs() -> torch.Tensor:
    return torch.randn(BATCH, LENGTH, HEADS * WIDTH, dtype=torch.float64)


def assigned(vector, centroids, log_normalizer):
    """Cluster of a query or a key, and the log of its share, one number at a time."""
    scores = []
    for centroid, log_mean in zip(centroids, log_normalizer.tolist(), strict=True):
        cosine = float(vector @ centroid) / (float(vector.norm()) * float(centroid.norm()))
        scores.append(cosine / 0.5 - log_mean)
    cluster = max(range(len(scores)), key=scores.__getitem__)
    return cluster, scores[cluster] - math.log(sum(math.exp(s) for s in scores))


@pytest.mark.parametrize("causal", [True, False])
def test_the_task_teaches_keys_and_centroids(causal):
    """Through the bias of keys, which holds their shares, with assignments as they are."""
    module = make(causal)
    router = module.routers[0]
    q, k = torch.randn(2, 1, HEADS, 7, WIDTH, dtype=torch.float64)
    x = q.new_zeros(1, 7, HEADS * WIDTH)

    def bias(k, centroids):
        tokens = Tokens(x, (q, k), Batch())
        seen = torch.func.functional_call(router, {"centroids": centroids}, (tokens,))
        return seen.assignment.key_bias

    k, centroids = (t.detach().requires_grad_() for t in (k, router.centroids))
    assert torch.autograd.gradcheck(bias, (k, centroids), eps=1e-7, atol=1e-6)
    for gradient in torch.autograd.grad(bias(k, centroids).square().sum(), (k, centroids)):
        assert (gradient.abs().amax(-1) > 0).all()


def test_what_is_reported():
    module, x = make(), inputs()
    mask = pads([LENGTH, 6], LENGTH, "left")
    _, (report,) = module(x, mask)
    router = module.routers[0]
    q, k, _ = projected(module, x)
    sizes = torch.zeros(2, HEADS, CLUSTERS, dtype=torch.float64)
    mass = torch.zeros_like(sizes)
    for s, side in enumerate((q, k)):
        for h in range(HEADS):
            for vector in side[:, h][~mask]:
                normalizer = router.normalizer.log_normalizer[s, h]
                sizes[s, h, assigned(vector, router.centroids[h].detach(), normalizer)[0]] += 1
                cosine = torch.cosine_similarity(vector, router.centroids[h].detach(), dim=-1)
                mass[s, h] += (cosine / 0.5).exp()
    torch.testing.assert_close(report.cluster_sizes, sizes)
    tokens = torch.tensor([LENGTH + 6.0], dtype=torch.float64)
    torch.testing.assert_close(report.observation, torch.cat([mass.log().flatten(), tokens]))
    uses = [cluster_use(sizes[s, h]).effective for s in range(2) for h in range(HEADS)]
    assert cluster_use(sizes).effective == pytest.approx(sum(uses).item() / 4)
    router.observe(report.observation)
    router.commit()
    expected = (mass / tokens).log()
    torch.testing.assert_close(router.normalizer.log_normalizer.double(), expected)


def test_two_workers_observe_what_one_does_with_twice_the_batch():
    together, apart = make().routers[0], make().routers[0]
    apart.load_state_dict(together.state_dict())
    q, k = torch.randn(2, 4, HEADS, LENGTH, WIDTH, dtype=torch.float64)
    x = torch.zeros(4, LENGTH, HEADS * WIDTH, dtype=torch.float64)
    mask = pads([LENGTH, 3, 1, 0], LENGTH, "right")
    together.observe(route(together, x, q, k, mask).report.observation)
    for part in (slice(0, 1), slice(1, 4)):
        apart.observe(route(apart, x[part], q[part], k[part], mask[part]).report.observation)
    apart.observe(apart.normalizer.take())  # as they are exchanged: nothing is left behind
    for router in (together, apart):
        router.commit()
    averages = [router.normalizer.log_normalizer for router in (together, apart)]
    torch.testing.assert_close(*averages)


def test_ties_go_to_the_lowest_cluster():
    module = make()
    router = module.routers[0]
    with torch.no_grad():
        router.centroids.copy_(router.centroids[:, :1].expand_as(router.centroids))
        router.normalizer.log_normalizer.zero_()
    _, (report,) = module(inputs())
    assert report.cluster_sizes[..., 0].eq(BATCH * LENGTH).all()


@torch.no_grad()
def test_nearer_than_the_least_gap_is_the_same():
    """A gap of 1 is what kinds have whose own key stands apart."""
    plain, same, x = make(), make(gap=1), inputs()
    same.load_state_dict(plain.state_dict())
    assert torch.equal(same(x)[0], plain(x)[0])


@torch.no_grad()
def test_exploration_is_not_reported():
    """What is logged in training is where keys belong: that all are in one shows."""
    module = make(exploration=0.9).train()
    router = module.routers[0]
    router.centroids.copy_(router.centroids[:, :1].expand_as(router.centroids))
    router.normalizer.log_normalizer.zero_()
    _, (report,) = module(inputs())
    assert cluster_use(report.cluster_sizes).effective == pytest.approx(1.0)


@torch.no_grad()
def test_exploration_is_causal_and_of_training_alone():
    module, x = make(exploration=0.5), inputs()
    plain = make()
    plain.load_state_dict(module.state_dict())
    assert torch.equal(module.eval()(x)[0], plain.train()(x)[0])

    changed = x.clone()
    changed[:, 9:] = inputs()[:, 9:]
    outputs = []
    for given in (x, changed):
        torch.manual_seed(1)
        outputs.append(module.train()(given)[0])
    torch.testing.assert_close(outputs[0][:, :9], outputs[1][:, :9], rtol=0, atol=1e-12)
    assert not torch.allclose(outputs[0], plain(x)[0])


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
