"""ETC's attention: each form against the labelled softmax written out pair by pair, and what every
kind of attention promises, on every kernel."""

import math
from argparse import Namespace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad

from fairseq_clusterformer.etc.encoder import ETCOptions
from fairseq_clusterformer.etc.global_local import GLOBAL as OF_GLOBAL
from fairseq_clusterformer.etc.global_local import LONG as OF_LONG
from fairseq_clusterformer.etc.global_local import GlobalLocalAttention, Structure, _attended
from fairseq_clusterformer.models.options import defaults_of
from tests.kinds import pads

WIDTH, HEADS, GLOBAL, LONG = 12, 3, 7, 37
CLOSE = {"rtol": 0, "atol": 1e-12}
HALF = [torch.float16, torch.bfloat16]
#: the second token has no part, some overlap; others are linked to more
SPANS = torch.tensor([[0, 1], [0, 0], [1, 11], [11, 22], [15, 22], [23, 30], [30, 37]])
LINKS = {  # apart, side by side, one in another, one in a span, and no more
    "links": torch.tensor(
        [[5, 33, 35], [1, 2, 4], [1, 9, 12], [2, 5, 13], [2, 0, 1], [3, 8, 20], [3, 12, 20],
         [4, 22, 25], [0, 0, 0]]
    )
}  # fmt: skip
PARAGRAPHS = {
    "paragraphs": torch.tensor([0, 0, 1, 1, 2, 2, 2]),
    "long_paragraphs": torch.tensor([0] * 3 + [1] * 12 + [4] * 22),
}
PACKED = {
    "long_examples": torch.tensor([0] * 15 + [1] * 22),
    "global_examples": torch.tensor([0, 0, 0, 1, 1, 1, 1]),
}
EXEMPT = {"exempt": torch.arange(GLOBAL) % 3 == 0}
BOTH = {"hard_global": True, "hard_long": True}
Forms = dict[str, tuple[dict, dict[str, Tensor]]]
#: options of the attention, and tensors of each row's structure
FORMS: Forms = {
    "soft": ({}, {}),
    "hard, shared keys": ({"hard_global": True, "projections": "shared-kv"}, {}),
    "hard, exempt": ({"hard_global": True}, EXEMPT),
    "hard both ways, shared": ({**BOTH, "projections": "shared"}, PARAGRAPHS),
    "links": ({}, LINKS),
    "links, hard": ({"hard_global": True}, {**LINKS, "exempt": torch.arange(GLOBAL) < 2}),
    "no distances": ({"max_distance": 0}, {}),
    "short radius": ({"radius": 2}, {}),
    "clusters": ({"clusters": 7}, {}),
    "clusters, same cluster": ({"clusters": 7, "same_cluster": 2, "radius": 3}, PARAGRAPHS),
}
#: which are written out as well
WRITTEN: Forms = FORMS | {
    "one distance": ({"max_distance": 1}, {}),
    "alone": ({"radius": 0, "max_distance": 2}, {}),
    "no radius": ({"radius": 100, "max_distance": 4}, {}),
    "radius of distances": ({"radius": 3, "projections": "shared"}, {}),
    "hard long": ({"hard_long": True}, PARAGRAPHS),
    "hard both ways, exempt": (BOTH, {**PARAGRAPHS, **EXEMPT}),
    "links, hard long": ({"hard_long": True}, {**LINKS, **EXEMPT}),
    "packed": ({}, PACKED),
    "packed clusters": ({"clusters": 7, "hard": True}, PACKED),
}
every_form = pytest.mark.parametrize("form", FORMS)
KERNELS = [(impl, form) for impl in ("blocks", "cpu") for form in FORMS]


def attention(**options: object) -> GlobalLocalAttention:
    sizes = {"encoder_embed_dim": WIDTH, "encoder_attention_heads": HEADS}
    return GlobalLocalAttention(Namespace(**defaults_of(ETCOptions) | sizes | options))


def build(form: str, impl: str = "reference", **sizes: int) -> GlobalLocalAttention:
    options = {"radius": 9, "max_distance": 3, **WRITTEN[form][0], **sizes}
    module = attention(attention_kernel=impl, **options).double()
    for bias in (p for name, p in module.named_parameters() if "bias" in name):
        torch.nn.init.normal_(bias, std=0.5)
    return module.eval()


