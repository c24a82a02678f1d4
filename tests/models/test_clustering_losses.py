"""Which parameters learn from which term of CF22 eq. 17, and what its weights mean."""

from collections.abc import Iterable

import pytest
import torch

from fairseq_clusterformer.metrics.clusters import summary
from tests.models.small import gradients, lm_sample, make_criterion, make_lm

LAYERS = 3
WEIGHTS = {"mu": 0.7, "nu": 0.3, "task_weight": 2.0}


def make_model(attention: str = "neural", **options):
    """Every layer clusters its normalised input."""
    return make_lm(attention=attention, decoder_layers=LAYERS, width=16, **options).train()


def clustering_parameters(layers: Iterable[int]) -> set[str]:
    return {
        f"decoder.layers.{i}.self_attn.routers.0.clustering.{name}"
        for i in layers
        for name in ("centroids", "w_c.weight")
    }


def heard(names: Iterable[str]) -> set[str]:
    """A key's bias shifts all logits of a query alike: softmax does not see it."""
    return {name for name in names if not name.endswith("k_proj.bias")}


@pytest.mark.parametrize(("mu", "nu"), [(1.0, 0.0), (0.0, 1.0)])
def test_clustering_losses_teach_clusters_and_what_is_below_them(mu, nu):
    """Centroids, W_c and all layers below; not what comes after the last clustering."""
    model = make_model()
    criterion = make_criterion(mu=mu, nu=nu, task_weight=0.0)
    learning = gradients(model, criterion, lm_sample((12, 9)))
    top = f"decoder.layers.{LAYERS - 1}."
    below = {
        name
        for name, _ in model.named_parameters()
        if not name.startswith((top, "decoder.layer_norm.")) and ".routers." not in name
    } | {f"{top}self_attn_layer_norm.weight", f"{top}self_attn_layer_norm.bias"}
    assert heard(learning) == heard(below | clustering_parameters(range(LAYERS)))


def test_the_task_teaches_no_cluster():
    """No centroid and no W_c: the assignment carries no gradient (CF22 eq. 4)."""
    model = make_model()
    learning = gradients(model, make_criterion(mu=0.0, nu=0.0), lm_sample((12, 9)))
    everything = {name for name, _ in model.named_parameters()}
    routing = clustering_parameters(range(LAYERS))
    assert routing < everything
    assert heard(learning) == heard(everything - routing)


def test_total_is_equation_17():
    """mu L1 + nu L2 + lambda L_task, each a mean, as fairseq divides by the sample size."""
    model, batch = make_model(), lm_sample((12, 9))
    loss, sample_size, logged = make_criterion(**WEIGHTS)(model, batch)
    _, extra = model(**batch["net_input"])
    clustering = summary(extra["reports"])
    expected = (
        0.7 * clustering["clustering_loss"]
        + 0.3 * clustering["sorting_loss"]
        + 2.0 * logged["loss"] / sample_size
    )
    torch.testing.assert_close(loss / sample_size, expected)


def test_a_dense_model_is_refused_by_name():
    def model(**inputs):
        return torch.zeros(4, 40, 24), {"attn": [None]}

    model.get_normalized_probs = lambda out, log_probs: out[0]
    model.get_targets = lambda sample, out: sample["target"]
    with pytest.raises(ValueError, match="--criterion is ClusterformerCrossEntropy.*allowed"):
        make_criterion()(model, lm_sample())
