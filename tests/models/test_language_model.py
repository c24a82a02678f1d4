"""The language model as fairseq builds it, after some training."""

from argparse import Namespace
from types import SimpleNamespace

import pytest
import torch
from fairseq.criterions.cross_entropy import CrossEntropyCriterion
from fairseq.data import Dictionary
from torch.utils._python_dispatch import TorchDispatchMode

from fairseq_clusterformer.criterions.clusterformer_cross_entropy import (
    ClusterformerCrossEntropy,
    ClusterformerCrossEntropyConfig,
)
from fairseq_clusterformer.models import stack
from fairseq_clusterformer.models.clusterformer_lm import (
    ClusterformerLanguageModel,
    ClusterformerLanguageModelConfig,
    clusterformer_lm_bytes,
)

SPECS = ("full", "window", "neural", "window+neural", "window,neural")
every_spec = pytest.mark.parametrize("spec", SPECS)


def make_task() -> SimpleNamespace:
    dictionary = Dictionary()
    for letter in "abcdefghijklmnopqrst":
        dictionary.add_symbol(letter)
    return SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary)


def make_model(task=None, **options) -> ClusterformerLanguageModel:
    values = {
        "decoder_layers": 2,
        "decoder_embed_dim": 32,
        "decoder_input_dim": 32,
        "decoder_output_dim": 32,
        "decoder_ffn_embed_dim": 64,
        "decoder_attention_heads": 4,
        "decoder_normalize_before": True,
        "share_decoder_input_output_embed": True,
        "attention": "window+neural",
        "attention_window": 5,
        "num_clusters": 4,
        "max_target_positions": 128,
        "dropout": 0.0,
        **options,
    }
    config = ClusterformerLanguageModelConfig(**values)
    return ClusterformerLanguageModel.build_model(config, task or make_task())


def make_sample(task, batch=4, length=40) -> dict:
    first = task.source_dictionary.nspecial
    tokens = torch.randint(first, len(task.source_dictionary), (batch, length + 1))
    return {
        "net_input": {
            "src_tokens": tokens[:, :-1].contiguous(),
            "src_lengths": torch.full((batch,), length),
        },
        "target": tokens[:, 1:].contiguous(),
        "ntokens": batch * length,
    }


def make_criterion(task, **weights) -> ClusterformerCrossEntropy:
    config = ClusterformerCrossEntropyConfig(sentence_avg=False, **weights)
    return ClusterformerCrossEntropy.build_criterion(config, task)


@torch.enable_grad()
def trained(spec: str, updates: int = 25, **options):
    """A model after a few updates, in evaluation, and its task."""
    task = make_task()
    model = make_model(task, attention=spec, **options).train()
    criterion = make_criterion(task)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for update in range(updates):
        model.set_num_updates(update)
        loss, size, _ = criterion(model, make_sample(task))
        optimizer.zero_grad()
        (loss / size).backward()
        optimizer.step()
    return model.eval(), task


@every_spec
@torch.no_grad()
def test_no_later_token_changes_an_earlier_logit(spec):
    model, task = trained(spec)
    model.double()
    tokens = make_sample(task, batch=2)["net_input"]["src_tokens"]
    before, _ = model(tokens)
    for t in range(1, tokens.size(1)):
        edited = tokens.clone()
        edited[:, t:] = make_sample(task, batch=2)["net_input"]["src_tokens"][:, t:]
        after, _ = model(edited)
        torch.testing.assert_close(after[:, :t], before[:, :t], rtol=0, atol=1e-10)


@torch.no_grad()
def test_the_leaking_rule_fails_that_test():
    model, task = trained("neural", cluster_rule="leaking-chunk")
    model.double()
    assert model.decoder.leaks_future
    tokens = make_sample(task, batch=2)["net_input"]["src_tokens"]
    edited = tokens.clone()
    edited[:, 20:] = make_sample(task, batch=2)["net_input"]["src_tokens"][:, 20:]
    difference = (model(edited)[0] - model(tokens)[0])[:, :20].abs().max()
    assert difference > 1e-3


