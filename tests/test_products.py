"""Linear maps, by whatever library."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fairseq_clusterformer import products
from fairseq_clusterformer.products import linear, mapped


@pytest.fixture
def _amd(monkeypatch):
    """As on a processor where MKL is slow."""
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("torch without oneDNN")
    monkeypatch.setattr(products, "_mkl_is_slow", lambda: True)


@torch.no_grad()
@pytest.mark.usefixtures("_amd")
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("rows", [1, 2, 6, 7, 129])
def test_products_are_torchs_linear_however_they_are_computed(rows, biased):
    torch.manual_seed(1)
    weight, bias = torch.randn(rows, 24), torch.randn(rows) if biased else None
    x = torch.randn(3, 1, 24)
    expected = torch.nn.functional.linear(x, weight, bias)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            for one, other in zip(x, expected, strict=True):
                torch.testing.assert_close(linear(one[None], weight, bias), other[None])
                torch.testing.assert_close(linear(one[0], weight, bias), other[0])
            apart = weight.T.contiguous().T  # not as rows in memory
            torch.testing.assert_close(linear(x[:1], apart, bias), expected[:1])
            torch.testing.assert_close(linear(x, apart, bias), expected)
            turned = linear(x.transpose(0, 1), weight, bias)
            torch.testing.assert_close(turned, expected.transpose(0, 1))
            assert linear(x[:0], weight, bias).shape == (0, 1, rows)
    finally:
        torch.set_num_threads(before)


class Quantised(torch.Tensor):
    """A weight that only its library knows how to read."""


@pytest.mark.usefixtures("_amd")
def test_they_are_torchs_own_where_something_else_is_asked_for():
    class Names(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.add(function.overloadpacket._qualified_op_name)
            return function(*args, **(kwargs or {}))

    def ours(module, x):
        seen.clear()
        with Names():
            mapped(module, x)
        return "aten::addmm" not in seen

    seen, module, x = set(), torch.nn.Linear(8, 6), torch.randn(1, 1, 8)
    assert not ours(module, x)  # gradients are
    with torch.no_grad():
        assert ours(module, x)
        assert ours(module, x.expand(2, 1, 8))
        assert not ours(module.double(), x.double())
        module.float().register_forward_hook(lambda _, inputs, out: seen.add("hooked"))
        assert not ours(module, x)
        assert "hooked" in seen
        module = torch.nn.Linear(8, 6)
        assert ours(module, x)
        module.weight = torch.nn.Parameter(module.weight.detach().as_subclass(Quantised))
        assert not ours(module, x)
        module.forward = lambda x: seen.add("another")
        mapped(module, x)
    assert "another" in seen
