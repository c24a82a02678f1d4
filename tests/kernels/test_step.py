"""One token in C++ is one token by torch: what it attends to, and what is kept behind it."""

from dataclasses import replace

import pytest
import torch

from fairseq_clusterformer.attention import Round
from fairseq_clusterformer.attention.past import each, tensors
from fairseq_clusterformer.kernels import cpu as of_cpu
from fairseq_clusterformer.kernels.cpu import library
from tests.kinds import WIDTH, build, every_causal_kind

BATCH, STEPS = 3, 40
SHARED = {"kv_heads": 2, "rotary": True}


@pytest.fixture
def taken(monkeypatch) -> list:
    """A number for each token that the kernel took."""
    calls, step = [], of_cpu.step
    monkeypatch.setattr(of_cpu, "step", lambda *a, **b: calls.append(1) or step(*a, **b))
    return calls


def check(module, prompt: int, padded: int = -1, dtype=torch.float64, close: float = 1e-12):
    """By both, token by token behind a prompt; at one of the steps a row has padding."""
    x = torch.randn(BATCH, prompt + STEPS, WIDTH, dtype=dtype)
    pasts = [module.step(x[:, :prompt])[1] if prompt else None for _ in range(2)]
    for i, token in enumerate(x[:, prompt:].split(1, dim=1)):
        mask = torch.tensor([[True], [False], [False]]) if i == padded else None
        results = []
        for module.impl, past in zip(("blocks", "cpu"), pasts, strict=True):
            results.append(module.step(token, past, mask))
        (wanted, found), pasts = zip(*results, strict=True)
        real = slice(1 if mask is not None else 0, None)
        torch.testing.assert_close(found[real], wanted[real], rtol=close, atol=close)
        torch.testing.assert_close(*map(tensors, pasts), rtol=close, atol=close)


@every_causal_kind(keys=["own", "shared"], prompt=[0, 23, 1], padded=[-1, 30, 20])
def test_every_kind(kind, keys, prompt, padded, taken):
    """Where rings are full; segments of xl are read by torch."""
    of = SHARED if keys == "shared" else {}
    check(build(kind, causal=True, of=of), prompt, padded)
    assert bool(taken) != kind.startswith("xl")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["taught, clusters of keys", "gated, sinks, gap"])
def test_in_any_precision(kind, dtype, taken):
    close = 1e-12 if dtype == torch.float64 else 1e-5
    check(build(kind, causal=True, dtype=dtype, of=SHARED), 23, dtype=dtype, close=close)
    assert len(taken) == STEPS


def test_by_several_threads(taken, monkeypatch):
    monkeypatch.setattr(library.torch, "get_num_threads", lambda: 3)
    check(build("window", causal=True, window=4000, of={}), 4100)
    assert len(taken) == STEPS


@pytest.mark.parametrize("prompt", [0, 400])
@pytest.mark.parametrize(
    ("kind", "index"), [("taught, index", 20), ("routing, index, gap", 1), ("gated, gap", 4)]
)
@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-12), (torch.float32, 1e-4)])
def test_the_best_of_many_keys(kind, index, prompt, dtype, close, taken):
    check(build(kind, causal=True, index=index, dtype=dtype), prompt, dtype=dtype, close=close)
    assert len(taken) == STEPS


def test_states_that_it_would_change_elsewhere_are_refused():
    """A state that is no memory of its own would go on as it was."""
    module = build("gated, gap", causal=True, impl="cpu")
    past = module.step(torch.randn(1, 30, WIDTH, dtype=torch.float64))[1]
    rings = past.kinds[0].rings
    rings.kept = rings.kept.mT.contiguous().mT
    with pytest.raises(ValueError, match="kept is not contiguous"):
        module.step(torch.randn(1, 1, WIDTH, dtype=torch.float64), past)


def test_lists_of_other_numbers_are_refused():
    module = build("taught, index", causal=True, impl="cpu")
    past = module.step(torch.randn(1, 30, WIDTH, dtype=torch.float64))[1]
    lists = past.kinds[0].lists
    lists.clusters = lists.clusters.long()
    with pytest.raises(ValueError, match="lists is torch.int64; allowed: int32"):
        module.step(torch.randn(1, 1, WIDTH, dtype=torch.float64), past)


def test_a_token_that_learns_goes_another_way(taken):
    """Gradients are torch's, of values alone as well."""
    module = build("window", causal=True, impl="cpu")
    x = torch.randn(1, 30, WIDTH, dtype=torch.float64)
    past = module.step(x)[1]
    module.requires_grad_(False)
    module.v_proj.requires_grad_(True)
    out, *_ = module.following(x[:, :1], past)
    assert not taken
    assert torch.autograd.grad(out.sum(), module.v_proj.weight)[0].any()


@pytest.mark.parametrize("kind", ["window", "full"])
def test_a_state_of_another_precision(kind, taken):
    """As autocast leaves it: C++ must not read it as if it were the query's."""
    found = []
    for impl in ("blocks", "cpu"):
        torch.manual_seed(0)
        module = build(kind, causal=True, impl=impl, dtype=torch.float32)
        x = torch.randn(1, 31, WIDTH)
        past = module.step(x[:, :30])[1]
        past = each(past, lambda t: t.bfloat16() if t.is_floating_point() else t)
        found.append(module.step(x[:, 30:], past)[0])
    assert not taken
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("wrong", ["int32", "batch"])
def test_places_that_lead_elsewhere_are_refused(wrong):
    """Of a kind of somebody else."""
    module = build("gated, gap", causal=True, impl="cpu")
    x = torch.randn(2, 31, WIDTH, dtype=torch.float64)
    past, assign = module.step(x[:, :30])[1], module.routers[0].assign

    def elsewhere(tokens, state):
        found, state = assign(tokens, state)
        ((clusters,), _), *_ = found.rounds
        other = clusters.int() if wrong == "int32" else clusters[:1]
        return replace(found, rounds=(Round((other,)),)), state

    module.routers[0].assign = elsewhere
    with pytest.raises(ValueError, match="allowed: int64 with a batch of 2"):
        module.step(x[:, 30:], past)


def test_without_a_compiler(taken, monkeypatch):
    monkeypatch.setattr(of_cpu, "can_run", lambda source, q: False)
    check(build("taught, sinks, summaries, probes", causal=True), 23)
    assert not taken
