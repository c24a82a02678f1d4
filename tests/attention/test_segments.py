"""A text read in segments: each sees what is kept of those before, and gradients end there."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from fairseq_clusterformer.attention import Past
from fairseq_clusterformer.attention.past import each
from tests.kinds import WIDTH, build, every_causal_kind, losses_of, pads

BOUNDS = (0, 9, 13, 15, 31)
LAYER = {"rotary": True, "short_convolution": 3}


def in_segments(module, x, mask=None, bounds=BOUNDS):
    """Outputs of each segment, as training reads them, and all reports."""
    past, outputs, reports = Past(), [], []
    for first, end in pairwise(bounds):
        hidden = None if mask is None else mask[:, first:end]
        out, past, report = module.following(x[:, first:end], past, hidden, reported=True)
        past = each(past, torch.Tensor.detach)
        outputs.append(out)
        reports += report
    return torch.cat(outputs, dim=1), reports


def written_out(module, x, monkeypatch):
    """Outputs of each segment, each time of all tokens so far, of which the earlier queries, keys,
    values and biases of keys are constants."""
    outputs = []
    for first, end in pairwise(BOUNDS):

        def cut(out, dim, first=first):
            old, new = out.split([first, out.size(dim) - first], dim)
            return torch.cat([old.detach(), new], dim)

        with monkeypatch.context() as patch:
            projections = module.q_proj, module.k_proj, module.v_proj
            for part in (*projections, *module.convolutions.values()):
                of = part.forward
                patch.setattr(part, "forward", lambda *x, of=of, cut=cut: cut(of(*x), 1))
            for router in module.routers:

                def assign(*args, of=router.assign, cut=cut):
                    found, state = of(*args)
                    bias = found.key_bias
                    return replace(found, key_bias=None if bias is None else cut(bias, 2)), state

                patch.setattr(router, "assign", assign)
            outputs.append(module(x[:, :end])[0][:, first:])
    return torch.cat(outputs, dim=1)


def gradients(module, loss) -> list[torch.Tensor]:
    found = torch.autograd.grad(loss, list(module.parameters()), allow_unused=True)
    return [torch.zeros(()) if g is None or not g.any() else g for g in found]


@every_causal_kind(of=[{}, LAYER])
def test_every_kind(kind, of, monkeypatch):
    """Values and gradients are those of a loop written out; of ``xl`` values alone: within a
    segment it also teaches what is its memory."""
    module = build(kind, causal=True, of=of)
    x, direction = torch.randn(2, 2, BOUNDS[-1], WIDTH, dtype=torch.double)
    found, wanted = in_segments(module, x)[0], written_out(module, x, monkeypatch)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)
    if "xl" not in kind:
        pairs = (gradients(module, (out * direction).sum()) for out in (found, wanted))
        torch.testing.assert_close(*pairs, rtol=1e-9, atol=1e-9)


@every_causal_kind(of=[{}, LAYER])
def test_one_segment_is_a_batch(kind, of):
    """In training, with all that teaches clusters besides."""
    module = build(kind, causal=True, of=of).train()
    x, direction = torch.randn(2, 2, 31, WIDTH, dtype=torch.double)
    mask, results = pads([31, 22], 31, "right"), []
    for read in (module, lambda *given: in_segments(module, *given, bounds=(0, 31))):
        torch.manual_seed(1)
        out, reports = read(x, mask)
        out = out.masked_fill(mask.unsqueeze(-1), 0.0)
        loss = (out * direction).sum() + sum(losses_of(reports))
        learned = [] if "xl" in kind else gradients(module, loss)  # whose memory then learns
        seen = [r.observation for r in reports if r.observation is not None]
        results.append((out, losses_of(reports), seen, learned))
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-9, equal_nan=True)


@pytest.mark.parametrize("kind", ["taught", "taught, probes, gap", "taught, summaries"])
def test_scouts_of_later_segments(kind):
    """They see all that is kept, and teach of their own segment: rings that hold everything make
    them the scouts of a batch."""
    module = build(kind, causal=True, window=200).train()
    for router in module.routers:
        router.convolution = None
    x = torch.randn(2, BOUNDS[-1], WIDTH, dtype=torch.double)
    dense = module(x)[0]  # all are scouts, and see every key
    out, reports = in_segments(module, x)
    torch.testing.assert_close(out, dense, rtol=1e-10, atol=1e-10)
    losses = losses_of(reports)
    assert len(losses) == len(BOUNDS) - 1
    alone = losses_of(module(x[:, : BOUNDS[1]])[1])
    torch.testing.assert_close(losses[:1], alone)
    assert any(gradient.any() for gradient in gradients(module, losses[-1]))