@every_spec
@torch.no_grad()
def test_stepwise_log_probabilities_equal_parallel_ones(spec):
    model, task = trained(spec)
    tokens = make_sample(task, batch=3)["net_input"]["src_tokens"]
    parallel = model.get_normalized_probs(model(tokens), log_probs=True)
    state: dict = {}
    for t in range(tokens.size(1)):
        if t == 20:  # the beam keeps rows 2 and 0
            order = torch.tensor([2, 0])
            model.decoder.reorder_incremental_state_scripting(state, order)
            tokens, parallel = tokens[order], parallel[order]
        out = model.decoder(tokens[:, : t + 1], incremental_state=state)
        step = model.get_normalized_probs(out, log_probs=True)[:, 0]
        torch.testing.assert_close(step, parallel[:, t], rtol=0, atol=1e-4)


def gradients(model, criterion, sample) -> dict[str, torch.Tensor]:
    model.zero_grad()
    loss, size, _ = criterion(model, sample)
    (loss / size).backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def test_which_parameters_learn_from_which_term():
    task = make_task()
    model = make_model(task, attention="neural").train()
    sample = make_sample(task)

    def learners(**weights) -> set[str]:
        off = {
            "clustering_loss_weight": 0.0,
            "centroid_sorting_loss_weight": 0.0,
            "task_loss_weight": 0.0,
        }
        found = gradients(model, make_criterion(task, **{**off, **weights}), sample)
        return {name for name, gradient in found.items() if gradient.abs().max() > 0}

    routers = {name for name, _ in model.named_parameters() if ".routers." in name}
    others = {name for name, _ in model.named_parameters()} - routers
    assert len(routers) == 2 * 2  # centroids and W_c of two layers
    # k_proj.bias moves all logits of a query alike: softmax does not see it
    silent = {name for name in others if name.endswith("k_proj.bias")}
    assert others - silent <= learners(task_loss_weight=1.0) <= others
    for weight in ("clustering_loss_weight", "centroid_sorting_loss_weight"):
        learned = learners(**{weight: 1.0})
        assert routers <= learned
        assert "decoder.embed_tokens.weight" in learned
        assert "decoder.layers.0.fc1.weight" in learned  # below the second layer's clustering
        assert "decoder.layers.1.fc1.weight" not in learned


def test_weights_mean_the_same_at_any_batch_size():
    task = make_task()
    model = make_model(task, attention="neural").train()
    criterion = make_criterion(task)
    sample = make_sample(task, batch=4)
    halves = [
        {
            "net_input": {k: v[rows] for k, v in sample["net_input"].items()},
            "target": sample["target"][rows],
            "ntokens": sample["ntokens"] // 2,
        }
        for rows in (slice(0, 2), slice(2, 4))
    ]
    whole = gradients(model, criterion, sample)
    parts = [gradients(model, criterion, half) for half in halves]
    for name, gradient in whole.items():
        mean = (parts[0][name] + parts[1][name]) / 2
        torch.testing.assert_close(mean, gradient, rtol=1e-4, atol=1e-6)


def test_validation_loss_is_the_tasks_alone():
    task = make_task()
    model = make_model(task).eval()
    sample = make_sample(task)
    loss, _, logged = make_criterion(task)(model, sample)
    expected, _, _ = CrossEntropyCriterion(task, False)(model, sample)
    assert torch.equal(loss, expected)
    assert torch.equal(logged["loss"], expected)
    model.train()
    loss, _, logged = make_criterion(task)(model, sample)
    torch.testing.assert_close(logged["loss"], expected)
    assert not torch.equal(loss, expected)


def test_a_dense_model_is_refused_by_name():
    def model(**inputs):
        return torch.zeros(4, 40, 24), {"attn": [None]}

    model.get_normalized_probs = lambda out, log_probs: out[0]
    model.get_targets = lambda sample, out: sample["target"]
    task = make_task()
    with pytest.raises(ValueError, match="--criterion is ClusterformerCrossEntropy.*allowed"):
        make_criterion(task)(model, make_sample(task))


