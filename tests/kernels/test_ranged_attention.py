"""Every implementation of ranged attention against the reference, and that against a loop."""

import itertools
import math
import sys
from dataclasses import replace

import pytest
import torch
import torch.utils.checkpoint
from torch._subclasses import FakeTensorMode

from fairseq_clusterformer import kernels
from fairseq_clusterformer.attention.layout import chunk_layout
from fairseq_clusterformer.kernels import IMPLEMENTATIONS, Layout, chosen, ranged_attention

from ..conftest import sampled
from ..kinds import pads
from .layouts import (
    BATCH,
    HEADS,
    LAYOUTS,
    WIDTH,
    every_layout,
    every_other,
    make_inputs,
    make_layout,
    run,
)


@pytest.mark.parametrize("earlier_only", [False, True])
def test_the_reference_is_attention(earlier_only):
    """Written out for one query after another."""
    length = 13
    q, k, v, _ = make_inputs(length)
    layout = make_layout("queries and keys apart", length, HEADS)
    layout = replace(layout, earlier_only=earlier_only)
    out, lse = ranged_attention(q, k, v, layout, impl="reference")
    for b, h, slot in itertools.product(range(BATCH), range(HEADS), range(length)):
        query = int(layout.query_order[b, h, slot])
        keys = layout.key_order[b, h, layout.lo[b, h, slot] : layout.hi[b, h, slot]].tolist()
        keys = [key for key in keys if key <= query or not earlier_only]
        if not keys:
            assert out[b, h, query].eq(0).all()
            assert lse[b, h, query] == -math.inf
            continue
        logits = torch.stack([q[b, h, query] @ k[b, h, j] for j in keys]) / math.sqrt(WIDTH)
        torch.testing.assert_close(out[b, h, query], torch.softmax(logits, 0) @ v[b, h, keys])
        torch.testing.assert_close(lse[b, h, query], logits.logsumexp(0))


@every_other
def test_only_the_reference_attends_by_the_rule_leaking_chunk(impl):
    q, k, v, _ = make_inputs(20)
    layout = chunk_layout(torch.randint(5, (BATCH, 1, 20)), 5, earlier_only=True)
    with pytest.raises(ValueError, match=f"leaking-chunk, and the kernel is {impl}; allowed: aut"):
        ranged_attention(q, k, v, layout, impl=impl)
    expected = ranged_attention(q, k, v, layout, impl="reference")
    assert all(map(torch.equal, ranged_attention(q, k, v, layout), expected))


@pytest.mark.parametrize("name", sampled(LAYOUTS, ["queries and keys apart"], "matrix"))
def test_gradients_of_the_reference_against_finite_differences(name):
    """Those of the others are compared with the reference's below."""
    length = 4
    layout = make_layout(name, length, 1)
    tensors = [t.requires_grad_() for t in make_inputs(length, bias=True)]

    def function(q, k, v, bias):
        biased = replace(layout, key_bias=bias)
        out, lse = ranged_attention(q, k, v, biased, impl="reference")
        return out, torch.where(torch.isfinite(lse), lse, 0.0)

    assert torch.autograd.gradcheck(function, tensors)


def by_turns(values: dict[str, list]) -> list[tuple]:
    """Of each implementation and layout one of the values, which take turns."""
    return [
        (impl, name, turns[i % len(turns)])
        for impl, turns in values.items()
        for i, name in enumerate(LAYOUTS)
    ]


# (length, groups, bias). Triton's interpreter is slow: one tile, a full one, two.
MANY = list(itertools.product([1, HEADS], [False, True]))
CASES = [
    (impl, name, (length, *MANY[(i + j) % 4]))
    for impl in ("blocks", "cpu")
    for i, name in enumerate(LAYOUTS)
    for j, length in enumerate([1, 61, 64, 131, 257])
] + by_turns({"triton": [(71, HEADS, True), (64, 1, False), (1, 1, True)]})


@pytest.mark.parametrize(("impl", "name", "case"), CASES)
def test_equal_to_the_reference(impl, name, case):
    length, groups, bias = case
    inputs = make_inputs(length, bias=bias)
    layout = make_layout(name, length, groups)
    weight = torch.randn(BATCH, HEADS, length, WIDTH, dtype=torch.float64)
    expected = run("reference", *inputs, layout, weight)
    for got, want in zip(run(impl, *inputs, layout, weight), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-11)


