"""Which parameters learn from which term of CF22 eq. 17, and what its weights mean."""

from collections.abc import Iterator

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.tasks.language_modeling import LanguageModelingConfig, LanguageModelingTask
from torch import Tensor, nn

from fairseq_clusterformer.clustering import summary
from fairseq_clusterformer.criterions.fairseq_losses import (
    ClusterformerCrossEntropy,
    ClusterformerCrossEntropyConfig,
)
from fairseq_clusterformer.models.clusterformer_lm import (
    ClusterformerLanguageModel,
    ClusterformerLanguageModelConfig,
)

LAYERS = 3
Sample = dict


@pytest.fixture
def task() -> LanguageModelingTask:
    dictionary = Dictionary()
    for i in range(20):
        dictionary.add_symbol(str(i))
    return LanguageModelingTask(LanguageModelingConfig(), dictionary)


def build_model(task: LanguageModelingTask, **options) -> ClusterformerLanguageModel:
    torch.manual_seed(0)
    config = ClusterformerLanguageModelConfig(
        decoder_layers=LAYERS,
        decoder_embed_dim=16,
        decoder_input_dim=16,
        decoder_output_dim=16,
        decoder_ffn_embed_dim=16,
        decoder_attention_heads=2,
        attention_window=4,
        num_clusters=3,
        dropout=0.0,
        **{"add_bos_token": False, "max_target_positions": 64, "tokens_per_sample": 64},
        **options,
    )
    return ClusterformerLanguageModel.build_model(config, task).train()


def build_criterion(task, *, mu: float, nu: float, task_weight: float):
    config = ClusterformerCrossEntropyConfig(
        clustering_loss_weight=mu,
        centroid_sorting_loss_weight=nu,
        task_loss_weight=task_weight,
        sentence_avg=False,
    )
    return ClusterformerCrossEntropy.build_criterion(config, task)


def samples(lengths: list[int], seed: int = 1) -> Sample:
    """A batch of rows of these lengths, padded on the right."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(4, 24, (len(lengths), max(lengths) + 1), generator=generator)
    padding = torch.arange(max(lengths)) >= torch.tensor(lengths)[:, None]
    return {
        "net_input": {
            "src_tokens": rows[:, :-1].masked_fill(padding, 1),
            "src_lengths": torch.tensor(lengths),
        },
        "target": rows[:, 1:].masked_fill(padding, 1),
        "ntokens": sum(lengths),
    }


def gradients(model: nn.Module, criterion: nn.Module, *batches: Sample) -> dict[str, Tensor]:
    """As fairseq's trainer has them: summed over batches, divided by the sum of sample sizes."""
    model.zero_grad()
    total = 0
    for batch in batches:
        loss, sample_size, _ = criterion(model, batch)
        loss.backward()
        total += sample_size
    return {
        name: p.grad / total
        for name, p in model.named_parameters()
        if p.grad is not None and p.grad.abs().max() > 1e-9
    }


def clustering_parameters(layers: Iterator[int]) -> set[str]:
    return {
        f"decoder.layers.{i}.self_attn.routers.0.clustering.{name}"
        for i in layers
        for name in ("centroids", "w_c.weight")
    }