def test_a_negative_weight_is_refused():
    with pytest.raises(ValueError, match="--clustering-loss-weight is -1.0; allowed: 0 or more"):
        make_criterion(make_task(), clustering_loss_weight=-1.0)


@pytest.mark.parametrize(
    ("attention", "rate"), [("window+neural", 0.0), ("window+neural", 0.1), ("window+gated", 0.1)]
)
def test_activation_checkpointing_changes_no_number(attention, rate):
    """Losses that a layer returns keep their gradient, and averages are moved once."""
    results = []
    for checkpoint in (False, True):
        torch.manual_seed(1)
        task = make_task()
        model = make_model(
            task,
            attention=attention,
            checkpoint_activations=checkpoint,
            dropout=rate,
            attention_dropout=rate,
        ).train()
        sample = make_sample(task)
        criterion = make_criterion(task)
        model.set_num_updates(0)
        torch.manual_seed(2)
        found = gradients(model, criterion, sample)
        model.set_num_updates(1)
        results.append((found, {n: b.clone() for n, b in model.named_buffers()}))
    for one, other in zip(*results, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            assert torch.equal(one[name], other[name]), name
    averages = [b for n, b in results[0][1].items() if n.endswith("log_normalizer")]
    assert averages
    assert all(average.abs().max() > 0 for average in averages)


class _LargestTensor(TorchDispatchMode):
    """Remembers how many elements the largest new tensor has."""

    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, torch.Tensor):
                self.numel = max(self.numel, tensor.untyped_storage().nbytes() // 4)
        return out


@pytest.mark.parametrize("spec", ["window", "neural", "window+neural"])
def test_no_square_matrix_exists(spec):
    length = 8192
    task = make_task()
    model = make_model(task, attention=spec, max_target_positions=length, num_clusters=64).train()
    criterion = make_criterion(task)
    with _LargestTensor() as largest:
        loss, _, _ = criterion(model, make_sample(task, batch=1, length=length))
        loss.backward()
    assert largest.numel < length * length / 20


def test_layer_drop_keeps_the_averages_of_dropped_layers(monkeypatch):
    """What is exchanged with other workers has one size, whichever layers were dropped."""
    task = make_task()
    model = make_model(task, attention="neural", decoder_layerdrop=0.5, decoder_layers=4).train()
    criterion = make_criterion(task)
    sizes = set()

    def alone(tensor):
        sizes.add(len(tensor))
        return [tensor]

    monkeypatch.setattr(stack, "workers", lambda: 2)
    monkeypatch.setattr(stack, "gather", alone)
    counts = []
    for update in range(8):
        model.set_num_updates(update)
        loss, _, _ = criterion(model, make_sample(task))
        loss.backward()
        buffers = dict(model.named_buffers())
        counts.append([int(b) for n, b in buffers.items() if n.endswith("updates")])
        assert all(torch.isfinite(b).all() for n, b in buffers.items() if n.endswith("normalizer"))
    assert sizes == {4 * (4 + 1)}
    assert 0 < min(counts[-1]) <= max(counts[-1]) < 8


class TestBytes:
    """The architecture whose heads begin as heads that copy."""

    @staticmethod
    def make(**given) -> ClusterformerLanguageModel:
        args = Namespace(tokens_per_sample=128, **given)
        clusterformer_lm_bytes(args)
        return ClusterformerLanguageModel.build_model(args, make_task())

    def test_it_begins_as_what_copies(self) -> None:
        model = self.make()
        assert model.decoder.embed_positions is None
        for layer in model.decoder.layers:
            attention = layer.self_attn
            assert torch.equal(attention.q_proj.weight, attention.k_proj.weight)
            (kind,) = attention.routers
            assert (kind.options.window, kind.options.clusters, kind.gap) == (32, 16, 32)
            assert kind.reads_qk

    def test_what_is_given_wins(self) -> None:
        model = self.make(short_convolution=2, decoder_learned_pos=True, attention="window(7)")
        assert model.decoder.embed_positions is not None
        for layer in model.decoder.layers:
            attention = layer.self_attn
            assert not torch.equal(attention.q_proj.weight, attention.k_proj.weight)
            assert attention.kinds[0].written == "window(7)"