def structure(form: str, rows: int = 2, **padding: Tensor) -> Structure:
    """Of rows of one form; padding stands behind, in no part and in the last paragraph."""
    number, length = (
        padding[name].size(1) if name in padding else size
        for name, size in (("global_padding", GLOBAL), ("long_padding", LONG))
    )
    made = {}
    for name, tensor in {"spans": SPANS, **WRITTEN[form][1]}.items():
        more = (length if "long" in name else number) - len(tensor)
        more *= name != "links"
        last = tensor[-1:] * (name != "spans")
        made[name] = torch.cat([tensor, *[last] * more]).expand(rows, *[-1] * tensor.dim())
    return Structure(length=length, **made, **padding)


def inputs(rows: int = 2, dtype=torch.float64, width: int = WIDTH) -> list[Tensor]:
    """Both streams, not contiguous."""
    return [torch.randn(rows, width, n).to(dtype).mT for n in (GLOBAL, LONG)]


def run(module: GlobalLocalAttention, x: list[Tensor], given: Structure) -> list[Tensor]:
    """Outputs, and the gradients of inputs and parameters."""
    leaves = [t.detach().requires_grad_() for t in x]
    out = module(*leaves, given)
    torch.manual_seed(7)
    loss = sum((t * torch.randn(t.shape).to(t)).sum() for t in out)
    return [*out, *torch.autograd.grad(loss, [*leaves, *module.parameters()])]


class WrittenOut:
    """Both streams of one row by loops over all pairs; members are those of clusters."""

    def __init__(
        self, module: GlobalLocalAttention, given: Structure, members: list | None = None
    ):
        self.module, self.k, self.members = module, module.max_distance, members
        self.sizes = given.spans.size(1), given.length
        names = "exempt", "paragraphs", "long_paragraphs", "global_examples", "long_examples"
        rows = {name: getattr(given, name) for name in ("spans", "links", *names)}
        self.row = {n: None if x is None else x[0].tolist() for n, x in rows.items()}

    def together(self, own: int, i: int, key: int, place: int) -> bool:
        numbers = [self.row[("global_examples", "long_examples")[s]] for s in (own, key)]
        return numbers[0] is None or numbers[0][i] == numbers[1][place]

    def label(self, own: int, i: int, key: int, j: int) -> int | None:
        """Of a token and a key, or None if the key is hidden."""
        k, row, module = self.k, self.row, self.module
        if not self.together(own, i, key, j):
            return None
        if own == key:
            numbers = row[("paragraphs", "long_paragraphs")[own]]
            apart = numbers is not None and numbers[i] != numbers[j]
            if own and (apart or abs(j - i) > module.radius):
                return 2 * k + 4 if self.of_cluster(i, j) else None
            distance = max(-k, min(k, j - i))
            return 2 * k + 3 if apart else distance if distance >= 0 else k - distance
        token, part = (j, i) if own else (i, j)
        first, last = row["spans"][token]
        mine = first <= part < last if self.members is None else part in self.members[token]
        exempt = not own and row["exempt"] is not None and row["exempt"][i]
        if module.hard[own] and not mine and not exempt:
            return None
        links = row["links"] or []
        mine |= any(of == token and begin <= part < end for of, begin, end in links)
        return 2 * k + 2 if mine else 2 * k + 1

    def of_cluster(self, i: int, j: int) -> bool:
        """Whether two long tokens are near in their cluster: two beyond the radius on a side."""
        if not self.module.same_cluster:
            return False
        own = next(members for members in self.members if i in members)
        near = self.module.radius
        paragraphs = self.row["long_paragraphs"]
        far = [t for t in own if abs(t - i) > near or paragraphs[t] != paragraphs[i]]
        return j in [t for t in far if t < i][-2:] + [t for t in far if t > i][:2]


def heads(module: GlobalLocalAttention, what: str, pair: str, x: Tensor) -> Tensor:
    return module.linear[module.named(what, pair)](x).unflatten(-1, (HEADS, -1))