SIDES = ["left", "right"]
PADDED = [(impl, name, side) for impl in ("blocks", "cpu") for name in LAYOUTS for side in SIDES]


@pytest.mark.parametrize(("impl", "name", "side"), PADDED + by_turns({"triton": SIDES}))
def test_padding_may_hold_anything(impl, name, side):
    length = 71 if impl == "triton" else 131
    mask = pads([length, 64, 0], length, side)
    layout = make_layout(name, length, 1, mask)
    hole = mask.view(BATCH, 1, length, 1)
    q, k, v, _ = make_inputs(length)
    weight = torch.randn(BATCH, HEADS, length, WIDTH, dtype=torch.float64)
    zeros = [t.masked_fill(hole, 0.0) for t in (q, k, v)]
    poison = [t.masked_fill(hole, math.nan) for t in (q, k, v)]
    expected = run("reference", *zeros, None, layout, weight)
    for got, want in zip(run(impl, *poison, None, layout, weight), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-11)


FLOATS = [torch.float32, torch.float16, torch.bfloat16]
ROUNDED = [(impl, name, x) for impl in ("blocks", "cpu") for name in LAYOUTS for x in FLOATS]


@pytest.mark.parametrize(("impl", "name", "dtype"), ROUNDED + by_turns({"triton": FLOATS}))
def test_error_at_most_twice_the_reference(impl, name, dtype):
    """Root mean square errors in each precision, against the reference in float64."""
    length = 71 if impl == "triton" else 131
    q, k, v, bias = make_inputs(length, dtype=dtype, bias=True)
    layout = make_layout(name, length, 1)
    weight = torch.randn(BATCH, HEADS, length, WIDTH, dtype=torch.float64)
    exact = run("reference", *(t.double() for t in (q, k, v, bias)), layout, weight)
    reference = run("reference", q, k, v, bias, layout, weight)
    for got, other, want in zip(
        run(impl, q, k, v, bias, layout, weight), reference, exact, strict=True
    ):
        finite = torch.isfinite(want)
        assert torch.equal(torch.isfinite(got), finite)
        budget = 2 * (other - want)[finite].norm() + torch.finfo(torch.float32).eps
        assert (got - want)[finite].norm() <= budget


