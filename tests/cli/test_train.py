"""fairseq-train: every way of running it."""

import logging
import math
import re
from pathlib import Path

import pytest
import torch
from fairseq.logging import metrics

from fairseq_clusterformer.criterions.fairseq_losses import ClusterformerCrossEntropy
from tests.cli.expected import STATISTICS, assert_trains
from tests.cli.in_process import CLUSTERFORMER, TRAINING, train
from tests.conftest import REPO_ROOT, RunCli

SPECS = ("window*3,neural", "window+neural", "full", "neural")


def test_command_line(byte_data: Path, tmp_path: Path, run_cli: RunCli) -> None:
    """A named architecture, and a plug-in that is given by a relative path."""
    line = f"{TRAINING} --arch clusterformer_lm_tiny --criterion clusterformer_cross_entropy"
    run = run_cli(
        *("fairseq-train", byte_data, *line.split(), "--max-update", 3, "--log-interval", 1),
        *("--save-dir", tmp_path / "saved", "--cpu", "--log-format", "json"),
        user_dir="fairseq_clusterformer",
        cwd=REPO_ROOT,
        fresh=True,
    )
    assert "done training" in run.stdout
    for name in STATISTICS | {"loss", "gnorm"}:
        assert run.stdout.count(f'"train_{name}": ') == 1, run.stdout
        assert run.stdout.count(f'"{name}": ') == 3
    state = torch.load(tmp_path / "saved" / "checkpoint_last.pt", weights_only=True)
    layers = {name.split(".")[2] for name in state["model"] if ".layers." in name}
    assert layers == {"0", "1", "2"}
    centroids = state["model"]["decoder.layers.2.self_attn.routers.1.centroids"]
    assert centroids.shape == (2, 8, 16)  # of the gated half of 4 heads


@pytest.mark.parametrize("spec", SPECS)
def test_attention(spec: str, byte_data: Path, tmp_path: Path) -> None:
    run = train(byte_data, CLUSTERFORMER, tmp_path, "--attention", spec, "--decoder-layers", 4)
    kinds = [
        tuple(type(router).__name__.lower() for router in layer.self_attn.routers)
        for layer in run.model.decoder.layers
    ]
    expected = {
        "window*3,neural": [("window",)] * 3 + [("neural",)],
        "window+neural": [("window", "neural")] * 4,
        "full": [("full",)] * 4,
        "neural": [("neural",)] * 4,
    }
    assert kinds == expected[spec]
    assert_trains(run, clusters="neural" in spec)


@pytest.mark.parametrize(
    "options",
    [
        "--cluster-similarity dot --cluster-temperature 1 --cluster-normalizer running",
        "--cluster-similarity scaled-dot --cluster-temperature 1",
        "--attention neural --cluster-rule leaking-chunk",
        "--attention lsh+routing,window+strided --hash-rounds 3 --stride 8",
        "--attention routing,strided --strided-pattern fixed --checkpoint-activations",
        "--scale-heads --scale-attn --scale-fc --scale-resids --attention-dropout 0.1",
        "--quant-noise-pq 0.1 --quant-noise-pq-block-size 8 --decoder-learned-pos"
        " --layernorm-embedding --store-ema --ema-decay 0.5",
        "--decoder-layers 4 --decoder-layers-to-keep 0,2 --optimizer adafactor --update-freq 2",
        "--attention kmeans --kmeans-bank-size 300 --kmeans-interval 2 --store-ema",
        "--arch clusterformer_lm_llama --attention-sinks 2 --activation-fn swiglu --qk-norm"
        " --rotary-base 500000 --rotary-scaling 8,1,4,32 --separate-documents",
    ],
)
def test_option(options: str, byte_data: Path, tmp_path: Path) -> None:
    assert_trains(train(byte_data, f"{CLUSTERFORMER} {options}", tmp_path))


