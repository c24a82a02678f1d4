"""What every kind of attention promises, of global-local attention: every form on every kernel."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad

from fairseq_clusterformer.etc.global_local import GlobalLocalAttention, Structure
from tests.kinds import pads

WIDTH, HEADS, GLOBAL, LONG = 12, 3, 7, 37
CLOSE = {"rtol": 0, "atol": 1e-12}
HALF = [torch.float16, torch.bfloat16]
#: the second token has no part, some overlap; others are linked to more
SPANS = torch.tensor([[0, 1], [0, 0], [1, 11], [11, 22], [15, 22], [23, 30], [30, 37]])
LINKS = {"links": torch.tensor([[5, 33, 35], [1, 2, 4], [1, 9, 12], [2, 5, 13], [0, 0, 0]])}
PARAGRAPHS = {
    "paragraphs": torch.tensor([0, 0, 1, 1, 2, 2, 2]),
    "long_paragraphs": torch.tensor([0] * 3 + [1] * 12 + [4] * 22),
}
#: options of the attention, and tensors of each row's structure
FORMS: dict[str, tuple[dict, dict[str, Tensor]]] = {
    "soft": ({}, {}),
    "hard, shared keys": ({"hard": True, "projections": "shared-kv"}, {}),
    "hard, exempt": ({"hard": True}, {"exempt": torch.arange(GLOBAL) % 3 == 0}),
    "hard both ways, shared": (
        {"hard": True, "hard_long": True, "projections": "shared"},
        PARAGRAPHS,
    ),
    "links": ({}, LINKS),
    "links, hard": ({"hard": True}, {**LINKS, "exempt": torch.arange(GLOBAL) < 2}),
    "no distances": ({"max_distance": 0}, {}),
    "short radius": ({"radius": 2}, {}),
    "clusters": ({"clusters": True}, {}),
    "clusters, same cluster": ({"clusters": True, "same_cluster": 2, "radius": 3}, PARAGRAPHS),
}
every_form = pytest.mark.parametrize("form", FORMS)
KERNELS = [(impl, form) for impl in ("blocks", "cpu") for form in FORMS]
every_form_and_kernel = pytest.mark.parametrize(("impl", "form"), KERNELS)


def build(form: str, impl: str = "reference", sizes=(WIDTH, HEADS)) -> GlobalLocalAttention:
    options = {"radius": 9, "max_distance": 3, **FORMS[form][0]}
    module = GlobalLocalAttention(*sizes, kernel=impl, **options).double()
    for bias in (p for name, p in module.named_parameters() if "bias" in name):
        torch.nn.init.normal_(bias, std=0.5)
    return module.eval()


def structure(form: str, rows: int = 2, **padding: Tensor) -> Structure:
    """Of rows of one form; padding stands behind, in no part and in the last paragraph."""
    number, length = (
        padding[name].size(1) if name in padding else size
        for name, size in (("global_padding", GLOBAL), ("long_padding", LONG))
    )
    given = {"spans": SPANS, **FORMS[form][1]}
    made = {}
    for name, tensor in given.items():
        more = (length if name == "long_paragraphs" else number) - len(tensor)
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


@every_form
def test_gradients(form: str) -> None:
    """Against finite differences, in random directions that all numbers take part in."""
    module, x, given = build(form), inputs(), structure(form)
    directions = [torch.randn(6, *t.shape, dtype=t.dtype) for t in x]
    views = [torch.randn(6, *t.shape, dtype=t.dtype) for t in x]

    def outputs(step: Tensor) -> Tensor:
        moved = [
            t + torch.einsum("i,ibnd->bnd", step, d) for t, d in zip(x, directions, strict=True)
        ]
        out = module(*moved, given)
        return sum(torch.einsum("bnd,ibnd->i", t, v) for t, v in zip(out, views, strict=True))

    step = torch.zeros(6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(outputs, (step,), eps=1e-7, rtol=1e-6, atol=1e-5)


@every_form_and_kernel
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
        return torch.stack([(t - want).norm() / want.norm() for t, want in pairs]).norm()

    for part in (slice(0, 2), slice(2, 4), slice(4, None)):
        assert error(found, part) <= 2 * error(reference, part)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize(("form", "dtype"), [(f, d) for f in FORMS for d in HALF])
def test_large_logits_stay_finite_in_half_precision(form: str, dtype, autocast: bool) -> None:
    """Logits of +-1e4, which are eight times as large before they are scaled; and gradients."""
    module, x = build(form, "auto", (64, 1)).float(), inputs(dtype=torch.float32, width=64)
    with torch.no_grad():
        for name, linear in module.linear.items():
            if name[0] in "qk":
                linear.weight.mul_(65.0)
        q, k = (module.linear[module.named(name, "l2l")](x[1]) for name in "qk")
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
    module = GlobalLocalAttention(64, 4, radius=2, clusters=True, projections=projections)
    module, given = module.to(dtype), Structure(torch.zeros(2, 32, 2, dtype=torch.long), 2000)
    streams = [torch.randn(2, n, 64, dtype=dtype) for n in (32, 2000)]
    found = [module._assigned(*streams, given)]
    with torch.autocast("cpu", dtype=dtype):
        found.append(module._assigned(*streams, given))
    expected = module.float()._assigned(*(x.float() for x in streams), given)
    assert all(torch.equal(clusters, expected) for clusters in found)
