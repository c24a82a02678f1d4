"""What a layer is said to see is what it attends."""

import pytest
import torch
from torch import nn

from fairseq_clusterformer.attention.inspect import tokens_seen

from ..kinds import build, every_kind, pads
from .plain import WIDTH, layer

LENGTH = 13


class Layers(nn.ModuleList):
    """One after another."""

    def forward(self, x, padding_mask=None):
        for module in self:
            x, _ = module(x, padding_mask)
        return x


@every_kind()
@torch.no_grad()
def test_what_is_not_seen_has_no_weight(kind, causal):
    """A value that is changed moves the outputs of those queries that see its token alone; of an
    index, of some of them."""
    if "summaries" in kind:
        pytest.skip("the mean of a cluster is no key")
    module = build(kind, causal=causal)
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
        if "index" in kind:
            assert not (moved & real & ~seen[..., token]).any()
        else:
            assert torch.equal(moved & real, seen[..., token] & real)


def test_layers_in_their_order_and_each_once():
    x = torch.randn(1, LENGTH, WIDTH, dtype=torch.float64)
    first, second = (layer("window", causal=True, window=w) for w in (1, 2))
    seen = tokens_seen(Layers([first, second]), x)
    assert list(seen) == ["0.routers.0", "1.routers.0"]
    assert [of_layer.sum().item() for of_layer in seen.values()] == [LENGTH, 2 * LENGTH - 1]
    with pytest.raises(ValueError, match="0.routers.0 ran more than once"):
        tokens_seen(Layers([first, first]), x)
