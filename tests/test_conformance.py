"""What every kind of attention promises."""

import re

import pytest
import torch

from fairseq_clusterformer.attention import MultiheadAttention, parse_layer
from fairseq_clusterformer.attention.inspect import tokens_seen
from fairseq_clusterformer.attention.naive import naive
from fairseq_clusterformer.attention.past import tensors

from .clusters import assert_clusters
from .kinds import (
    BIDIRECTIONAL,
    CAUSAL,
    CLUSTERS,
    HEADS,
    WIDTH,
    WINDOW,
    HandedOn,
    build,
    every_causal_kind,
    every_causal_kind_and_kernel,
    every_kind,
    every_kind_and_kernel,
    family,
    losses_of,
    pads,
)

LENGTH = 23
HALF = [torch.float16, torch.bfloat16]
FORMS = [*((kind, True) for kind in CAUSAL), *((kind, False) for kind in BIDIRECTIONAL)]


def inputs(batch: int = 3, length: int = LENGTH, dtype=torch.float64) -> torch.Tensor:
    return torch.randn(batch, length, WIDTH, dtype=dtype)


def cuts(impl: str, first: int) -> tuple[list[int], torch.Tensor]:
    """Where to cut a text, one place a row, and which tokens come after, bool [B, N]."""
    places = list(range(first, LENGTH, 9 if impl == "triton" else 3))
    return places, torch.arange(LENGTH) >= torch.tensor(places).unsqueeze(1)


@pytest.mark.parametrize(("kind", "causal"), FORMS)
def test_each_kind_is_its_loops(kind, causal):
    module, x = build(kind, causal=causal), inputs(batch=2)
    given = module.given[0] if isinstance(module, HandedOn) else None
    expected = torch.stack([naive(module, row, given) for row in x])
    torch.testing.assert_close(module(x)[0], expected, rtol=0, atol=1e-12)
    with torch.no_grad():  # in C++ an index goes another way
        module.impl = "auto"
        torch.testing.assert_close(module(x)[0], expected, rtol=0, atol=1e-12)
    for row in x:
        assert_clusters(module, row, given)


@every_causal_kind_and_kernel()
def test_no_token_sees_a_later_one(impl, kind):
    """By its outputs, its gradients and in training: what is drawn is drawn by position."""
    module = build(kind, impl=impl, causal=True)
    places, later = cuts(impl, 1)
    x = inputs(batch=len(places)).requires_grad_()
    edited = torch.where(later.unsqueeze(-1), torch.randn_like(x), x)
    before, after = module(x)[0], module(edited)[0]
    torch.testing.assert_close(after[~later], before[~later], rtol=0, atol=1e-12)
    (gradient,) = torch.autograd.grad(before[~later].square().sum(), x)
    assert gradient[later].abs().max() == 0
    for row, t in enumerate(places):
        assert not torch.allclose(after[row, t:], before[row, t:])
        assert gradient[row, :t].abs().max() > 0
    outputs, half = [], LENGTH // 2
    edited = torch.cat([x[:2, :half], torch.randn_like(x[:2, half:])], dim=1)
    for text in (x[:2], edited):
        torch.manual_seed(3)
        outputs.append(module.train()(text)[0][:, :half])
    torch.testing.assert_close(outputs[1], outputs[0], rtol=0, atol=1e-12)


@every_causal_kind()
@torch.no_grad()
def test_the_state_stops_growing(kind):
    if kind == "full" or "index" in kind:
        pytest.skip("it keeps every key: that is what it is")
    module, sizes, past = build(kind, causal=True), [], None
    for _ in range(60):
        _, past = module.step(inputs(batch=2, length=1), past)
        sizes.append(sum(tensor.numel() for tensor in tensors(past)))
    assert len(set(sizes[2 * WINDOW :])) == 1  # no gap is wider than W


