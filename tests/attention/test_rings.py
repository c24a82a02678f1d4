"""A step of a decoder against lists of tokens, one list a ring."""

import itertools
import math
from types import SimpleNamespace

import pytest
import torch

from fairseq_clusterformer.attention import (
    Assignment,
    Batch,
    MultiheadAttention,
    Round,
    Tokens,
    sight,
)
from fairseq_clusterformer.attention.attend import attend
from fairseq_clusterformer.attention.past import Stores
from fairseq_clusterformer.attention.projections import QKV
from fairseq_clusterformer.attention.sight import Rule, Seen

OWN_BIAS = -0.75
BATCH, HEADS, WIDTH, RINGS, WINDOW, LENGTH = 3, 2, 5, 3, 9, 16

R = {"clusters": RINGS}
ALL = {**R, "groups": HEADS, "biased": True, "padding": "anywhere"}
NEAR_AND_ALL = {**ALL, "window": 3, "gap": 3, "apart": True}
SKIPPING = {"gap": 1, "apart": True, "skips": True}
SHARED = {**R, "heads": 4, "kv_heads": 2, "groups": 2}
CASES = {
    "one ring": {},
    "one ring, first padding when it has come round": {"clusters": 1, "padding": "late"},
    "one ring that grows": {"window": None},
    "one ring that grows, left padding": {"window": None, "padding": "left"},
    "rings": R,
    "rings, left padding": {**R, "padding": "left"},
    "rings, padding anywhere": {**R, "padding": "anywhere"},
    "rings that grow": {**R, "window": None},
    "a ring to read and one to write": {**R, "apart": True, "groups": HEADS},
    "rings of each head, biases": {**R, "groups": HEADS, "biased": True},
    "two layouts": {**R, "layouts": 2},
    "two layouts of each head, padding, biases": {**ALL, "layouts": 2},
    "itself apart": {**R, "gap": 1, "apart": True},
    "itself apart, one ring": {"gap": 1},
    "itself apart, all else": {**ALL, "gap": 1, "apart": True},
    "near ones apart, one ring": {"gap": 3},
    "near ones apart, rings that grow": {**R, "window": None, "gap": 4},
    "near ones apart, more than a ring holds": {**R, "window": 2, "gap": 6},
    "near ones apart, all else": NEAR_AND_ALL,
    "several rings to read": {**R, "gap": 1, "apart": True, "probes": 2},
    "several rings to read, all else": {**NEAR_AND_ALL, "probes": 2},
    "several rings to read, the own among them": {**R, "apart": True, "probes": 2},
    "keys in no ring": {**R, **SKIPPING},
    "keys in no ring, or the only one": SKIPPING,
    "keys in no ring, small rings, padding": {**ALL, **SKIPPING, "window": 2, "biased": False},
    "keys in no ring, all else": {**NEAR_AND_ALL, "probes": 2, "skips": True},
    "shared keys": {"kv_heads": 1},
    "shared keys of some heads, rings": SHARED,
    "shared keys, all else": {**ALL, **SHARED, "layouts": 2, "gap": 3},
    "documents": {**R, "documents": True},
    "documents, one ring that grows": {"window": None, "documents": True},
    "documents, first when the ring has come round": {"documents": "late"},
    "documents, near ones apart": {**R, "window": 2, "gap": 4, "documents": True},
    "documents, all else": {**ALL, "window": 3, "gap": 1, "apart": True, "documents": True},
}
# Those that take every branch of the kernel: Triton's interpreter is slow.
BY_TRITON = [
    "one ring",
    "rings, padding anywhere",
    "a ring to read and one to write",
    "two layouts of each head, padding, biases",
    "itself apart, one ring",
    "itself apart, all else",
    "several rings to read",
    "several rings to read, the own among them",
    "keys in no ring",
    "keys in no ring, small rings, padding",
]
PRECISIONS = [torch.float64, torch.bfloat16]
every_case = pytest.mark.parametrize(
    ("impl", "name", "dtype"),
    [("blocks", name, dtype) for name in CASES for dtype in PRECISIONS]
    + [("triton", name, PRECISIONS[i % 2]) for i, name in enumerate(BY_TRITON)],
)


def text(
    clusters=1,
    window=WINDOW,
    heads=HEADS,
    kv_heads=None,
    groups=1,
    layouts=1,
    gap=0,
    probes=1,
    padding=None,
    dtype=torch.float64,
    **flags,
) -> SimpleNamespace:
    """All that the steps of a text are given; flags: apart, biased, documents, skips."""
    apart, biased, documents, skips = map(flags.get, ("apart", "biased", "documents", "skips"))
    q = torch.randn(LENGTH, BATCH, heads, 1, WIDTH, dtype=dtype)
    k, v = torch.randn(2, LENGTH, BATCH, kv_heads or heads, 1, WIDTH, dtype=dtype)
    mask = torch.zeros(LENGTH, BATCH, 1, dtype=torch.bool)
    if padding == "left":
        mask[:4, 0] = mask[:, 1] = True
    if padding == "late":
        mask[WINDOW + 4, 0] = True
    if padding == "anywhere":
        mask = torch.rand(mask.shape) < 0.3
    restart = torch.zeros(LENGTH, BATCH, 1, dtype=torch.bool)
    if documents == "late":
        restart[WINDOW + 4, 0] = True
    elif documents:
        restart = torch.rand(restart.shape) < 0.2
    keys = torch.randint(clusters + bool(skips), (LENGTH, layouts, BATCH, groups))
    queries = keys.unsqueeze(2)
    if apart:  # several rings, none twice
        order = torch.rand(LENGTH, layouts, BATCH, groups, clusters).argsort(-1)
        queries = order[..., :probes].movedim(-1, 2)
    return SimpleNamespace(
        q=q,
        k=k,
        v=v,
        keys=keys,
        queries=queries,
        apart=apart,
        biases=torch.randn(LENGTH, BATCH, groups) if biased else None,
        # as cut out of a batch's: a sentence's tokens side by side
        padding=mask.transpose(0, 2).contiguous().transpose(0, 2) if padding else None,
        restart=restart if documents else None,
        window=window,
        rule=Rule(
            causal=True,
            clusters=clusters,
            window=None if window is None else window + (gap > 0),  # the own key besides
            gap=gap,
            own="fallback" if biased and gap else "always",
            drops_keys=bool(skips),
        ),
    )


