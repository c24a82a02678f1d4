"""A step of full attention whose ring several programs share, against attention written out."""

import importlib

import pytest
import torch

from fairseq_clusterformer.kernels import triton_kernels

from ..conftest import REPO_ROOT  # noqa: F401  sets TRITON_INTERPRET before Triton is imported

BATCH, HEADS, WIDTH, ROOM = 2, 2, 8, 64


@pytest.mark.parametrize(
    ("impl", "own_apart", "padded", "steps"),
    [("triton", False, False, 37), ("triton", True, True, 63), ("triton", False, True, 24)],
)
def test_programs_share_a_ring(impl, own_apart, padded, steps, monkeypatch):
    q, k, v = (torch.randn(BATCH, HEADS, 1, WIDTH, dtype=torch.float64) for _ in range(3))
    decode = importlib.import_module("fairseq_clusterformer.kernels.triton.decode")
    kept = torch.full((BATCH, 1, 1, HEADS, ROOM, 2 * WIDTH), torch.nan, dtype=torch.float64)
    kept[..., :steps, :] = torch.randn(BATCH, 1, 1, HEADS, steps, 2 * WIDTH)
    state = {"kept": kept, "steps": q.new_empty(BATCH, steps, 0)}
    before = kept[:, 0, 0, :, :steps].clone()
    ring, hidden = None, torch.zeros(BATCH, 1, steps + 1, dtype=torch.bool)
    if padded:  # the second sentence begins with 20 tokens of padding: programs see nothing
        hidden[1, :, :20] = True
        state["ring"] = torch.zeros(BATCH, 1, 1, ROOM, dtype=torch.long)
        state["ring"][1, ..., :20] = 1
        ring = torch.zeros(BATCH, 1, 1, dtype=torch.long)

    launched = []
    join = decode._join.run
    monkeypatch.setattr(decode._join, "run", lambda *a, **b: launched.append(1) or join(*a, **b))
    monkeypatch.setattr(decode, "SHARE", 5)
    out, _ = triton_kernels(q).triton_step(
        q, k, v, ring, ring, state, num_rings=1, key_bias=None, own_apart=own_apart, own_bias=None,
        padding_mask=hidden[:, 0, -1:] if padded else None,
    )  # fmt: skip
    assert launched
    keys = torch.cat([before[..., :WIDTH], k], dim=2)
    values = torch.cat([before[..., WIDTH:], v], dim=2)
    logits = (q @ keys.transpose(-1, -2))[..., 0, :] / WIDTH**0.5
    weights = torch.softmax(logits.masked_fill(hidden, -1e300), -1).unsqueeze(-2)
    torch.testing.assert_close(out, weights @ values, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(kept[:, 0, 0, 0, steps, :WIDTH][0], k[0, 0, 0])
    torch.testing.assert_close(kept[:, 0, 0, :, steps, WIDTH:][0], v[0, :, 0])
