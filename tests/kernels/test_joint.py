"""Several layouts and the own key under one softmax: as joining the results of each."""

import pytest
import torch

from fairseq_clusterformer.attention import Batch
from fairseq_clusterformer.attention.inspect import seen_keys
from fairseq_clusterformer.attention.layout import listed
from fairseq_clusterformer.kernels import (
    Own,
    attend_own,
    join,
    largest,
    ranged_attention,
)

from ..conftest import sampled
from .layouts import BATCH, HEADS, every_other, make_inputs, make_layout

NAMES = ("queries and keys apart", "clusters, whole", "window, both sides")


def results(attend, length: int, own: Own | None, layouts: int, **how) -> list:
    """Values, log-sum-exp and gradients; a bias for keys of each other layout."""
    torch.manual_seed(5)
    kinds = [make_layout(name, length, HEADS) for name in NAMES[:layouts]]
    q, k, v, _ = make_inputs(length)
    biases = [torch.randn(BATCH, 1, length, dtype=q.dtype) for _ in kinds[::2]]
    leaves = [t.requires_grad_() for t in (q, k, v, *biases)]
    for i, bias in enumerate(biases):
        kinds[2 * i] = type(kinds[0])(**vars(kinds[2 * i]) | {"key_bias": bias})
    out, lse = attend(q, k, v, kinds, own, **how)
    seen = lse > -1e30
    weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    loss = (out * weight).sum() + lse[seen].square().sum()
    return [out, lse[seen], *torch.autograd.grad(loss, leaves)]


def one_by_one(q, k, v, layouts, own):
    parts = [ranged_attention(q, k, v, layout, impl="reference") for layout in layouts]
    return join(parts if own is None else [*parts, attend_own(q, k, v, own)])


def some(length: int) -> torch.Tensor:
    return torch.arange(BATCH * HEADS * length).view(BATCH, HEADS, length) % 3 == 1


@every_other
@pytest.mark.parametrize("layouts", [1, 2, 3])
@pytest.mark.parametrize("bias", [None, 0.3, -5e4])
def test_it_is_one_softmax(impl, layouts, bias):
    if impl == "triton" and layouts == 2:
        pytest.skip("Triton's interpreter is slow")
    check(impl, 30, layouts, bias)


@pytest.mark.parametrize("layouts", sampled([1, 3], [3], "matrix"))
def test_long_texts(layouts):
    """Of several tiles, segments and chunks."""
    check("cpu", 700, layouts, 0.3)


def check(impl, length, layouts, bias) -> None:
    own = None if bias is None else Own(bias, some(length))
    expected = results(one_by_one, length, own, layouts)
    found = results(ranged_attention, length, own, layouts, impl=impl)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("impl", ["blocks", "cpu"])
def test_wide(impl):
    """Half precision is computed as if it were float32, and kept as it is."""
    layouts = [make_layout(name, 30, HEADS) for name in NAMES[:2]]
    leaves = [t.bfloat16().requires_grad_() for t in make_inputs(30)[:3]]
    copies, kept = [t.detach().float().requires_grad_() for t in leaves], []

    def note(tensor):
        kept.append((tensor.dtype, tensor.shape))
        return tensor

    found = []
    for inputs in (copies, leaves):
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            out, _ = ranged_attention(*inputs, layouts, Own(0.3), impl=impl, wide=True)
        found.append([out, *torch.autograd.grad(out.square().sum(), inputs)])
    assert sum(one == (torch.bfloat16, leaves[0].shape) for one in kept) == 3
    assert [t.dtype for t in found[1]] == [torch.float32] + [torch.bfloat16] * 3
    for one, other in zip(*found, strict=True):
        assert torch.equal(one.to(other.dtype), other)


def test_what_is_hidden_may_be_nan():
    """At padding, in values and in gradients."""
    length, mask = 12, torch.zeros(BATCH, 12, dtype=torch.bool)
    mask[1, 8:] = True
    layout = make_layout(NAMES[0], length, HEADS, mask)
    q, k, v, _ = make_inputs(length)
    for t in (q, k, v):
        t[1, :, 8:] = torch.nan
        t.requires_grad_()
    own = Own(hidden=mask.unsqueeze(1))
    out, _ = ranged_attention(q, k, v, [layout, layout], own, impl="cpu")
    gradients = torch.autograd.grad(out[:, :, :8].sum(), (q, k, v))
    assert all(t.isfinite().all() for t in (out[:, :, :8], *gradients))