def by_steps(given: SimpleNamespace, impl: str, reorder_at: int | None = None) -> torch.Tensor:
    """Outputs [N, B, H, 1, E]; a reordering swaps the last two rows and swaps them back."""
    stores, outputs = Stores(), []
    swapped = torch.tensor([0, 2, 1])
    before = torch.zeros(BATCH, 1, dtype=torch.long)
    for t, qkv in enumerate(zip(given.q, given.k, given.v, strict=True)):
        keys = [key.unsqueeze(-1) for key in given.keys[t]]
        rounds = tuple(Round((key,)) for key in keys)
        if given.apart:
            rounds = (Round(tuple(given.queries[t, 0].unsqueeze(-1)), keys[0]),)
        bias = None if given.biases is None else given.biases[t].unsqueeze(-1)
        assignment = Assignment(rounds, bias)
        mask, begins = (
            None if rows is None or not rows[t].any() else rows[t]
            for rows in (given.padding, given.restart)
        )
        if begins is not None:
            before = before.masked_fill(begins, 0)
        tokens = Tokens(qkv[0][:, 0], None, Batch(mask), before=before, begins=begins, impl=impl)
        seen = Seen(tokens.x, tokens, assignment, {}, ())
        out, stores = attend(QKV(*qkv), seen, given.rule, stores)
        before = before + (1 if mask is None else (~mask).long())
        outputs.append(out)
        if t == reorder_at:
            for _ in range(2):
                stores = stores.reorder(swapped)
    return torch.stack(outputs)


def by_lists(given: SimpleNamespace) -> torch.Tensor:
    """The same, of one list of the tokens so far: their keys, values, biases and rings."""
    layouts, _, groups = given.keys.shape[1:]
    window, gap = given.window or LENGTH, given.rule.gap
    out = torch.zeros_like(given.q)
    heads, kv_heads = given.q.size(2), given.k.size(2)
    for b, h in itertools.product(range(BATCH), range(heads)):
        g, j = h * groups // heads, h * kv_heads // heads
        past: list = []
        for t in range(LENGTH):
            if given.restart is not None and given.restart[t, b]:
                past = []
            q, k, v = given.q[t, b, h, 0], given.k[t, b, j, 0], given.v[t, b, j, 0]
            bias = 0.0 if given.biases is None else given.biases[t, b, g]
            token = (k, v, bias, given.keys[t, :, b, g].tolist())
            is_real = given.padding is None or not given.padding[t, b]
            if is_real and gap == 0:
                past.append(token)
            far = past[: max(0, len(past) - max(0, gap - 1))]
            seen = [(k, v, 0.0) for k, v, _, _ in past[len(far) :]]
            if gap > 0:
                seen.append((k, v, given.rule.own_bias))
            for layout in range(layouts):
                for ring in given.queries[t, layout, :, b, g].tolist():
                    members = [token for token in far if token[3][layout] == ring][-window:]
                    seen += [token[:3] for token in members]
            if is_real and gap > 0:
                past.append(token)
            if seen:
                logits = torch.stack([q @ key / math.sqrt(WIDTH) + bias for key, _, bias in seen])
                values = torch.stack([value for _, value, _ in seen])
                out[t, b, h, 0] = logits.softmax(0) @ values
    return out


def real(given: SimpleNamespace, out: torch.Tensor) -> torch.Tensor:
    return out if given.padding is None else out[~given.padding.squeeze(-1)]


@every_case
@torch.no_grad()
def test_steps_see_what_the_rings_hold(impl, name, dtype):
    given = text(**CASES[name], dtype=dtype)
    if given.biases is not None and dtype == torch.bfloat16:  # they are kept in that precision
        given.biases = given.biases.to(dtype).float()
    exact = SimpleNamespace(**vars(given))
    exact.q, exact.k, exact.v = (x.double() for x in (given.q, given.k, given.v))
    expected = real(given, by_lists(exact))
    atol = 1e-12 if dtype == torch.float64 else 2**-8 * expected.abs().max().item()
    found = real(given, by_steps(given, impl, reorder_at=WINDOW + 2))
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=atol)


@pytest.mark.parametrize("impl", ["blocks", "triton"])
@torch.no_grad()
def test_padding_may_be_anything(impl):
    given = text(clusters=RINGS, padding="anywhere")
    expected = real(given, by_steps(given, impl))
    for x in (given.q, given.k, given.v):
        x[given.padding.squeeze(-1)] = float("nan")
    assert torch.equal(real(given, by_steps(given, impl)), expected)


def test_a_head_that_is_too_wide_for_the_kernel():
    pytest.importorskip("triton", reason="triton is not installed")
    module = MultiheadAttention(257, 1, kinds="window", causal=True, kernel="triton")
    with pytest.raises(ValueError, match="head is 257 wide; allowed for the kernel triton"):
        module(torch.randn(1, 1, 257))


@pytest.fixture(autouse=True)
def _a_bias_that_is_seen(monkeypatch):
    """Of the own key: the last resort's would hide it."""
    monkeypatch.setattr(sight, "LAST_RESORT", OWN_BIAS)