def written_out(module: GlobalLocalAttention, x: list[Tensor], given: Structure) -> list[Tensor]:
    """Outputs of the first row."""
    x, results, loops = [stream[0] for stream in x], [], WrittenOut(module, given)
    if module.clusters:
        q, k = (heads(module, what, "lg", x[of]).flatten(1) for what, of in (("q", 1), ("k", 0)))
        loops.members = [[] for _ in k]
        for place, of in enumerate(q):
            allowed = [g for g in range(len(k)) if loops.together(OF_GLOBAL, g, OF_LONG, place)]
            loops.members[max(allowed, key=lambda g, of=of: float(of @ k[g]))].append(place)
    for side, own in enumerate("gl"):
        q = heads(module, "q", own, x[side])
        k, v = (
            torch.cat([heads(module, what, own + s, x[i]) for i, s in enumerate("gl")])
            for what in "kv"
        )
        rows = []
        for i in range(len(q)):
            logits = torch.full((HEADS, len(k)), -torch.inf, dtype=q.dtype)
            for j in range(len(k)):
                key, place = (OF_GLOBAL, j) if j < len(x[0]) else (OF_LONG, j - len(x[0]))
                if (label := loops.label(side, i, key, place)) is not None:
                    vector = k[j] + module.label_vectors[side, label]
                    logits[:, j] = (q[i] * vector).sum(-1) + module.label_biases[side, label]
            weights = (logits * module.head_dim**-0.5).softmax(-1)
            rows.append(torch.einsum("hj,jhe->he", weights, v).flatten())
        out = torch.stack(rows) if rows else x[side]
        results.append(module.linear[module.named("out", own)](out))
    return results


def assert_written_out(module, x: list[Tensor], given: Structure) -> None:
    for mine, theirs in zip(module(*x, given), written_out(module, x, given), strict=True):
        torch.testing.assert_close(mine[0], theirs, **CLOSE)


@torch.no_grad()
@pytest.mark.parametrize(
    ("form", "impl"),
    [
        *((form, "blocks") for form in WRITTEN),
        *(("soft", impl) for impl in ("reference", "cpu", "triton")),
        *(("clusters, same cluster", impl) for impl in ("reference", "triton")),
    ],
)
def test_every_pair_as_it_is_written(form: str, impl: str) -> None:
    assert_written_out(build(form, impl), inputs(), structure(form))


@torch.no_grad()
def test_ranges_are_as_many_as_the_parts() -> None:
    """Fifty candidates that are linked to one token, of other tokens one range; many links of one
    global token, none of the others."""
    spans, number = torch.zeros(1, 50, 2, dtype=torch.long), torch.arange(50)
    alike = torch.stack([number, number * 0 + 7, number * 0 + 8], -1).unsqueeze(0)
    apart = torch.stack([number * 0 + 1, 2 * number, 2 * number + 1], -1).unsqueeze(0)
    for links, stream, ranges in ((alike, OF_LONG, 4000 - 1 + 50), (apart, OF_GLOBAL, 49 + 100)):
        given = Structure(spans, 4000, links=links)
        assert given.seen(stream, hard=False)[0].numel() == ranges
        assert given.seen(stream, hard=True)[0].numel() == 0
    streams = [torch.randn(1, n, WIDTH, dtype=torch.float64) for n in (50, LONG)]
    assert_written_out(build("soft"), streams, Structure(spans, LONG, links=alike))


def test_keys_are_shared_by_the_stream_of_the_query() -> None:
    """As the authors' share_kv_projections: g2g with g2l, l2l with l2g."""
    named = build("hard, shared keys").named
    assert named("k", "gg") == named("k", "gl") != named("k", "ll") == named("k", "lg")


@torch.no_grad()
@pytest.mark.parametrize("form", ["soft", "clusters, same cluster"])
def test_an_empty_long_input(form: str) -> None:
    """Ainslie et al. 2020, section 3.2: all tokens in the global input."""
    nothing = Structure(torch.zeros(2, GLOBAL, 2, dtype=torch.long), 0)
    assert_written_out(build(form), [inputs()[0], torch.zeros(2, 0, WIDTH).double()], nothing)


def test_sums_of_large_values_stay_finite_in_half_precision() -> None:
    """512 values of 150 have the mean 150, and a sum that float16 does not hold."""
    v = torch.full((1, 1, 1, 512, 2), 150.0, dtype=torch.float16)
    q, k, added = torch.zeros_like(v[..., :1, :]), torch.zeros_like(v), torch.zeros(1, 1, 1, 1, 1)
    label = torch.zeros(1, 512, dtype=torch.long)
    out, lse = _attended((q, k, v, added), label, label > 0, torch.nn.Identity())
    torch.testing.assert_close(out, torch.full_like(out, 150.0), rtol=2e-3, atol=0)
    torch.testing.assert_close(lse, torch.full_like(lse, math.log(512)))