def test_kmeans_each_epoch(
    byte_data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Before the second of two, each of four updates: once for either layer."""
    line = f"{CLUSTERFORMER} --attention kmeans --kmeans-bank-size 300 --batch-size 80"
    with caplog.at_level(logging.INFO), caplog.at_level(logging.INFO, "fairseq.trainer"):
        train(byte_data, line, tmp_path)
    started = [message for message in caplog.messages if message.startswith("K-Means of")]
    assert started == ["K-Means of 300 states in 4 clusters ..."] * 2
    assert caplog.text.index("begin training epoch 2") < caplog.text.index("K-Means")


ADAPTIVE = (
    "--criterion clusterformer_adaptive_loss --ddp-backend legacy_ddp --adaptive-input"
    " --adaptive-input-cutoff 60,120 --adaptive-softmax-cutoff 60,120 --tie-adaptive-weights"
    " --tie-adaptive-proj"
)


def test_adaptive_loss(byte_data: Path, tmp_path: Path) -> None:
    line = CLUSTERFORMER.replace("--share-decoder-input-output-embed", "")
    assert_trains(train(byte_data, f"{line} {ADAPTIVE}", tmp_path))


@pytest.mark.parametrize("precision", ["--fp16 --fp16-no-flatten-grads", "--amp"])
def test_half_precision(precision: str, byte_data: Path, tmp_path: Path) -> None:
    line = f"{CLUSTERFORMER} {precision} --attention neural"
    run = train(byte_data, line, tmp_path, "--fp16-init-scale", 4)
    assert_trains(run)
    clustering = run.model.decoder.layers[0].self_attn.routers[0].clustering
    assert clustering.log_normalizer.dtype == torch.float32


class TestLayerDrop:
    def test_trains_where_no_layer_that_clusters_is_left(
        self, byte_data: Path, tmp_path: Path
    ) -> None:
        line = f"{CLUSTERFORMER} --decoder-layerdrop 0.5 --decoder-layers 4 --max-update 12"
        line += " --attention window*3,neural --update-freq 2"
        run = train(byte_data, line, tmp_path)
        assert run.mean_loss(-1) < run.mean_loss(0) - 0.1
        assert all(math.isfinite(v) for update in run.updates for v in update.values())
        sizes = {update["clustered_size"] / update["sample_size"] for update in run.updates}
        assert min(sizes) < max(sizes)

    def test_statistics_are_means_over_batches_that_cluster(self) -> None:
        clustered = dict.fromkeys(STATISTICS, torch.tensor(30.0)) | {"clustered_size": 10}
        without = dict.fromkeys(STATISTICS, torch.tensor(0.0)) | {"clustered_size": 0}
        common = {"loss": torch.tensor(1.0), "sample_size": 10, "ntokens": 10, "nsentences": 1}
        with metrics.aggregate(new_root=True) as logged:
            logs = [common | clustered, common | without]
            ClusterformerCrossEntropy.reduce_metrics(logs)
        assert {logged.get_smoothed_value(name) for name in STATISTICS} == {3.0}
        with metrics.aggregate(new_root=True) as logged:
            ClusterformerCrossEntropy.reduce_metrics([common | without])
        assert not STATISTICS & logged.keys()


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kind of docs/extending.md, outside of the package."""
    page = (REPO_ROOT / "docs" / "extending.md").read_text()
    (kind,) = re.findall(r"```python\n([^`]*@register_attention[^`]*)```", page)
    folder = tmp_path_factory.mktemp("plugins") / "my_plugin"
    folder.mkdir()
    (folder / "__init__.py").write_text(f"import fairseq_clusterformer.plugin\n{kind}")
    return folder


INSTALLED = {"PYTHONPATH": str(REPO_ROOT)}


def test_a_kind_of_ones_own_in_a_plug_in_of_ones_own(
    byte_data: Path, tmp_path: Path, plugin: Path, run_cli: RunCli
) -> None:
    """It trains, by an option of its own, and is evaluated."""
    line = f"{CLUSTERFORMER} --attention window+signs,signs(signs=2) --signs 3"
    saved = tmp_path / "saved"
    run = run_cli(
        *("fairseq-train", byte_data, *line.split(), "--save-dir", saved),
        user_dir=plugin,
        env=INSTALLED,
    )
    assert "done training" in run.stdout
    assert "(signs)" not in run.stdout  # it is no model
    state = torch.load(saved / "checkpoint_last.pt", weights_only=True)
    assert state["cfg"]["model"]["signs"] == 3
    run = run_cli(
        *("fairseq-eval-lm", byte_data, "--path", saved / "checkpoint_last.pt"),
        *("--tokens-per-sample", 64, "--gen-subset", "valid", "--cpu"),
        user_dir=plugin,
        env=INSTALLED,
    )
    assert "Perplexity: " in run.stdout
    (tmp_path / "passage").write_text("The cat sat on the mat.")
    run_cli(
        *("clusterformer", "draw", "--user-dir", plugin, "--out", tmp_path / "drawn"),
        *("--checkpoint", saved / "checkpoint_last.pt", "--text", tmp_path / "passage"),
        env=INSTALLED,
    )
    assert (tmp_path / "drawn" / "clusters.png").exists()
    words = [*line.split(), "--signs", 0, "--save-dir", tmp_path / "none"]
    run = run_cli("fairseq-train", byte_data, *words, user_dir=plugin, env=INSTALLED, check=False)
    assert run.stdout.splitlines()[-1] == "ValueError: --signs is 0; allowed: 1 or more"


def test_an_option_of_ones_own_is_in_the_help(plugin: Path, run_cli: RunCli) -> None:
    """Of each architecture; fairseq-train itself prints its help before it adds them."""
    code = (
        "from fairseq import options\n"
        "from fairseq.models import ARCH_MODEL_REGISTRY\n"
        "import my_plugin\n"
        "for arch in ('clusterformer_lm_tiny', 'clusterformer', 'clusterformer_reader'):\n"
        "    parser = options.get_training_parser()\n"
        "    ARCH_MODEL_REGISTRY[arch].add_args(parser)\n"
        "    print(parser.format_help())"
    )
    path = {"PYTHONPATH": f"{REPO_ROOT}:{plugin.parent}"}
    text = " ".join(run_cli("python", "-c", code, env=path).stdout.split())
    assert text.count("--signs SIGNS coordinates whose signs make the cluster") == 3


def test_a_kind_of_ones_own_keeps_what_every_kind_promises(plugin: Path, run_cli: RunCli) -> None:
    """The conformance suite runs on it as on those of the package."""
    (plugin / "as_every_kind.py").write_text(
        "import my_plugin\n"
        "from tests import kinds\n"
        "own = {'signs': 'signs(signs=2)', 'signs, gap': 'signs(gap=3)'}\n"
        "kinds.CAUSAL.update(own)\n"
        "kinds.BIDIRECTIONAL.update(own)\n"
    )
    run = run_cli(
        *(
            "python",
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "my_plugin.as_every_kind",
        ),
        *("-k", "signs", "tests/test_conformance.py"),
        cwd=REPO_ROOT,
        env={"PYTHONPATH": f"{REPO_ROOT}:{plugin.parent}"},
        timeout=600,
    )
    passed = re.search(r"(\d+) passed", run.stdout.splitlines()[-1])
    assert int(passed[1]) > 50, run.stdout
