"""The language model as fairseq builds it, after some training."""

from argparse import Namespace

import pytest
import torch
from fairseq.models import ARCH_CONFIG_REGISTRY

from fairseq_clusterformer.models import stack
from fairseq_clusterformer.models.clusterformer_lm import ClusterformerLanguageModel
from tests.models.small import (
    LLAMA,
    Largest,
    gradients,
    letters,
    lm_sample,
    make_criterion,
    make_lm,
    make_task,
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_decoder_of_llamas_form(dtype):
    """It learns in half precision too, without a bias, and each kernel computes the same."""
    model = make_lm(attention="window+neural", **LLAMA).to(dtype).train()
    assert not any(name.endswith("bias") for name, _ in model.named_parameters())
    tokens = letters(2, 40)
    model(tokens)[0].float().square().mean().backward()
    for name, parameter in model.named_parameters():
        of_routers = ".routers." in name  # which learn by losses of their own
        assert of_routers or parameter.grad.isfinite().all(), name
        assert of_routers or parameter.grad.abs().max() > 0, name
    found = []
    for kernel in ("reference", "blocks"):
        for layer in model.eval().decoder.layers:
            layer.self_attn.impl = kernel
        found.append(model(tokens)[0])
    close = {torch.float32: 1e-5, torch.bfloat16: 2e-2}[dtype]
    torch.testing.assert_close(*found, rtol=0, atol=close)


@pytest.mark.parametrize(
    ("attention", "rate", "form"),
    [("window+neural", 0.0, {}), ("window+neural", 0.1, LLAMA), ("window+gated", 0.1, {})],
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

    def alone(tensor):
        sizes.add(len(tensor))
        return [tensor]

    monkeypatch.setattr(stack, "workers", lambda: 2)
    monkeypatch.setattr(stack, "gather", alone)
    counts = []
    for update in range(8):
        model.set_num_updates(update)
        loss, _, _ = criterion(model, lm_sample())
        loss.backward()
        buffers = dict(model.named_buffers())
        counts.append([int(b) for n, b in buffers.items() if n.endswith("updates")])
    assert sizes == {4 * (4 + 1)}
    assert 0 < min(counts[-1]) <= max(counts[-1]) < 8


def test_the_architecture_for_bytes_begins_as_what_copies():
    """What is given wins over it."""
    options = {"short_convolution": 2, "decoder_learned_pos": True, "attention": "window(7)"}
    for given in ({}, options):
        args = Namespace(tokens_per_sample=128, **given)
        ARCH_CONFIG_REGISTRY["clusterformer_lm_bytes"](args)
        model = ClusterformerLanguageModel.build_model(args, make_task())
        assert (model.decoder.embed_positions is None) == (not given)
        for layer in model.decoder.layers:
            attention = layer.self_attn
            assert torch.equal(attention.q_proj.weight, attention.k_proj.weight) == (not given)
            if given:
                assert attention.kinds[0].written == "window(7)"
                continue
            (kind,) = attention.routers
            assert (kind.options.window, kind.options.clusters, kind.rule.gap) == (32, 16, 32)
            assert kind.rule.reads_qk
