"""Clustering on its own: every method finds what is there, and its fits can be kept."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import make_blobs
from sklearn.metrics import adjusted_rand_score
from sklearn.metrics.cluster import contingency_matrix

from examples.clustering.__main__ import majority_accuracy
from examples.clustering.clusters import load_clusters
from examples.clustering.fit import METHODS, NeuralOptions, SomOptions, fit
from fairseq_clusterformer.clustering import NeuralClustering
from fairseq_clusterformer.errors import UserError

NEURAL = NeuralOptions(epochs=10, batch_size=100)
LEARNED = replace(NEURAL, w_c="learned")
QUICK = {"neural": NEURAL, "kmeans": None, "spherical-kmeans": None, "som": SomOptions(epochs=3)}
BLOBS = 4


@pytest.fixture
def blobs() -> tuple[np.ndarray, np.ndarray]:
    """Four of 100 vectors around the points of the axes, in every direction."""
    centres = 10 * np.eye(BLOBS, 6)
    x, y = make_blobs([100] * BLOBS, centers=centres, cluster_std=0.7, random_state=0)
    return x.astype(np.float32), y


@pytest.fixture(params=METHODS)
def method(request) -> str:
    if request.param == "som":
        pytest.importorskip("minisom", reason="minisom is not installed")
    return request.param


def quick_fit(method, x, num_clusters, seed=1):
    return fit(method, x, num_clusters, seed=seed, options=QUICK[method])


def test_blobs_are_recovered(method, blobs):
    """The best of a few seeds finds them exactly: one may begin with two vectors of one blob."""
    x, y = blobs
    scores = [adjusted_rand_score(y, quick_fit(method, x, BLOBS, s).assign(x)) for s in range(6)]
    assert max(scores) == 1.0


def test_more_clusters_than_blobs_never_mix_them(method, blobs):
    x, y = blobs
    clusters = quick_fit(method, x, 16)
    assert clusters.centroids.shape == (16, 6)
    counts = contingency_matrix(y, clusters.assign(x))
    assert ((counts > 0).sum(0) == 1).all()


def test_seeds_decide(method, blobs):
    x, _ = blobs
    torch.manual_seed(5)
    one = quick_fit(method, x, 8)
    torch.manual_seed(6)  # and nothing else does
    again, other = quick_fit(method, x, 8), quick_fit(method, x, 8, seed=2)
    assert torch.equal(one.centroids, again.centroids)
    assert torch.equal(one.assign(x), again.assign(x))
    assert not torch.equal(one.centroids, other.centroids)


@pytest.mark.parametrize(("method", "options"), [*QUICK.items(), ("neural", LEARNED)])
def test_kept_in_a_file(method, options, blobs, tmp_path):
    x, _ = blobs
    clusters = fit(method, x, 8, options=options)
    clusters.save(tmp_path / "clusters.npz")
    loaded = load_clusters(tmp_path / "clusters.npz")
    assert torch.equal(loaded.centroids, clusters.centroids)
    assert torch.equal(loaded.assign(x), clusters.assign(x))


def test_a_vector_is_assigned_alone_as_among_others(method, blobs):
    x, _ = blobs
    clusters = quick_fit(method, x, 8)
    alone = torch.cat([clusters.assign(x[i : i + 1]) for i in range(0, 400, 9)])
    assert torch.equal(alone, clusters.assign(x)[::9])
    with pytest.raises(UserError, match=r"shape \(400, 5\); allowed: \[N, 6\]"):
        clusters.assign(x[:, :5])


@pytest.mark.parametrize("w_c", ["identity", "learned"])
def test_neural_assigns_by_the_equations_over_all_vectors(w_c, blobs):
    """CF22 eq. 2 and 4 over all of x as one sentence, written out."""
    x, _ = blobs
    fitted = fit("neural", x, 8, options=replace(NEURAL, w_c=w_c))
    weight = torch.eye(6).double()
    if w_c == "learned":
        weight = fitted.w_c.double()
        assert not torch.equal(weight, torch.eye(6).double())
    keys = torch.nn.functional.normalize(torch.from_numpy(x).double() @ weight.T, dim=-1)
    centroids = torch.nn.functional.normalize(fitted.centroids.double(), dim=-1)
    u = torch.softmax(centroids @ keys.T / 0.1, dim=1)
    assert torch.equal(fitted.assign(x), u.argmax(0))


def test_neural_learning_lowers_its_loss(blobs):
    x, _ = blobs

    @torch.no_grad()
    def loss(fitted) -> float:
        clustering = NeuralClustering(6, 8)
        clustering.w_c = torch.nn.Identity()
        clustering.centroids.copy_(fitted.centroids)
        return float(clustering(torch.from_numpy(x).unsqueeze(0))[1].clustering_loss)

    begun = fit("neural", x, 8, options=replace(NEURAL, epochs=1, learning_rate=1e-9))
    assert loss(fit("neural", x, 8, options=NEURAL)) < loss(begun) - 0.001


def test_neural_is_the_same_at_any_scale(blobs):
    x, _ = blobs
    small, large = (fit("neural", x * scale, 8, options=NEURAL) for scale in (2.0**-10, 2.0**10))
    assert torch.equal(small.assign(x), large.assign(x))


def test_majority_accuracy_is_that_of_the_contingency_matrix():
    random = np.random.default_rng(0)
    train, test = (random.integers(0, (12, 5), (n, 2)) for n in (70, 90))
    train = train[train[:, 0] != 7]  # a cluster that only the test set meets: always wrong
    counts = contingency_matrix(train[:, 1], train[:, 0])
    label_of = dict(zip(np.unique(train[:, 0]), counts.argmax(0), strict=True))
    right = [label_of.get(cluster) == label for cluster, label in test]
    assert 0 < sum(right) < 90
    assert 7 in test[:, 0]
    parts = [torch.from_numpy(a[:, i].copy()) for a in (train, test) for i in (0, 1)]
    assert majority_accuracy(*parts) == pytest.approx(np.mean(right))
    purity = counts.max(0).sum() / len(train)
    assert majority_accuracy(*parts[:2], *parts[:2]) == pytest.approx(purity)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_clusters": 0}, "--num-clusters is 0; allowed: 1 to N, here 400"),
        ({"method": "dbscan"}, "--method is dbscan; allowed: neural, kmeans"),
        ({"options": SomOptions()}, "options is SomOptions: of neural; allowed: NeuralOptions"),
        ({"options": NeuralOptions(similarity="l2")}, "similarity is l2; allowed: dot, scaled-"),
    ],
)
def test_what_is_not_allowed_is_named(arguments, message, blobs):
    with pytest.raises(UserError, match=message):
        fit(**{"method": "neural", "x": blobs[0], "num_clusters": 4} | arguments)


CENTROIDS = np.zeros((4, 6), np.float32)
KEPT = {"centroids": CENTROIDS, "log_normalizer": CENTROIDS[:, 0], "w_c": np.eye(6, dtype="f4")}
KEPT |= {"similarity": np.array("dot"), "temperature": np.array(0.1)}


@pytest.mark.parametrize(
    "changes",
    [
        *(b"", b"no zip", b"PK\x03\x04 cut off"),
        *({name: None} for name in ("centroids", "log_normalizer", "temperature", "similarity")),
        {"centroids": CENTROIDS[0]},
        {"w_c": np.zeros((6, 5), np.float32)},
        {"w_c": np.eye(6)},
        {"log_normalizer": np.zeros(5, np.float32)},
        {"temperature": np.array("hot")},
        {"similarity": np.array("l2")},
        {"similarity": np.array([None])},
        {"spherical": np.array(True)},
        {"other": np.array(True)},
    ],
)
def test_something_else_than_clusters_is_named(changes, tmp_path):
    path = tmp_path / "clusters.npz"
    if isinstance(changes, bytes):
        path.write_bytes(changes)
    else:
        np.savez(path, **KEPT)
        load_clusters(path)
        np.savez(path, **{k: v for k, v in (KEPT | changes).items() if v is not None})
    with pytest.raises(UserError, match=f"{path}: cannot be read .*; allowed: a file th") as told:
        load_clusters(path)
    assert "\n" not in str(told.value)
