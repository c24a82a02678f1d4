"""Products in full float32, whatever is allowed outside."""

import threading

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fairseq_clusterformer.attention import MultiheadAttention
from fairseq_clusterformer.precision import exact_linear, full_float32

CUDA, CPU = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul


def older(precision):
    torch.set_float32_matmul_precision(precision)


def newer(precision):
    CUDA.fp32_precision, CPU.fp32_precision = precision


def settings():
    try:
        legacy = torch.get_float32_matmul_precision()
    except RuntimeError:
        legacy = "mixed"
    return legacy, CUDA.fp32_precision, CPU.fp32_precision


@pytest.fixture(autouse=True)
def _as_it_was():
    before = CUDA.fp32_precision, CPU.fp32_precision
    yield
    older("highest")
    newer(before)


@pytest.mark.parametrize(
    ("allow", "precision"),
    [(older, "high"), (older, "medium"), (newer, ("tf32", "ieee")), (newer, ("ieee", "bf16"))],
)
def test_full_inside_and_as_it_was_afterwards(allow, precision):
    allow(precision)
    before = settings()
    assert {*before[1:]} & {"tf32", "bf16"}
    with full_float32():
        with full_float32():
            assert settings()[1:] == ("ieee", "ieee")
        assert settings()[1:] == ("ieee", "ieee")
    assert settings() == before
    with pytest.raises(ZeroDivisionError), full_float32():
        raise ZeroDivisionError
    assert settings() == before


def test_autocast_is_off_inside():
    x = torch.randn(4, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with full_float32():
            assert (x @ x).dtype == torch.float32
        assert (x @ x).dtype == torch.bfloat16


def test_a_thread_that_leaves_first_reduces_nothing_for_the_other():
    older("high")
    entered, left = threading.Event(), threading.Event()

    def other():
        with full_float32():
            entered.set()
            left.wait(10)

    thread = threading.Thread(target=other)
    thread.start()
    entered.wait(10)
    with full_float32():
        left.set()
        thread.join()
        assert settings() == ("highest", "ieee", "ieee")
    assert settings() == ("high", "tf32", "tf32")


class Products(TorchDispatchMode):
    """Notes how matrix products are computed."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.mm.default:
            self.seen.append(CUDA.fp32_precision)
        return func(*args, **(kwargs or {}))


def square(x):
    with full_float32():
        return (x @ x).sin()


@full_float32()
def decorated(x):
    return (x @ x).sin()


@pytest.mark.parametrize("square", [square, decorated])
def test_a_compiled_caller(square):
    """It is one graph, and where others reduce products it computes in full."""
    torch._dynamo.reset()
    x = torch.randn(4, 4)
    assert torch.equal(torch.compile(square, backend="eager", fullgraph=True)(x), square(x))
    older("high")
    with Products() as products:
        out = torch.compile(square, backend="eager")(x)
    assert products.seen == ["ieee"]
    assert torch.equal(out, square(x))
    assert settings() == ("high", "tf32", "tf32")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("biased", [True, False])
def test_an_exact_map_keeps_what_it_was_given(dtype, biased):
    torch.manual_seed(1)
    given = [torch.randn(size).to(dtype) for size in ((2, 5, 6), (4, 6), (4,))]
    given = given if biased else given[:2]
    kept, found = [], []

    def note(tensor):
        kept.append(tensor.dtype)
        return tensor

    for wide in (False, True):
        leaves = [(t.float() if wide else t.clone()).requires_grad_() for t in given]
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            out = exact_linear(*leaves)
        assert wide or set(kept) == {dtype}
        assert out.dtype == torch.float32
        found.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other.to(one.dtype))


def test_gated_heads_route_by_float32_of_their_own_heads():
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