@every_other
@pytest.mark.parametrize("width", [16, 24, 64])
def test_widths(impl, width):
    """Whole powers of 2 fill a tile of the Triton kernels, others do not."""
    inputs = make_inputs(40, batch=1, heads=1, width=width)
    (*_, layout) = one_head("chunks", 40)
    expected = run("reference", *inputs, layout)
    for got, want in zip(run(impl, *inputs, layout), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("least", [-math.inf, torch.finfo(torch.float64).min])
@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_biases_of_minus_infinity_hide_keys(impl, least):
    """So do biases of the least number. Where they hide all, the result is 0, and no gradient
    passes: not that of logaddexp."""
    length = 20
    q, k, v, bias = (t.requires_grad_() for t in make_inputs(length, bias=True))
    keys = torch.arange(BATCH * length).view(BATCH, 1, length)
    hidden = keys < length + 5  # all of the first text, five of the second
    layout = make_layout("clusters, causal", length, 1)

    def learn(impl, hiding):
        out, lse = ranged_attention(q, k, v, replace(layout, key_bias=hiding), impl=impl)
        joined = torch.logaddexp(lse, torch.full_like(lse, -math.inf))
        loss = out.square().sum() + joined[lse.isfinite()].square().sum()
        return out, lse, *torch.autograd.grad(loss + 0 * joined[0].sum(), (q, k, v, bias))

    out, lse, *gradients = learn(impl, bias.masked_fill(hidden, least))
    assert out[0].eq(0).all()
    assert lse[0].eq(-math.inf).all()
    assert all(t[0].eq(0).all() for t in gradients)
    far = learn(impl, bias.masked_fill(hidden, -1e30))
    expected = learn("reference", bias.masked_fill(hidden, -math.inf))
    for got, want, near in zip((out, lse, *gradients), expected, far, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(got[2], near[2], rtol=1e-9, atol=1e-9)


@every_other
def test_memory_layout_of_the_inputs_does_not_matter(impl):
    length = 67
    q, k, v, _ = make_inputs(length)
    layout = make_layout("clusters, causal", length, HEADS)
    weight = torch.randn(BATCH, HEADS, length, WIDTH, dtype=torch.float64)
    expected = run(impl, q, k, v, None, layout, weight)
    wide = [torch.randn(BATCH, HEADS, length, 2 * WIDTH, dtype=torch.float64) for _ in range(3)]
    for tensor, values in zip(wide, (q, k, v), strict=True):
        tensor[..., ::2] = values
    variants = (
        [t.contiguous() for t in (q, k, v)],
        [t[..., ::2] for t in wide],
        [t.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3) for t in (q, k, v)],
    )
    for variant in variants:
        out, lse = ranged_attention(*variant, layout, impl=impl)
        torch.testing.assert_close(out, expected[0])
        torch.testing.assert_close(lse, expected[1])


def one_head(name: str, length: int) -> tuple:
    """q, k, v of one text and one head, and their layout."""
    layout = make_layout(name, length, 1)
    layout = replace(layout, **{n: t[:1] for n, t in vars(layout).items() if torch.is_tensor(t)})
    return *(t[:1, :1] for t in make_inputs(length)[:3]), layout


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_dropout_keeps_the_mean_and_is_replayed_backwards(impl):
    length, rate, rounds = (70, 0.4, 300) if impl != "triton" else (30, 0.4, 40)
    q, k, v, layout = one_head("window, both sides", length)
    plain, _ = ranged_attention(q, k, v, layout, impl=impl)
    total = torch.zeros_like(plain)
    for _ in range(rounds):
        total += ranged_attention(q, k, v, layout, dropout=rate, impl=impl)[0]
    error = (total / rounds - plain).abs().mean() / plain.abs().mean()
    assert error < 1.7 / math.sqrt(rounds)
    # Outputs are linear in v: the gradient at v, applied to v, gives back the sum of the outputs
    # only if the backward pass drops what the forward pass dropped.
    v = v.clone().requires_grad_()
    out, _ = ranged_attention(q, k, v, layout, dropout=rate, impl=impl)
    assert not torch.allclose(out, plain)
    (gradient,) = torch.autograd.grad(out.sum(), v)
    torch.testing.assert_close((gradient * v).sum(), out.sum())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": torch.zeros(3, 4)}, r"q is torch.float32 \(3, 4\).*; allowed: floating"),
        ({"q": torch.zeros(3, 2, 4, 8, dtype=torch.long)}, "q is torch.int64"),
        ({"k": torch.zeros(3, 2, 5, 8)}, r"k is torch.float32 \(3, 2, 5, 8\).*: like q, torch"),
        ({"v": torch.zeros(3, 2, 4, 8).half()}, "v is torch.float16"),
        ({"dropout": 1.0}, "dropout is 1.0; allowed: 0 <= dropout < 1"),
        ({"impl": "fast"}, "impl is 'fast'; allowed: auto, reference, blocks, triton"),
        (
            {"key_bias": torch.zeros(3, 4)},
            r"key_bias is .*\(3, 4\) on cpu; allowed: floating point \[1 or 3",
        ),
        (
            {"lo": torch.zeros(1, 1, 9).long()},
            r"layout.lo is .*\(1, 1, 9\).*; allowed: int64 \[1 or 3",
        ),
        ({"hi": torch.zeros(1, 1, 4)}, "layout.hi is torch.float32"),
        ({"query_order": torch.zeros(2, 1, 4).long()}, r"layout.query_order is .*\(2, 1, 4\)"),
    ],
)
def test_what_does_not_fit_is_named(change, message):
    arguments = {name: torch.zeros(3, 2, 4, 8) for name in "qkv"}
    arguments.update({name: t for name, t in change.items() if name in "qkv"})
    ranges = {"lo": torch.zeros(1, 1, 4).long(), "hi": torch.ones(1, 1, 4).long()}
    names = ("lo", "hi", "query_order", "key_bias")
    ranges.update({name: t for name, t in change.items() if name in names})
    others = {name: t for name, t in change.items() if name in ("dropout", "impl")}
    with pytest.raises(ValueError, match=message):
        ranged_attention(**arguments, layouts=Layout(**ranges), **others)


