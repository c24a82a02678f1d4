"""What a layer is said to see is what it attends."""

import pytest
import torch
from torch import nn

from fairseq_clusterformer.attention.inspect import seen_keys, tokens_seen
from fairseq_clusterformer.kernels import Layout

from ..kinds import BIDIRECTIONAL, build, pads
from .plain import BATCH, WIDTH, layer, projected

LENGTH = 13

# kinds in which a key counts once and without a bias, and whether causal
FORMS = [
    ("full", True),
    ("window(2)", False),
    ("neural(3)", True),
    ("neural(3,gap=4)", True),
    ("neural(rule=chunk)", False),
    ("neural(rule=leaking-chunk)", True),
    ("lsh(2,rounds=1)", True),
    ("lsh(2,rounds=1,gap=3)", False),
    ("lsh(rounds=1,rule=chunk)", False),
    ("routing(2)", True),
    ("routing(2,gap=5)", True),
    ("routing(rule=chunk)", False),
    ("strided(2)", True),
    ("strided(3,pattern=fixed)", True),
    ("kmeans(2,bank_size=100)", True),
]


@torch.no_grad()
@pytest.mark.parametrize(("kind", "causal"), FORMS)
def test_tokens_seen_are_those_attended(kind, causal):
    clusters = {} if kind.startswith(("full", "window")) else {"clusters": 4}
    module = layer(kind, causal=causal, **clusters)
    module.impl = "auto"
    x = torch.randn(BATCH, LENGTH, WIDTH, dtype=torch.float64)
    (seen,) = tokens_seen(module, x).values()

    q, k, v = projected(module, x)
    logits = (q @ k.mT / q.size(-1) ** 0.5).masked_fill(~seen, -torch.inf)
    expected = module.merge([logits.softmax(-1) @ v])
    torch.testing.assert_close(module(x)[0], expected, rtol=0, atol=1e-12)


class Layers(nn.ModuleList):
    """One after another."""

    def forward(self, x, padding_mask=None):
        for module in self:
            x, _ = module(x, padding_mask)
        return x


@torch.no_grad()
@pytest.mark.parametrize("kind", [kind for kind in BIDIRECTIONAL if "summaries" not in kind])
def test_what_is_not_seen_has_no_weight(kind):
    """A value that is changed moves the outputs of those queries that see its token alone."""
    module = build(kind, causal=False)
    mask = pads([LENGTH, 6], LENGTH, "left")
    x = torch.randn(2, LENGTH, module.v_proj.in_features, dtype=torch.float64)
    seen = torch.zeros(2, LENGTH, LENGTH, dtype=torch.bool)
    for of_heads in tokens_seen(module, x, mask).values():
        seen = seen | of_heads.any(1)
    before = module(x, mask)[0]
    for token in range(LENGTH - 6, LENGTH):  # in both rows
        hook = module.v_proj.register_forward_hook(
            lambda _, __, out, token=token: out.index_fill(1, torch.tensor(token), 3.0)
        )
        moved = (module(x, mask)[0] - before).abs().amax(-1) > 1e-9
        hook.remove()
        real = ~mask
        assert torch.equal(moved & real, seen[..., token] & real)


def test_layers_in_their_order_and_each_once():
    x = torch.randn(1, LENGTH, WIDTH, dtype=torch.float64)
    first, second = (layer("window", causal=True, window=w) for w in (1, 2))
    seen = tokens_seen(Layers([first, second]), x)
    assert list(seen) == ["0.routers.0", "1.routers.0"]
    assert [of_layer.sum().item() for of_layer in seen.values()] == [LENGTH, 2 * LENGTH - 1]
    with pytest.raises(ValueError, match="0.routers.0 ran more than once"):
        tokens_seen(Layers([first, first]), x)


def test_rows_and_heads_that_agree_and_others_that_do_not():
    slot = torch.arange(3).view(1, 1, 3)
    order = torch.tensor([[2, 0, 1], [0, 1, 2]]).unsqueeze(1)
    keys = seen_keys(Layout(lo=slot, hi=slot + 1, key_order=order))
    assert keys.float().argmax(-1).squeeze(1).tolist() == [[2, 0, 1], [0, 1, 2]]
    queries = seen_keys(Layout(lo=slot, hi=slot + 1, query_order=order.transpose(0, 1)))
    assert queries.float().argmax(-1).squeeze(0).tolist() == [[1, 2, 0], [0, 1, 2]]
