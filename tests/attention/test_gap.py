"""A window and a cluster in one head: keys of the cluster and the nearest tokens, one softmax."""

import pytest
import torch

from fairseq_clusterformer.attention import Batch, Tokens

from .plain import BATCH, WIDTH, attend, layer, projected

LENGTH, WINDOW = 19, 4


def inputs() -> torch.Tensor:
    return torch.randn(BATCH, LENGTH, WIDTH, dtype=torch.float64)


def seen(clusters, query: int, gap: int, causal: bool) -> list[int]:
    """Positions that a query sees: of its cluster those that are ``gap`` tokens away or more, and
    all that are nearer; causal: the cluster's are W with the query's own."""
    far = [j for j in range(LENGTH) if clusters[j] == clusters[query] and abs(j - query) >= gap]
    before = [j for j in far if j < query][-(WINDOW - 1 if causal else WINDOW) :]
    after = [] if causal else [j for j in far if j > query][:WINDOW]
    near = [j for j in range(LENGTH) if abs(j - query) < gap and (j <= query or not causal)]
    if causal:  # the query's own, and as many tokens before it as the gap says
        near = list(range(max(0, query - gap + 1), query + 1))
    return [*before, *near, *after]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("gap", [2, 5, 40])
@pytest.mark.parametrize("kind", ["neural", "kmeans", "strided", "lsh", "routing"])
@torch.no_grad()
def test_what_is_seen(kind, gap, causal):
    more = {"kmeans": {"interval": 1}, "lsh": {"rounds": 1}}.get(kind, {})
    module = layer(kind, causal=causal, clusters=3, window=WINDOW, gap=gap, **more)
    x = inputs()
    if kind == "strided":
        clusters = (torch.arange(LENGTH) % 3).expand(BATCH, 1, -1)
    else:
        clusters = module(x)[1][0].clusters
    of_keys, two_vectors = clusters, kind == "routing" and not causal
    if two_vectors:
        of_keys = module.routers[0].means.nearest(projected(module, x)[1])

    def sees(row: int, head: int, query: int) -> list[int]:
        head %= clusters.size(1)
        at = of_keys[row, head].clone()
        at[query] = clusters[row, head, query]
        both = seen(at, query, gap, causal)
        if kind in ("lsh", "routing") and not two_vectors:  # whose own key comes last
            return [j for j in both if j != query] or [query]
        return both

    torch.testing.assert_close(module(x)[0], attend(module, x, sees), rtol=0, atol=1e-12)


@torch.no_grad()
def test_of_gated_heads_whose_near_keys_have_no_bias():
    module = layer("gated", causal=True, clusters=3, window=WINDOW, gap=4)
    x = inputs()
    q, k, v = projected(module, x)
    assignment, _ = module.routers[0].assign(Tokens(x, (q, k), Batch()), {})
    (((queries,), keys),) = assignment.rounds
    out = torch.zeros_like(v)
    for b in range(BATCH):
        for h in range(v.size(1)):
            for i in range(LENGTH):
                cluster = queries[b, h, i]
                far = [j for j in range(i - 3) if keys[b, h, j] == cluster]
                logits = {
                    j: q[b, h, i] @ k[b, h, j] / 2 + assignment.key_bias[b, h, j]
                    for j in far[-(WINDOW - 1) :]
                }
                logits |= {j: q[b, h, i] @ k[b, h, j] / 2 for j in range(max(0, i - 3), i + 1)}
                weights = torch.stack(list(logits.values())).softmax(0)
                out[b, h, i] = sum(w * v[b, h, j] for w, j in zip(weights, logits, strict=True))
    expected = module.out_proj(out.transpose(1, 2).flatten(2))
    torch.testing.assert_close(module(x)[0], expected, rtol=0, atol=1e-12)


@torch.no_grad()
def test_nearer_than_the_least_gap_is_the_same():
    """A gap of 1 is what kinds have whose own key stands apart."""
    x = inputs()
    plain = layer("gated", causal=True, clusters=3, window=WINDOW)
    same = layer("gated", causal=True, clusters=3, window=WINDOW, gap=1)
    same.load_state_dict(plain.state_dict())
    assert torch.equal(same(x)[0], plain(x)[0])