@every_form
def test_gradients(form: str) -> None:
    """Against finite differences, in random directions that all numbers take part in."""
    module, x, given = build(form), inputs(), structure(form)
    directions, views = ([torch.randn(6, *t.shape, dtype=t.dtype) for t in x] for _ in range(2))

    def outputs(step: Tensor) -> Tensor:
        moved = (
            t + torch.einsum("i,ibnd->bnd", step, d) for t, d in zip(x, directions, strict=True)
        )
        out = module(*moved, given)
        return sum(torch.einsum("bnd,ibnd->i", t, v) for t, v in zip(out, views, strict=True))

    step = torch.zeros(6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(outputs, (step,), eps=1e-7, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize(("impl", "form"), KERNELS)
def test_padding_is_never_seen(impl: str, form: str) -> None:
    """It is NaN, behind both streams; outputs and gradients are those without it."""
    module, x = build(form, impl), inputs()
    leaves = [t.detach().requires_grad_() for t in x]
    expected = module(*leaves, structure(form))
    grown = torch.autograd.grad(sum(t.square().sum() for t in expected), leaves)
    for extra in (1, 9, 70):
        sizes = [GLOBAL + extra, LONG + extra]
        hidden = [pads([n - extra] * 2, n, "right") for n in sizes]
        padded = [pad(t, (0, 0, 0, extra), value=torch.nan).requires_grad_() for t in x]
        given = structure(form, global_padding=hidden[0], long_padding=hidden[1])
        real = [t[:, :-extra] for t in module(*padded, given)]
        found = torch.autograd.grad(sum(t.square().sum() for t in real), padded)
        for mine, theirs in zip(real, expected, strict=True):
            torch.testing.assert_close(mine, theirs, **CLOSE)
        for mine, theirs in zip(found, grown, strict=True):
            torch.testing.assert_close(mine[:, :-extra], theirs, **CLOSE)
            assert not mine[:, -extra:].any()


ROUNDED = [(*case, dtype) for case in KERNELS for dtype in (torch.float32, *HALF)]


@pytest.mark.parametrize(("impl", "form", "dtype"), ROUNDED)
def test_error_at_most_twice_the_reference(impl: str, form: str, dtype: torch.dtype) -> None:
    """Of outputs, of their gradients by the inputs and by the parameters: root mean squares,
    relative to what the reference gives in float64."""
    module, x, given = build(form).to(dtype), inputs(dtype=dtype), structure(form)
    reference = run(module, x, given)
    module.impl = impl
    found = run(module, x, given)
    module.impl = "reference"
    exact = run(module.double(), [t.double() for t in x], given)

    def error(tensors: list[Tensor], part: slice) -> Tensor:
        pairs = zip(tensors[part], exact[part], strict=True)
        # without what is 0 but for rounding, as the gradient of a bias of all keys is
        errors = [(t - want).norm() / want.norm() for t, want in pairs if want.norm() > 1e-9]
        return torch.stack(errors).norm()

    for part in (slice(0, 2), slice(2, 4), slice(4, None)):
        assert error(found, part) <= 2 * error(reference, part)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize(("form", "dtype"), [(f, d) for f in FORMS for d in HALF])
def test_large_logits_stay_finite_in_half_precision(form: str, dtype, autocast: bool) -> None:
    """Logits of +-1e4, which are eight times as large before they are scaled; and gradients."""
    module, x = (
        build(form, "auto", encoder_embed_dim=64, encoder_attention_heads=1).float(),
        inputs(dtype=torch.float32, width=64),
    )
    with torch.no_grad():
        for name, linear in module.linear.items():
            if name[0] in "qk":
                linear.weight.mul_(65.0)
        q, k = (module.linear[module.named(name, "ll")](x[1]) for name in "qk")
        assert 1e4 < (q @ k.mT).abs().max() / module.head_dim**0.5 < 6e4
    if not autocast:
        module, x = module.to(dtype), [t.to(dtype) for t in x]
    with torch.autocast("cpu", dtype=dtype, enabled=autocast):
        found = run(module, x, structure(form))
    assert all(t.isfinite().all() for t in found)


@torch.no_grad()
@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("projections", ["separate", "shared-kv", "shared"])
def test_half_precision_moves_no_token_to_another_cluster(dtype, projections: str) -> None:
    sizes = {"encoder_embed_dim": 64, "encoder_attention_heads": 4}
    module = attention(**sizes, radius=2, clusters=32, projections=projections)
    module, given = module.to(dtype), Structure(torch.zeros(2, 32, 2, dtype=torch.long), 2000)
    streams = [torch.randn(2, n, 64, dtype=dtype) for n in (32, 2000)]
    found = [module._assigned(*streams, given)]
    with torch.autocast("cpu", dtype=dtype):
        found.append(module._assigned(*streams, given))
    expected = module.float()._assigned(*(x.float() for x in streams), given)
    assert all(torch.equal(clusters, expected) for clusters in found)