@every_kind_and_kernel(extra=[1, WINDOW, 70], of=[{}, {"rotary": True}, {"relative": True}])
def test_padding_is_never_seen(impl, kind, causal, extra, of):
    module = build(kind, impl=impl, causal=causal, of=of)
    x = inputs().requires_grad_()
    out, reports = module(x)
    (gradient,) = torch.autograd.grad(out.square().sum(), x)
    for side in ("left", "right"):
        mask = pads([LENGTH] * 3, LENGTH + extra, side)
        padded = torch.full((*mask.shape, WIDTH), float("nan"), dtype=x.dtype)
        padded[~mask] = x.detach().flatten(0, 1)
        padded.requires_grad_()
        found, of_padded = module(padded, mask)
        found = found[~mask].view_as(out)
        torch.testing.assert_close(found, out, rtol=0, atol=1e-12)
        (found,) = torch.autograd.grad(found.square().sum(), padded)
        torch.testing.assert_close(found[~mask].view_as(x), gradient, rtol=0, atol=1e-12)
        for report, other in zip(reports, of_padded, strict=True):
            if report.clusters is not None:
                rows = zip(other.clusters, mask, strict=True)
                clusters = torch.stack([row[:, ~hidden] for row, hidden in rows])
                other = other._replace(clusters=clusters)
            for one, of_other in zip(report, other, strict=True):
                if one is not None:
                    torch.testing.assert_close(of_other, one, rtol=0, atol=1e-12)


@every_kind_and_kernel()
def test_a_row_is_the_same_alone_and_in_a_batch(impl, kind, causal):
    """One that is padding alone is finite, and a lone token attends to itself."""
    module = build(kind, impl=impl, causal=causal)
    lengths = [LENGTH, 11, 1, 0, 4]
    x = inputs(batch=len(lengths)).requires_grad_()
    together, reports = module(x, pads(lengths, LENGTH, "right"))
    for row, length in enumerate(lengths):
        if length:
            alone, _ = module(x[row : row + 1, :length])
            torch.testing.assert_close(together[row, :length], alone[0], rtol=0, atol=1e-12)
    lone = module.out_proj(module.v_proj(x[2, :1]))
    torch.testing.assert_close(together[2, :1], lone, rtol=0, atol=1e-12)
    nothing, of_nothing = module(x, torch.ones(5, LENGTH, dtype=torch.bool))
    sum(losses_of([*reports, *of_nothing]), (together + nothing).square().sum()).backward()
    for tensor in (x, *module.parameters()):
        assert tensor.grad is None or torch.isfinite(tensor.grad).all()


@every_kind_and_kernel(dtype=HALF)
def test_half_precision(impl, kind, causal, dtype):
    """Logits near +-1e4 are finite; moving averages keep their bits."""
    module = build(kind, impl=impl, causal=causal, dtype=torch.float32)
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    saved = module.state_dict()  # without centroids that another layer gives
    for name, buffer in module.to(dtype).named_buffers():
        assert name not in saved or torch.equal(buffer, before[name]), name
    x = inputs(dtype=dtype)
    with torch.no_grad():
        module.q_proj.weight.mul_(100.0)
        module.k_proj.weight.mul_(100.0)
    x.requires_grad_()
    out, reports = module(x)
    assert out.dtype == dtype
    (out.float().sum()).backward()
    assert torch.isfinite(out).all()
    assert torch.isfinite(x.grad).all()
    for report in reports:
        for name, field in report._asdict().items():
            expected = torch.int64 if name == "clusters" else torch.float32
            assert field is None or field.dtype == expected


@every_kind(precision=[None, torch.bfloat16, torch.float16])
def test_training_observes_and_learns(kind, causal, precision):
    """With dropout, hooks of modules, and inside autocast, where some call the backward pass as
    well: all that is learned by gradient has one, and what a batch shows changes nothing before it
    is committed."""
    dtype = torch.float64 if precision is None else torch.float32
    module = build(kind, causal=causal, dtype=dtype, of={"dropout": 0.3})
    x = inputs(dtype=dtype).requires_grad_()
    assert torch.equal(module(x)[0], module(x)[0])
    module.train()
    assert not torch.equal(module(x)[0], module(x)[0])
    for part in module.modules():  # as fairseq's search for the module whose output is NaN does
        part.register_backward_hook(lambda *_: None)
    buffers = {name: b.clone() for name, b in module.named_buffers()}
    with torch.autocast("cpu", dtype=precision, enabled=precision is not None):
        out, reports = module(x)
        sum(losses_of(reports), out.double().square().mean()).backward()
    assert torch.isfinite(x.grad).all()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
    for name, buffer in module.named_buffers():
        torch.testing.assert_close(buffer, buffers[name], rtol=0, atol=0, msg=name)