class TestWhoLearnsFromWhat:
    """Every layer clusters its normalised input (``decoder_normalize_before``)."""

    @pytest.fixture
    def model(self, task):
        options = {"attention": "neural", "decoder_normalize_before": True}
        return build_model(task, share_decoder_input_output_embed=True, **options)

    @staticmethod
    def below_the_last_clustering(model: nn.Module) -> set[str]:
        """All that the input of the last layer's attention is computed from."""
        top = f"decoder.layers.{LAYERS - 1}."
        return {
            name
            for name, _ in model.named_parameters()
            if not name.startswith((top, "decoder.layer_norm.")) and ".routers." not in name
        } | {f"{top}self_attn_layer_norm.weight", f"{top}self_attn_layer_norm.bias"}

    @pytest.mark.parametrize(("mu", "nu"), [(1.0, 0.0), (0.0, 1.0)])
    def test_clustering_loss_alone(self, mu: float, nu: float, task, model) -> None:
        """Centroids, W_c and all layers below; not what comes after the last clustering."""
        criterion = build_criterion(task, mu=mu, nu=nu, task_weight=0.0)
        learning = gradients(model, criterion, samples([12, 9])).keys()
        # a key's bias shifts all logits of a query alike: softmax does not see it
        allowed = self.below_the_last_clustering(model) | clustering_parameters(range(LAYERS))
        optional = {name for name in allowed if name.endswith("k_proj.bias")}
        assert learning - optional == allowed - optional

    def test_task_alone(self, task, model) -> None:
        """No centroid and no W_c: the assignment carries no gradient (CF22 eq. 4)."""
        criterion = build_criterion(task, mu=0.0, nu=0.0, task_weight=1.0)
        learning = gradients(model, criterion, samples([12, 9])).keys()
        everything = {name for name, _ in model.named_parameters()}
        routing = clustering_parameters(range(LAYERS))
        assert routing < everything
        optional = {name for name in everything if name.endswith("k_proj.bias")}
        assert learning - optional == everything - routing - optional

    def test_layers_without_clusters_do_not_count(self, task) -> None:
        """The losses are means over the layers that cluster: the same at any depth."""
        criterion = build_criterion(task, mu=1.0, nu=1.0, task_weight=0.0)
        model = build_model(task, attention="neural,window,full")
        learning = gradients(model, criterion, samples([12])).keys()
        assert learning >= clustering_parameters([0])
        assert not any(name.startswith("decoder.layers.1") for name in learning)
        _, extra = model(samples([12])["net_input"]["src_tokens"])
        report = summary(extra["reports"])
        router = model.decoder.layers[0].self_attn.routers[0]
        seen = {}
        router.register_forward_hook(lambda _, __, out: seen.update(report=out.report))
        model(samples([12])["net_input"]["src_tokens"])
        assert torch.equal(report["clustering_loss"], seen["report"].clustering_loss)


WEIGHTS = {"mu": 0.7, "nu": 0.3, "task_weight": 2.0}


def join(*batches: Sample) -> Sample:
    """One batch of several of one width."""
    return {
        "net_input": {
            name: torch.cat([batch["net_input"][name] for batch in batches])
            for name in ("src_tokens", "src_lengths")
        },
        "target": torch.cat([batch["target"] for batch in batches]),
        "ntokens": sum(batch["ntokens"] for batch in batches),
    }


class TestWeights:
    @pytest.mark.parametrize("normalizer", ["average", "running"])
    def test_mean_the_same_at_any_batch_size(self, normalizer: str, task) -> None:
        """Two batches, even of different numbers of tokens, accumulated or as one."""
        model = build_model(task, attention="neural", cluster_normalizer=normalizer).double()
        criterion = build_criterion(task, **WEIGHTS)
        first, second = samples([12, 12], seed=1), samples([12, 3], seed=2)
        parts = gradients(model, criterion, first, second)
        whole = gradients(model, criterion, join(first, second))
        assert parts.keys() == whole.keys()
        for name, gradient in whole.items():
            torch.testing.assert_close(parts[name], gradient, rtol=1e-9, atol=1e-12)

    def test_total_is_equation_17(self, task) -> None:
        """mu L1 + nu L2 + lambda L_task, each a mean, as fairseq divides by the sample size."""
        model = build_model(task, attention="neural")
        batch = samples([12, 9])
        loss, sample_size, logged = build_criterion(task, **WEIGHTS)(model, batch)
        _, extra = model(**batch["net_input"])
        clustering = summary(extra["reports"])
        expected = (
            0.7 * clustering["clustering_loss"]
            + 0.3 * clustering["sorting_loss"]
            + 2.0 * logged["loss"] / sample_size
        )
        torch.testing.assert_close(loss / sample_size, expected)

    def test_not_in_validation(self, task) -> None:
        model = build_model(task, attention="neural").eval()
        batch = samples([12, 9])
        with torch.no_grad():
            loss, _, logged = build_criterion(task, **WEIGHTS)(model, batch)
            expected, _, _ = build_criterion(task, mu=0, nu=0, task_weight=1)(model, batch)
        assert torch.equal(loss, expected)
        assert torch.equal(loss, logged["loss"])


@pytest.mark.parametrize("weights", [WEIGHTS, {"mu": 1.0, "nu": 1.0, "task_weight": 0.0}])
def test_gradients_survive_activation_checkpoints(weights: dict, task) -> None:
    """A loss that is kept on a module would lose its gradient without a word."""
    criterion = build_criterion(task, **weights)
    options = {"attention": "window+neural", "attention_dropout": 0.2}
    found = []
    for checkpointed in (False, True):
        model = build_model(task, checkpoint_activations=checkpointed, **options)
        torch.manual_seed(1)
        found.append(gradients(model, criterion, samples([12, 9])))
    assert found[0].keys() == found[1].keys()
    for name, gradient in found[0].items():
        assert torch.equal(gradient, found[1][name]), name
