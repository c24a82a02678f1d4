"""Structs that C++ declares and Python fills: each library says what its own is like."""

import ctypes

import pytest
import torch

from fairseq_clusterformer.kernels.cpu import bind, library


@pytest.mark.parametrize("source", bind.STRUCTS)
def test_every_library_agrees(source):
    built = ctypes.CDLL(str(library.build(torch.float32, 8, source)))
    assert bind.mismatch(source, built) is None


@pytest.mark.parametrize("wrong", ["fewer fields", "another order"])
def test_a_library_of_another_struct_is_refused(wrong, monkeypatch):
    fields = bind._fields("shares.cpp")
    fields = fields[1:] if wrong == "fewer fields" else [*fields[1:], fields[0]]
    kind = type("Shares", (ctypes.Structure,), {"_fields_": fields})
    monkeypatch.setattr(bind, "struct", lambda source: kind)
    monkeypatch.setattr(library, "_LOADED", {})
    reason = library.why_missing(torch.float32, 8, "shares")
    assert "takes a Shares of" in reason
    assert not library.can_run("shares", torch.zeros(1, 8))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("float c;", "c is of type float; allowed: pointers"),
        ("double *a;", "a field of Step twice"),
    ],
)
def test_a_field_that_cannot_be_filled_is_refused(fields, message, tmp_path, monkeypatch):
    (tmp_path / "step.cpp").write_text(f"struct Step {{\n  int64_t a, b;\n  {fields}\n}};\n")
    monkeypatch.setattr(bind, "FOLDER", tmp_path)
    with pytest.raises(ValueError, match=f"step.cpp.*{message}"):
        bind._fields("step.cpp")


def test_what_is_absent_is_zero_and_what_is_broadcast_has_no_stride():
    x = torch.randn(1, 2, 5, 3).transpose(1, 2)
    found = bind.filled("attention", q=x, lo=torch.zeros(1, 1, 7), k=None, length=7, dropout=0.5)
    assert (found.q.data, list(found.q.strides)) == (x.data_ptr(), [0, 3, 15])
    assert list(found.lo.strides) == [0, 0, 1]
    assert found.k.data is None
    assert (found.length, found.dropout, found.slots) == (7, 0.5, 0)