@pytest.mark.parametrize(
    ("device", "width", "missing", "expected", "said"),
    [
        ("cpu", 8, "", "cpu", ""),
        ("cuda", 256, "", "triton", ""),
        ("cuda", 257, "", "blocks", "a head is 257 wide; blocks takes its place"),
        ("cuda", 8, "triton", "blocks", "the kernel is triton, which is not installed; blocks t"),
        ("mps", 8, "", "blocks", ""),
    ],
)
def test_auto_is_what_can_attend(device, width, missing, expected, said, monkeypatch, caplog):
    if missing:
        monkeypatch.setitem(sys.modules, missing, None)
    elif device == "cuda":
        pytest.importorskip("triton", reason="triton is not installed")
    kernels.attend._warn.cache_clear()
    with FakeTensorMode():
        q = torch.empty(1, 1, 4, width, device=device)
    for _ in range(2):
        assert chosen("auto", q) == expected
    assert [r.getMessage()[: len(said)] for r in caplog.records] == [said] * bool(said)
    if said:
        with pytest.raises(ValueError, match=f"{said.split(';')[0]}; allowed.*blocks"):
            chosen("triton", q)


def ordered(**changes) -> Layout:
    slot = torch.arange(4).view(1, 1, -1)
    return replace(Layout(slot, slot + 1, query_order=slot, key_order=slot), **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lo": torch.tensor([[[-1, 0, 0, 0]]])}, "lo has -1; allowed: 0 or more"),
        ({"hi": torch.tensor([[[1, 2, 3, 5]]])}, "hi has 5; allowed: up to 4, the key slots"),
        ({"query_order": torch.tensor([[[1, 0, 3, 3]]])}, "query_order has 3; allowed: a perm"),
        (
            {"key_order": torch.tensor([[[0, 1, 2, 4]]])},
            "key_order has 4; allowed: a permutation of 0 to",
        ),
        ({"key_order": torch.tensor([[[0, 1, 2, 3, -1]]])}, "key_order has -1; allowed: tokens"),
        ({"key_order": torch.tensor([[[0, 0, 1, 2]]])}, "key_order has 0; allowed: a permutation"),
        ({"num_queries": torch.tensor([[5]])}, "num_queries has 5; allowed: 0 to 4"),
        ({"num_keys": torch.tensor([[-2]])}, "num_keys has -2; allowed: 0 to 4"),
    ],
)
def test_a_layout_is_checked_on_request(changes, message, monkeypatch):
    with pytest.raises(ValueError, match=f"layout.{message}"):
        ordered(**changes).check()
    monkeypatch.setenv("CLUSTERFORMER_CHECK_LAYOUTS", "1")
    with pytest.raises(ValueError, match=f"layout.{message}"):
        ranged_attention(*(torch.zeros(1, 1, 4, 8),) * 3, ordered(**changes), impl="blocks")


@every_layout
def test_a_layout_of_ours_is_right(name):
    mask = pads([30, 20, 0], 30, "left")
    for layout in (make_layout(name, 30, HEADS), make_layout(name, 30, 1, mask)):
        layout.check()
    ordered(lo=torch.tensor([[[9, 0, 0, 0]]]), hi=torch.tensor([[[-9, 1, 1, 1]]])).check()


@pytest.mark.parametrize("end", ["lo", "hi"])
def test_one_end_of_the_ranges_may_differ_by_head(end):
    """Not an order, nor the other end."""
    q, k, v = (torch.randn(2, 3, 20, 8, dtype=torch.float64) for _ in range(3))
    hi = torch.randint(1, 21, (2, 3, 20)).sort(-1).values
    shared = torch.zeros(2, 1, 20, dtype=torch.long)
    layout = Layout(lo=shared, hi=hi) if end == "hi" else Layout(lo=hi - 1, hi=shared + 20)
    reference, blocks = (
        ranged_attention(q, k, v, layout, impl=impl)[0] for impl in ("reference", "blocks")
    )
    torch.testing.assert_close(blocks, reference, rtol=0, atol=1e-12)
