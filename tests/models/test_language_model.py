"""The language model as fairseq builds it, after some training."""

import pytest
import torch

from fairseq_clusterformer.models import stack
from tests.models.small import (
    LLAMA,
    Largest,
    gradients,
    lm_sample,
    make_criterion,
    make_lm,
)


@pytest.mark.parametrize(
    ("attention", "rate", "form"),
    [("window+neural", 0.0, {}), ("window+neural", 0.1, LLAMA), ("lsh+gated", 0.1, {})],
)
def test_activation_checkpointing_changes_no_number(attention, rate, form):
    """Losses that a layer returns keep their gradient, and averages are moved once."""
    results, sample = [], lm_sample()
    for checkpoint in (False, True):
        torch.manual_seed(1)
        model = make_lm(
            **{"attention": attention, "checkpoint_activations": checkpoint},
            **{"dropout": rate, "attention_dropout": rate, **form},
        ).train()
        model.set_num_updates(0)
        torch.manual_seed(2)
        found = gradients(model, make_criterion(), sample)
        model.set_num_updates(1)
        results.append((found, {n: b.clone() for n, b in model.named_buffers()}))
    for one, other in zip(*results, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            assert torch.equal(one[name], other[name]), name
    averages = [b for n, b in results[0][1].items() if n.endswith("log_normalizer")]
    assert averages
    assert all(average.abs().max() > 0 for average in averages)


@torch.no_grad()
@pytest.mark.parametrize("form", [{}, LLAMA, {"scale_fc": True, "scale_resids": True}])
def test_portions_of_a_feed_forward_block_give_what_the_whole_gives(form, monkeypatch):
    model, tokens = make_lm(attention="window", **form).eval(), lm_sample((23, 20))["net_input"]
    tokens = tokens["src_tokens"]
    for name, parameter in model.named_parameters():
        if "w_resid" in name:  # 1 at first
            torch.nn.init.normal_(parameter)
    seen = []
    model.decoder.layers[0].fc1.register_forward_hook(lambda _, x, out: seen.append(len(out)))
    found = []
    for at_once in (64, 10):
        monkeypatch.setattr(stack, "AT_ONCE_CPU", at_once)
        found.append(model(tokens)[0])
    assert seen == [23, 5, 5, 5, 5, 3]
    torch.testing.assert_close(*found)


def test_no_square_matrix_exists():
    length = 8192
    model = make_lm(
        attention="window+neural", max_target_positions=length, num_clusters=64
    ).train()
    with Largest() as largest:
        loss, _, _ = make_criterion()(model, lm_sample((length,)))
        loss.backward()
    assert largest.size // 4 < length * length / 20


def test_layer_drop_keeps_the_averages_of_dropped_layers(monkeypatch):
    """What is exchanged with other workers has one size, whichever layers were dropped."""
    model = make_lm(attention="neural", decoder_layerdrop=0.5, decoder_layers=4).train()
    criterion, sizes = make_criterion(), set()

    def alone(of_all, own):
        sizes.add(len(own))
        of_all[:] = [own]

    monkeypatch.setattr(stack, "workers", lambda: 2)
    monkeypatch.setattr(stack.dist, "all_gather", alone)
    counts = []
    for update in range(8):
        model.set_num_updates(update)
        loss, _, _ = criterion(model, lm_sample())
        loss.backward()
        buffers = dict(model.named_buffers())
        counts.append([int(b) for n, b in buffers.items() if n.endswith("updates")])
    assert sizes == {4 * (4 + 1)}
    assert 0 < min(counts[-1]) <= max(counts[-1]) < 8
