"""Linear maps, however they are computed."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fairseq_clusterformer import products
from fairseq_clusterformer.precision import exact_linear
from fairseq_clusterformer.products import linear, mapped


class Names(TorchDispatchMode):
    """The operations that are run."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen.add(function.overloadpacket._qualified_op_name)
        return function(*args, **(kwargs or {}))


def operation(function, *given):
    names = Names()
    names.seen = set()
    with names:
        function(*given)
    (name,) = {"aten::bmm", "aten::mm", "aten::addmm", "aten::convolution"} & names.seen
    return name


def in_parts(function, *given):
    return operation(function, *given) == "aten::bmm"


@pytest.fixture(autouse=True)
def _amd(monkeypatch):
    """As on a processor where MKL is slow, of a weight that is large."""
    monkeypatch.setattr(products, "_is_amd", lambda: True)
    monkeypatch.setattr(products, "LARGE", 48)


@torch.no_grad()
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("rows", [2, 3, 6, 7, 129])
def test_products_are_torchs_linear_however_they_are_computed(rows, biased):
    torch.manual_seed(1)
    weight, bias = torch.randn(rows, 24), torch.randn(rows) if biased else None
    x, apart = torch.randn(3, 1, 24), weight.T.contiguous().T  # not as rows in memory
    expected = torch.nn.functional.linear(x, weight, bias)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            for one, other in zip(x, expected, strict=True):
                assert in_parts(linear, one, weight)
                for wide in (one[0], one, one[None]):  # [D] to [1, 1, D]
                    found = linear(wide, weight, bias)
                    torch.testing.assert_close(found, other.view(*wide.shape[:-1], rows))
                torch.testing.assert_close(linear(one, apart, bias), other)
            torch.testing.assert_close(linear(x, weight, bias), expected)
            assert linear(x[:0], weight, bias).shape == (0, 1, rows)
    finally:
        torch.set_num_threads(before)


@pytest.fixture
def _threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


CONVOLUTION = "aten::convolution"


@torch.no_grad()
@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("size", [1, 5, 24])
def test_many_rows_are_pixels_of_a_convolution(size, biased, monkeypatch):
    monkeypatch.setattr(products, "WIDE", 24)
    torch.manual_seed(1)
    module = torch.nn.Linear(24, size, bias=biased).eval()
    apart = torch.nn.Linear(24, size, bias=biased).eval()
    apart.weight.data = module.weight.data.T.contiguous().T
    x = torch.randn(products.MANY, 24)
    turned = x.T.contiguous().T, x.view(4, -1, 24).transpose(0, 1), x[:1].expand(len(x), -1)
    for many in (x, x[:, None], x.view(4, -1, 24), *turned):
        for linear_map in (module, apart):
            assert operation(mapped, linear_map, many) == CONVOLUTION
            expected, found = linear_map(many), mapped(linear_map, many)
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
            assert found.stride() == expected.stride()


@torch.no_grad()
@pytest.mark.usefixtures("_threads")
def test_many_rows_are_torchs_own_if_something_else_is_asked_for(monkeypatch):
    x, make = torch.randn(products.MANY, 256), lambda *size: torch.nn.Linear(*size).eval()
    module = make(256, 256)
    assert operation(mapped, module, x) == CONVOLUTION
    assert operation(linear, x, module.weight) != CONVOLUTION  # routers have these
    for given in (
        (module, x[1:]),
        (make(256, 255), x),  # a small weight
        (make(256, 256).train(), x),
        (make(256, 256).double(), x.double()),
    ):
        assert operation(mapped, *given) != CONVOLUTION
    with torch.enable_grad():
        assert operation(mapped, module, x) != CONVOLUTION
    with torch.autocast("cpu", torch.bfloat16):
        assert operation(mapped, module, x) != CONVOLUTION
    for setting in (torch.backends.mkldnn.conv, torch.backends.mkldnn.matmul):
        before, setting.fp32_precision = setting.fp32_precision, "bf16"
        try:
            assert operation(mapped, module, x) != CONVOLUTION
        finally:
            setting.fp32_precision = before
    torch.set_num_threads(1)
    assert operation(mapped, module, x) != CONVOLUTION
    torch.set_num_threads(2)
    monkeypatch.setattr(products, "_is_amd", lambda: False)
    assert operation(mapped, module, x) != CONVOLUTION


class Mapped(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.map = torch.nn.Linear(16, 16)

    def forward(self, x):
        return mapped(self.map, x)


@torch.no_grad()
def test_any_number_of_rows_is_exported():
    size = {"x": {0: torch.export.Dim("rows", min=2, max=1 << 16)}}
    exported = torch.export.export(Mapped().eval(), (torch.randn(2000, 16),), dynamic_shapes=size)
    assert exported.module()(torch.randn(500, 16)).shape == (500, 16)


class Quantised(torch.Tensor):
    """A weight that only its library knows how to read."""


def test_they_are_torchs_own_where_something_else_is_asked_for(monkeypatch):
    make, x = lambda rows=6: torch.nn.Linear(8, rows), torch.randn(1, 1, 8)
    assert not in_parts(mapped, make(), x)  # gradients are
    assert not in_parts(exact_linear, x, make().weight)
    with torch.no_grad(), monkeypatch.context() as compiling:
        compiling.setattr(torch.compiler, "is_compiling", lambda: True)
        assert not in_parts(mapped, make(), x)
    with torch.no_grad():
        assert in_parts(mapped, make(), x)
        assert in_parts(exact_linear, x, make().weight)
        assert not in_parts(mapped, make(5), x)  # not large
        assert not in_parts(mapped, make(), x.expand(2, 1, 8))
        assert not in_parts(mapped, make().double(), x.double())
        with torch.autocast("cpu", torch.bfloat16):
            assert not in_parts(mapped, make(), x)
        quantised = make()
        weight = quantised.weight.detach().as_subclass(Quantised)
        quantised.weight = torch.nn.Parameter(weight)
        assert not in_parts(mapped, quantised, x)
        monkeypatch.setattr(products, "_is_amd", lambda: False)
        assert not in_parts(mapped, make(), x)


@pytest.mark.parametrize("gradients", [True, False])
def test_a_module_is_called_where_something_waits_for_it(gradients):
    seen, x = [], torch.randn(1, 1, 8)
    before, after, other, any_module = (torch.nn.Linear(8, 6) for _ in range(4))
    before.register_forward_pre_hook(lambda _, inputs: seen.append("before"))
    after.register_forward_hook(lambda _, inputs, out: seen.append("after"))
    other.forward = lambda x: seen.append("other")
    with torch.set_grad_enabled(gradients):
        for module in (before, after, other):
            mapped(module, x)
        hook = torch.nn.modules.module.register_module_forward_hook(
            lambda *given: seen.append("any")
        )
        mapped(any_module, x)
        hook.remove()
    assert seen == ["before", "after", "other", "any"]
    if gradients:
        after.register_full_backward_hook(lambda *given: seen.append("back"))
        mapped(after, x).sum().backward()
        assert seen[-1] == "back"