@pytest.mark.parametrize("impl", sampled(["blocks", "cpu"], ["cpu"], "matrix"))
def test_gradients_through_dropout(impl):
    """Against finite differences; the own key is dropped as others are."""
    q, k, v, _ = make_inputs(5, batch=1, heads=1, width=3)
    layouts = [make_layout(name, 5, 1) for name in NAMES[1:]]
    layouts = [type(x)(x.lo[:1], x.hi[:1]) for x in layouts]

    def function(*qkv):
        torch.manual_seed(2)
        return ranged_attention(*qkv, layouts, Own(), dropout=0.4, impl=impl)

    assert torch.autograd.gradcheck(function, [t.requires_grad_() for t in (q, k, v)])


@every_other
@pytest.mark.parametrize(("biased", "number"), [(False, 40), (True, 40), (False, 8)])
def test_the_largest_logits_of_all_lists(impl, biased, number):
    """Where all lists together show no more keys, what hides others is -inf."""
    torch.manual_seed(2)
    length = 300
    ids, keys = torch.randint(5, (2, BATCH, HEADS, length))
    looked = torch.stack([ids, (ids + 2) % 5], dim=-1)
    lists = listed(looked, keys, 5, causal=True, gap=3, batch=Batch())
    q, k, v, bias = make_inputs(length, bias=biased)
    k[:, :, 100:160] = k[:, :, 100:101]  # more equal logits than so few, in each layout
    lists = lists._replace(key_bias=bias)
    layouts = lists.layouts
    logits = q @ k.mT * q.size(-1) ** -0.5 + (bias.unsqueeze(-2) if biased else 0)
    seen = torch.stack([seen_keys(layout) for layout in layouts]).any(0)
    ordered = logits.masked_fill(~seen, -torch.inf).sort(descending=True).values
    more = ordered[..., number].isfinite()
    assert more.any()
    assert not more.all()
    for found in largest(q, k, None, lists, 10**9, impl, True)[2:]:  # no room for so many
        assert found.isneginf().all()
    for dtype, close in ((torch.float64, 1e-9), (torch.float32, 1e-4)):
        given = q.to(dtype), k.to(dtype), v.to(dtype), lists, number, impl
        values, _, least, rest = largest(*given, with_rest=True)
        assert largest(*given, with_rest=False)[3] is None
        if dtype == torch.float64:
            chosen = logits >= least.double().unsqueeze(-1)
            hidden = torch.stack([seen_keys(layout) & ~chosen for layout in layouts], dim=-2)
            expected = logits.unsqueeze(-2).masked_fill(~hidden, -torch.inf).logsumexp(-1)
            torch.testing.assert_close(rest, expected, rtol=0, atol=1e-12)
        assert least[~more].isneginf().all()
        assert (least <= ordered[..., number - 1] + close).all()
        assert (least > ordered[..., number] - close)[more].all()
        assert (values is None) == (impl != "cpu")
        if values is not None and dtype == torch.float64:
            hidden = ~seen | (logits < least.double().unsqueeze(-1) - close)
            weights = logits.masked_fill(hidden, -torch.inf).softmax(-1).nan_to_num(0.0)
            torch.testing.assert_close(values, weights @ v, rtol=0, atol=1e-12)