@every_causal_kind()
def test_a_window_is_of_as_many_keys_in_every_kind(kind):
    """W keys, the query's own included, and besides them sinks and what a gap shows by position;
    lsh sees as many in each round of hashing."""
    if kind == "full" or "index" in kind:
        pytest.skip("it chooses from all keys")
    module = build(kind, causal=True, clusters=1, rounds=1, stride=1, window=8)
    seen = tokens_seen(module, inputs(batch=1, length=60))
    for router, of_kind in zip(module.routers, seen.values(), strict=True):
        rule = router.rule
        assert rule.window == 8 or "memory" in kind
        most = rule.window + max(rule.gap, 1) - 1 + rule.sinks
        # One that counts only where nothing else is seen is seen by the first token alone.
        assert of_kind.sum(-1).max() == most - (rule.own == "fallback")


@every_kind()
def test_gradients_of_the_layer(kind, causal):
    """Outputs and losses against finite differences, in random directions that all numbers take
    part in. Routing is a step function of x: where a difference crosses a step the check would be
    of nothing, so centroids are far apart here. On purpose, the memory of xl has no gradient, and
    what an index does not show of a list that of its mean: there is neither here."""
    torch.manual_seed(5)
    changes = {"window": 14} if family(kind) == "xl" else {}
    if "index" in kind and "summaries" in kind:
        changes["index"] = 7
    module = build(kind, causal=causal, **changes)
    module.impl = "reference"
    x = inputs(batch=2, length=7)
    directions = torch.randn(10, x.numel(), dtype=x.dtype)
    views = torch.randn(x.numel(), 10, dtype=x.dtype)

    def outputs(step):
        out, reports = module(x + (step @ directions).view_as(x))
        return (out.flatten() @ views, *losses_of(reports))

    step = torch.zeros(10, dtype=x.dtype, requires_grad=True)
    assert torch.autograd.gradcheck(outputs, (step,), eps=1e-7, rtol=1e-6, atol=1e-5)


def test_the_leaking_rule_leaks_and_cannot_generate():
    kinds = parse_layer("neural(rule=leaking-chunk)", window=WINDOW, clusters=CLUSTERS)
    module = MultiheadAttention(WIDTH, HEADS, kinds=kinds, causal=True).double().eval()
    x, half = inputs(), LENGTH // 2
    edited = torch.cat([x[:, :half], torch.randn_like(x[:, half:])], dim=1)
    assert not torch.allclose(module(x)[0][:, :half], module(edited)[0][:, :half])
    torch.testing.assert_close(module(x)[0][0], naive(module, x[0]), rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match="with the rule leaking-chunk cannot decode"):
        module.step(x[:, :1])


@pytest.mark.parametrize(
    ("causal", "spec", "message"),
    [
        (True, "neural(rule=chunk)", "rule is chunk; allowed: recent, leaking-chunk in a causal"),
        (False, "neural(rule=leaking-chunk)", "rule is leaking-chunk; allowed: recent, chunk in"),
        (True, "kmeans(rule=chunk)", "rule is chunk; allowed: recent in a causal model"),
        (False, "lsh(rule=chunk,gap=4)", "gap is 4; allowed: 0 with the rule chunk"),
        (True, "gated(window=1)", "window is 1; allowed: 2 or more, the query's own included"),
        (True, "xl(window=1)", "window is 1; allowed: 2 or more"),
        (True, "taught(clusters=5,probes=6)", "probes is 6; allowed: up to the number of clu"),
        (False, "taught(summaries=4,gap=3)", "summaries is 4; allowed: 0 in an encoder with a"),
    ],
)
def test_what_does_not_belong_is_refused(causal, spec, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        MultiheadAttention(WIDTH, HEADS, kinds=spec, causal=causal)
