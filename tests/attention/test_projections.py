"""Positions, short convolutions and shared heads of keys, against plain loops."""

import math

import pytest
import torch
from torch import Tensor

from fairseq_clusterformer.attention import Batch, MultiheadAttention
from fairseq_clusterformer.attention.projections import Rotary, ShortConvolution, rotated

from ..kinds import CAUSAL, HEADS, WIDTH, build, by_steps, every_causal_kind, every_kind, pads

BATCH, LENGTH = 2, 13
#: heads of these kinds share rings, so that shared keys are kept once
RINGS_SHARED = {kind for kind in CAUSAL if kind.split(",")[0] in ("full", "window", "neural")}


def inputs(length: int = LENGTH) -> Tensor:
    return torch.randn(BATCH, length, WIDTH, dtype=torch.float64)


class TestPositions:
    def test_the_equation(self):
        """RoFormer, eq. 15 and 34: each pair of channels as a vector of the plane, turned by
        m theta_i; the pairs are (i, i + E / 2), as the same paper's released models have them."""
        x = torch.randn(2, 3, 5, 6, dtype=torch.float64)
        positions = torch.tensor([[0, 1, 2, 3, 4], [7, 0, 1, 100, 2000]])
        out = rotated(x, positions)
        for b, h, n, i in torch.cartesian_prod(*map(torch.arange, (2, 3, 5, 3))).tolist():
            angle = positions[b, n].item() * 10_000 ** (-2 * i / 6)
            turned = complex(x[b, h, n, i], x[b, h, n, i + 3])
            turned *= complex(math.cos(angle), math.sin(angle))
            assert complex(out[b, h, n, i], out[b, h, n, i + 3]) == pytest.approx(turned, abs=2e-4)

    def test_rates_slow_each_pair(self):
        x, place = torch.randn(1, 1, 9, 8, dtype=torch.float64), torch.arange(9).unsqueeze(0)
        found = rotated(x, place, Rotary(rates=(1.0, 0.5, 0.25, 0.25)))
        rates = torch.tensor([1.0, 0.05, 0.0025, 0.00025]).double()
        a, b = x.chunk(2, dim=-1)
        turned = torch.complex(a, b) * torch.exp(1j * place[0, :, None] * rates)
        expected = torch.cat([turned.real, turned.imag], dim=-1)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)

    def test_clusters_do_not_depend_on_positions(self):
        plain = build("gated", causal=True)
        turned = build("gated", causal=True, of={"rotary": True})
        turned.load_state_dict(plain.state_dict())
        x = inputs()
        found = [module(x) for module in (plain, turned)]
        assert torch.equal(*(reports[0].clusters for _, reports in found))
        assert not torch.allclose(*(out for out, _ in found))


