"""Means of clusters: what they stand for, teach and keep."""

import pytest
import torch

from fairseq_clusterformer.attention import Batch, MultiheadAttention, Tokens
from fairseq_clusterformer.attention.kinds.taught.means import MeansSoFar
from fairseq_clusterformer.attention.projections import QKV

B, H, N, E, K = 2, 2, 23, 4, 5


@pytest.mark.parametrize(("causal", "gap"), [(True, 1), (True, 5), (False, 1)])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("more", ["", ",drop_keys=0.6", ",probes=2,routes_by=heads"])
def test_each_key_counts_once(causal, gap, padded, more):
    """Where keys are alike a mean stands for them exactly: the output is that of dense attention,
    if rings hold all and, causal, a chunk is one token."""
    spec = f"taught(window={N + 1},clusters=4,summaries=1,gap={gap},scouts=9{more})"
    layer = MultiheadAttention(16, 2, kinds=spec, causal=causal).double()
    dense = MultiheadAttention(16, 2, kinds="full", causal=causal).double()
    torch.nn.init.zeros_(layer.k_proj.weight)
    torch.nn.init.normal_(layer.k_proj.bias)
    dense.load_state_dict(layer.state_dict(), strict=False)
    x, mask = torch.randn(B, N, 16).double(), torch.zeros(B, N, dtype=torch.bool)
    if padded:
        mask[0, :6] = mask[1, -4:] = True
    found, reports = layer.train()(x, mask)  # scouts and others side by side
    expected = dense(x, mask)[0][~mask]
    torch.testing.assert_close(found[~mask], expected)
    layer.observe(reports)
    layer.commit()
    torch.testing.assert_close(layer.eval()(x, mask)[0][~mask], expected)


def test_the_task_teaches_keys_that_only_a_mean_shows():
    """The key of a cluster that no query looks into, far back."""
    k, v = (torch.randn(1, 1, 9, E, requires_grad=True) for _ in "kv")
    keys = torch.tensor([1, 2, 1, 2, 1, 2, 1, 2, 1]).view(1, 1, 9)
    tokens = Tokens(k[:, 0], None, Batch())
    s = MeansSoFar((torch.zeros_like(keys),), keys, 3, tokens, None, 4, 1)
    (out, _), _ = s.attend(QKV(torch.randn(1, 1, 9, E), k, v), None)
    of_keys, of_values = torch.autograd.grad(out.square().sum(), (k, v))
    assert of_values[0, 0, :8].any(-1).all()
    assert of_keys[0, 0, :8].any(-1).all()
    assert not of_values[0, 0, 8].any()