@every_other
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("padded", [None, "left", "within"])
@pytest.mark.parametrize("packed", [False, True])
def test_lists_hold_what_the_rule_shows(impl, causal, padded, packed):
    """Against a mask: distances count real tokens, and no document sees another. Heads share keys,
    and one query looks into no list."""
    torch.manual_seed(3)
    length, gap, lists_of, looks, number = 90, 4, 6, 3, 7
    mask = documents = None
    real, row = torch.ones(BATCH, length, dtype=torch.bool), torch.zeros(BATCH, length).long()
    if padded:
        mask = torch.rand(BATCH, length) < 0.2 if padded == "within" else torch.zeros_like(real)
        mask[1, :30] = True
        real = ~mask
    if packed:
        documents = row = (torch.arange(length) // torch.tensor([[25], [41], [90]])).long()
    k, v = torch.randn(2, BATCH, 2, length, 8, dtype=torch.float64)
    q = torch.randn(BATCH, 4, length, 8, dtype=torch.float64)
    looked = torch.rand(BATCH, 4, length, lists_of).argsort(-1)[..., :looks]
    looked[0, 0, 80] = lists_of + 1
    keys = torch.randint(lists_of + 1, (BATCH, 2, length))  # the last: in none
    lists = listed(looked, keys, lists_of, causal=causal, gap=gap, batch=Batch(mask, documents))
    values, _, least, rest = largest(q, k, v, lists, number, impl, with_rest=True)

    rank = real.cumsum(1)
    distance = rank.unsqueeze(-1) - rank.unsqueeze(-2)
    visible = (distance if causal else distance.abs()) >= gap
    visible &= (row.unsqueeze(-1) == row.unsqueeze(-2)) & real.unsqueeze(-2)
    k, v, keys = (t.repeat_interleave(2, dim=1) for t in (k, v, keys))
    own = looked.unsqueeze(-1) == keys[:, :, None, None]
    logits = q @ k.mT / q.size(-1) ** 0.5
    held = own & visible[:, None, :, None]
    shown = held & (logits >= least.unsqueeze(-1)).unsqueeze(-2)
    asks = real.unsqueeze(1).expand(BATCH, 4, length)
    others = logits.unsqueeze(-2).masked_fill(shown | ~held, -torch.inf).logsumexp(-1)
    torch.testing.assert_close(rest[asks], others[asks], rtol=0, atol=1e-12)
    most = held.any(-2).sum(-1)
    assert torch.equal(shown.sum((-1, -2))[asks], most[asks].clamp(max=number))
    assert most[asks].max() > number
    if values is not None:
        weights = logits.masked_fill(~shown.any(-2), -torch.inf).softmax(-1).nan_to_num(0.0)
        torch.testing.assert_close(values[asks], (weights @ v)[asks], rtol=0, atol=1e-12)


@pytest.mark.parametrize("odd", ["a large number", "one key", "equal keys", "nothing"])
@pytest.mark.parametrize("biased", [False, True])
def test_the_largest_of_many_in_float32(odd, biased):
    """Of keys of any size, and of equal ones."""
    torch.manual_seed(4)
    length, number, lists_of = 600, 20, 6
    q, k, v = torch.randn(3, 2, 3, length, 24, dtype=torch.float64)
    if odd == "a large number":
        k[..., 5] += 40.0  # of all keys
    elif odd == "one key":
        k[:, :, 300] *= 50.0
    elif odd == "equal keys":
        k[:, :, ::2] = k[:, :, :1]
    bias = torch.randn(2, 3, length, dtype=torch.float64) if biased else None
    keys = torch.randint(lists_of + 1, (2, 3, length))
    looked = torch.rand(2, 3, length, lists_of).argsort(-1)[..., :4]
    lists = listed(looked, keys, lists_of, causal=True, gap=3, batch=Batch())
    lists = lists._replace(key_bias=bias)
    given = q.float(), k.float(), v.float(), lists, number, "cpu"
    values, lse, least, rest = (x.double() for x in largest(*given, with_rest=True))

    q, k, v = (x.double() for x in given[:3])
    logits = q @ k.mT / q.size(-1) ** 0.5 + (bias.unsqueeze(-2) if biased else 0)
    place = torch.arange(length)
    held = (looked.unsqueeze(-1) == keys[:, :, None, None]) & (place <= place.view(-1, 1, 1) - 3)
    held_logits = logits.masked_fill(~held.any(-2), -torch.inf)
    wanted = held_logits.topk(number + 1).values
    many = held.any(-2).sum(-1) > 4 * number
    assert many.any()
    last = wanted[..., number - 1]
    close = 1e-5 * (1 + last.abs())
    assert ((least - last).abs() < 3 * close)[many].all()
    apart = many & (last - wanted[..., number] > 4 * close)
    assert apart.any()
    shown = held_logits >= (last - 2 * close).unsqueeze(-1)
    weights = held_logits.masked_fill(~shown, -torch.inf)
    torch.testing.assert_close(values[apart], (weights.softmax(-1) @ v)[apart], rtol=0, atol=1e-4)
    torch.testing.assert_close(lse[apart], weights.logsumexp(-1)[apart], rtol=1e-5, atol=1e-4)
    others = logits.unsqueeze(-2).masked_fill(~held | shown.unsqueeze(-2), -torch.inf)
    others = others.logsumexp(-1)
    apart = apart.unsqueeze(-1) & (others > wanted[..., :1] - 60)  # else 0 beside the peak
    difference = (rest - others)[apart].abs()
    assert difference.max() < 2e-3