class TestSharedKeys:
    @every_kind(of=[{"rotary": True, "short_convolution": 2}, {"relative": True}, {}])
    def test_equal_repeated_heads(self, kind, causal, of):
        shared = build(kind, causal=causal, of={"kv_heads": 2, **of})
        whole = build(kind, causal=causal, of=of)
        state = shared.state_dict()
        for name, tensor in whole.state_dict().items():
            of_keys = "clusters of keys" in kind or not name.startswith("routers")
            if of_keys and state[name].shape != tensor.shape:
                number = 2 // len(shared.kinds) if name.startswith("routers") else 2
                heads = state[name].unflatten(0, (number, -1))
                state[name] = heads.repeat_interleave(HEADS // 2, dim=0).flatten(0, 1)
        whole.load_state_dict(state)
        if hasattr(shared, "given"):
            whole.given = shared.given
        x = inputs()
        torch.testing.assert_close(shared(x)[0], whole(x)[0], rtol=0, atol=1e-12)
        if causal:
            torch.testing.assert_close(by_steps(shared, x)[0], whole(x)[0], rtol=0, atol=1e-12)

    @every_causal_kind()
    @torch.no_grad()
    def test_what_is_kept_is_less_where_heads_share_rings(self, kind):
        kept, few = [], 1 if "+" not in kind else 2
        for kv_heads in (HEADS, few):
            module = build(kind, causal=True, of={"kv_heads": kv_heads})
            _, past = by_steps(module, inputs())
            entries = (k.lists.entries if k.lists else k.rings.kept for k in past.kinds)
            kept.append(sum(map(torch.numel, entries)))
        if kind in RINGS_SHARED or "clusters of keys" in kind:
            assert kept[1] * HEADS == kept[0] * few
        else:
            assert kept[1] <= kept[0]

    def test_of_a_dense_checkpoint_the_mean_of_the_heads(self):
        """Ainslie et al. 2023, section 2.1."""
        dense = MultiheadAttention(WIDTH, HEADS, kinds="full", causal=True).double()
        shared = MultiheadAttention(WIDTH, HEADS, kinds="gated", causal=True, kv_heads=2).double()
        before = {name: t.clone() for name, t in shared.routers.state_dict().items()}
        shared.load_state_dict(dense.state_dict())
        for name in ("k_proj.weight", "k_proj.bias", "v_proj.weight", "v_proj.bias"):
            given, found = (module.state_dict()[name] for module in (dense, shared))
            pairs = given.unflatten(0, (2, 2, WIDTH // HEADS))  # two heads become one
            torch.testing.assert_close(found, pairs.mean(1).flatten(0, 1))
        assert torch.equal(shared.q_proj.weight, dense.q_proj.weight)
        for name, tensor in shared.routers.state_dict().items():
            assert torch.equal(tensor, before[name]), name


class TestShortConvolution:
    @pytest.mark.parametrize("width", [1, 2, 3, 4, 20])
    @pytest.mark.parametrize("causal", [True, False])
    @pytest.mark.parametrize("packed", [True, False])
    @pytest.mark.parametrize("side", [None, "left", "right"])
    def test_the_definition(self, width, causal, packed, side):
        convolution = ShortConvolution(WIDTH, width, causal=causal).double()
        x = inputs().requires_grad_()
        mask = None if side is None else pads([LENGTH, 5], LENGTH, side)
        documents = torch.arange(LENGTH).div(4, rounding_mode="floor").expand(BATCH, -1)
        batch = Batch(mask, documents if packed else None)
        out = convolution(x, batch)
        own = width - 1 if causal else width // 2
        found, expected = [], []
        for b in range(BATCH):
            for n in range(LENGTH):
                if mask is not None and mask[b, n]:
                    continue
                total = torch.zeros(WIDTH, dtype=x.dtype)
                for tap in range(width):
                    other = n + tap - own
                    if not 0 <= other < LENGTH or (mask is not None and mask[b, other]):
                        continue
                    if packed and documents[b, other] != documents[b, n]:
                        continue
                    total += convolution.weight[:, 0, tap] * x[b, other]
                found.append(out[b, n])
                expected.append(total)
        found, expected = torch.stack(found), torch.stack(expected)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
        weight = torch.randn_like(found)
        leaves = x, convolution.weight
        gradients = (torch.autograd.grad((y * weight).sum(), leaves) for y in (found, expected))
        for one, other in zip(*gradients, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-12)

    @pytest.mark.parametrize("side", [None, "left"])
    def test_wide(self, side):
        """Half precision is computed as if it were float32, and kept as it is."""
        convolution, x = ShortConvolution(WIDTH, 4, causal=True), inputs().bfloat16()
        batch = Batch(None if side is None else pads([LENGTH, 5], LENGTH, side))
        kept, found = [], []

        def note(tensor):
            kept.append(tensor)
            return tensor

        for given in (x, x.float()):
            kept.clear()
            with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
                out = convolution(given, batch, wide=True)
            sizes = [t.dtype for t in kept if t.shape == x.shape and t.is_floating_point()]
            assert sizes == [given.dtype]
            found.append([out, *torch.autograd.grad(out.square().sum(), convolution.weight)])
            found[-1] += convolution.following(given, None, batch, wide=True)[:1]
        assert found[0][0].dtype == torch.float32
        assert all(map(torch.equal, *found))

    def test_a_checkpoint_without_it_computes_what_it_did(self):
        plain = MultiheadAttention(WIDTH, HEADS, kinds="window(4)+full", causal=True).double()
        module = MultiheadAttention(
            WIDTH, HEADS, kinds="window(4)+full", causal=True, short_convolution=4
        ).double()
        x = inputs()
        assert not torch.allclose(module(x)[0], plain(x)[0])
        module.load_state_dict(plain.state_dict())
        assert torch.equal(module(x)[0], plain(x)[0])


class TestCopyingStart:
    """A text twice: at each token of the second time, heads find what followed the first time."""

    @pytest.mark.parametrize("kv_heads", [4, 2, 1])
    def test_it_copies(self, kv_heads):
        length, width = 60, 128
        options = {"kinds": "full", "causal": True, "kv_heads": kv_heads, "short_convolution": 4}
        once = torch.nn.functional.layer_norm(torch.randn(3, length, width), [width])
        found = {}
        for copying_start in (True, False):
            module = MultiheadAttention(width, 4, **options, copying_start=copying_start)
            with torch.no_grad():
                out, _ = module(once.repeat(1, 2, 1))
            nearest = (out[:, length:-1] @ once.transpose(1, 2)).argmax(-1)
            found[copying_start] = (nearest == torch.arange(1, length)).double().mean().item()
        assert found[True] > 0.9
        assert found[False] < 0.2

    @pytest.mark.parametrize(
        ("causal", "width", "said"),
        [
            (True, 2, "a short convolution of 2; allowed"),
            (False, 4, "not causal; allowed: causal"),
        ],
    )
    def test_where_it_is_refused(self, causal, width, said):
        with pytest.raises(ValueError, match=said):
            build("full", causal=causal, of={"short_convolution": width, "copying_start": True})


def test_norms_keep_the_precision_of_heads(monkeypatch):
    """Autocast on CUDA returns what a norm makes in float32; values would be in half of it."""
    layer = MultiheadAttention(16, 2, kinds="full", causal=True, qk_norm=1e-6)
    of, rms_norm = torch.nn.functional, torch.nn.functional.rms_norm
    monkeypatch.setattr(of, "rms_norm", lambda x, *others: rms_norm(x.float(), *others))
    q = layer.split("q", torch.randn(1, 3, 16, dtype=torch.bfloat16))
    assert q.dtype == torch.bfloat16
