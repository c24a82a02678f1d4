"""fairseq-train: every way of running it."""

import logging
import math
import re
from pathlib import Path

import pytest
import torch
from fairseq.logging import metrics

from fairseq_clusterformer.criterions.fairseq_losses import ClusterformerCrossEntropy
from tests.cli.expected import LOSSES, STATISTICS, assert_logged, assert_trains
from tests.cli.in_process import (
    CLUSTERED_TRANSLATION,
    CLUSTERFORMER,
    TRAINING,
    generate,
    load_state,
    train,
)
from tests.conftest import REPO_ROOT


def test_command_line(byte_data, tmp_path, run_cli):
    """A named architecture, and a plug-in that is given by a relative path; nothing warns."""
    line = f"{TRAINING} --arch clusterformer_lm_tiny --criterion clusterformer_cross_entropy"
    run = run_cli(
        *("fairseq-train", byte_data, *line.split(), "--max-update", 3, "--log-interval", 1),
        *("--save-dir", tmp_path / "saved", "--cpu", "--log-format", "json"),
        user_dir="fairseq_clusterformer",
        cwd=REPO_ROOT,
        fresh=True,
        env={"PYTHONWARNINGS": ""},
    )
    assert "done training" in run.stdout
    assert re.findall(r".*\b\w*Warning: ?.*", run.stdout) == []
    for name in STATISTICS - LOSSES | {"loss", "gnorm"}:
        assert run.stdout.count(f'"train_{name}": ') == 1, run.stdout
        assert run.stdout.count(f'"{name}": ') == 3
    for name in LOSSES:  # which gating has not
        assert f'{name}": ' not in run.stdout
    state = torch.load(tmp_path / "saved" / "checkpoint_last.pt", weights_only=True)
    layers = {name.split(".")[2] for name in state["model"] if ".layers." in name}
    assert layers == {"0", "1", "2"}
    centroids = state["model"]["decoder.layers.2.self_attn.routers.1.centroids"]
    assert centroids.shape == (2, 8, 16)  # of the gated half of 4 heads


ADAPTIVE = (
    "--criterion clusterformer_adaptive_loss --ddp-backend legacy_ddp --adaptive-input"
    " --adaptive-input-cutoff 60,120 --adaptive-softmax-cutoff 60,120 --tie-adaptive-weights"
    " --tie-adaptive-proj"
)
HALF = "--fp16 --fp16-no-flatten-grads --fp16-init-scale 4"
OPTIONS = {
    "lm": (
        "--cluster-similarity dot --cluster-temperature 1 --cluster-normalizer running --amp",
        "--attention neural --cluster-rule leaking-chunk",
        "--attention lsh+routing,window+strided --hash-rounds 3 --stride 8 --decoder-layers 3"
        " --strided-pattern fixed --checkpoint-activations",
        "--scale-heads --scale-attn --scale-fc --scale-resids --attention-dropout 0.1"
        " --quant-noise-pq 0.1 --quant-noise-pq-block-size 8 --decoder-learned-pos"
        " --layernorm-embedding --store-ema --ema-decay 0.5",
        "--decoder-layers 4 --decoder-layers-to-keep 0,2 --optimizer adafactor --update-freq 2",
        "--attention kmeans --kmeans-bank-size 300 --kmeans-interval 2 --store-ema",
        f"{HALF} --attention neural",
        "--arch clusterformer_lm_llama --attention-sinks 2 --activation-fn swiglu --qk-norm"
        " --rotary-base 500000 --rotary-scaling 8,1,4,32 --separate-documents",
    ),
    "translation": (
        "--encoder-layerdrop 0.3 --decoder-layerdrop 0.3 --encoder-layers 4 --own-centroids"
        " --encoder-cluster-rule recent --encoder-normalize-before --decoder-normalize-before"
        " --checkpoint-activations",
        "--encoder-attention lsh+routing,strided --decoder-attention neural"
        " --decoder-cluster-rule leaking-chunk",
    ),
    "masked_lm": ("",),
    "classifier": (
        "--own-centroids --encoder-cluster-rule recent --encoder-normalize-before"
        " --encoder-learned-pos --layernorm-embedding --encoder-layerdrop 0.3 --update-freq 2"
        " --encoder-layers 4 --encoder-layers-to-keep 0,2 --checkpoint-activations"
        " --attention-dropout 0.1 --classifier-dropout 0.3 --classifier-hidden-dim 8",
        "--num-classes 3 --max-positions 14 --activation-fn gelu --max-tokens 100"
        f" --no-token-positional-embeddings --no-shuffle {HALF}",
    ),
    "reader": (
        "--update-freq 2 --checkpoint-activations --dropout 0.2 --amp --span-marginal apart",
        "--max-tokens 200 --batch-size 100 --no-shuffle --num-workers 2 --max-positions 0"
        f" --max-positions-inference 2000000000 --max-answer-length 5 {HALF}",
    ),
    "etc_reader": (
        "--supporting-facts --structure text --hard-global --narrow-cls --checkpoint-activations",
        "--supporting-facts --max-distance 0 --max-positions 9 --max-positions-inference 9"
        " --projections shared --amp",
    ),
}


#: of each task; all are trained by --all
SAMPLE = {"lm": (0, 2, 5, 6), "translation": (0,), "classifier": (0,), "reader": (0,)}


@pytest.mark.parametrize(
    ("task", "options"),
    [
        pytest.param(task, each, marks=() if i in SAMPLE.get(task, (0,)) else pytest.mark.whole)
        for task, many in OPTIONS.items()
        for i, each in enumerate(many)
    ],
)
def test_option(task, options, train_task):
    """All numbers are finite; what takes enough updates learns."""
    if task == "translation":
        options += " --max-update 14"
    run = train_task(task, options)
    assert len(run.updates) == {"translation": 14, "etc_reader": 2}.get(task, 6)
    for log in run.updates + run.valid:
        assert all(map(math.isfinite, log.values()))
    if task in ("lm", "masked_lm"):
        assert_trains(run)
    elif task == "translation":  # the best of a few: LayerDrop makes single updates worse
        assert min(run.mean_loss(i) for i in range(-5, 0)) < run.mean_loss(0) - 0.1
    if task in ("translation", "reader"):
        assert_logged(run)
    if HALF in options and task == "lm":
        clustering = run.model.decoder.layers[0].self_attn.routers[0].clustering
        assert clustering.log_normalizer.dtype == torch.float32
    elif task == "etc_reader":
        scored = sum(log["facts_scored"] for log in run.valid)
        assert scored == (16 if "--supporting-facts" in options else 0)


def test_an_average_that_starts_late(byte_data, tmp_path):
    """It is the newest model until then, whose observations may be the logarithm of 0."""
    line = f"{CLUSTERFORMER} --attention neural,taught+kmeans --kmeans-bank-size 300 --ema-fp32"
    line += " --store-ema --ema-start-update 99 --max-update 2"
    run = train(byte_data, line, tmp_path)
    average, newest = run.trainer.ema.get_model().state_dict(), run.model.state_dict()
    assert "decoder.layer_norm.weight" in average  # of decoders that normalise first
    for name, tensor in newest.items():
        if torch.is_tensor(tensor):
            torch.testing.assert_close(average[name], tensor, rtol=0, atol=0)


def test_kmeans_each_epoch(byte_data, tmp_path, caplog):
    """Before the second of two, each of four updates: once for either layer."""
    line = f"{CLUSTERFORMER} --attention kmeans --kmeans-bank-size 300 --batch-size 80"
    with caplog.at_level(logging.INFO), caplog.at_level(logging.INFO, "fairseq.trainer"):
        train(byte_data, line, tmp_path)
    started = [message for message in caplog.messages if message.startswith("K-Means of")]
    assert started == ["K-Means of 300 states in 4 clusters ..."] * 2
    assert caplog.text.index("begin training epoch 2") < caplog.text.index("K-Means")


def test_adaptive_loss(byte_data, tmp_path):
    line = CLUSTERFORMER.replace("--share-decoder-input-output-embed", "")
    assert_trains(train(byte_data, f"{line} {ADAPTIVE}", tmp_path))


def test_best_checkpoint_by_bleu(parallel_data, translator, tmp_path):
    """Large steps ruin the model after its first update, whose step is 0."""
    line = (
        f"{CLUSTERED_TRANSLATION} --finetune-from-model {translator} --max-update 2"
        " --lr-scheduler inverse_sqrt --warmup-init-lr 0 --warmup-updates 1 --lr 9"
        " --save-interval-updates 1 --eval-bleu --eval-tokenized-bleu"
        " --best-checkpoint-metric bleu --maximize-best-checkpoint-metric"
    )
    train(parallel_data, line, tmp_path, "--eval-bleu-args", '{"beam": 2}')
    best, end = (load_state(tmp_path / f"checkpoint_{n}.pt") for n in ("best", "last"))
    numbers = [state["optimizer_history"][-1]["num_updates"] for state in (best, end)]
    assert numbers == [1, 2]
    bleu = best["extra_state"]["best"]
    assert bleu == end["extra_state"]["best"] > end["extra_state"]["val_loss"] + 5
    # what fairseq-generate scores
    line = "--gen-subset valid --beam 2 --scoring sacrebleu --sacrebleu-tokenizer none"
    lines = generate(
        *(parallel_data, tmp_path / "checkpoint_best.pt", f"--task translation {line}"),
        *(tmp_path, "--batch-size", 24),
    )
    assert f" = {bleu:.2f} " in lines[-1]


def test_statistics_are_means_over_batches_that_cluster():
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
    kind, *_ = re.findall(r"```python\n([^`]*@register_attention[^`]*)```", page)
    folder = tmp_path_factory.mktemp("plugins") / "my_plugin"
    folder.mkdir()
    (folder / "__init__.py").write_text(f"{kind}\nimport fairseq_clusterformer.plugin\n")
    return folder


def test_a_kind_of_ones_own_in_a_plug_in_of_ones_own(byte_data, tmp_path, plugin, run_cli):
    """It trains, by an option of its own, and is drawn."""
    words = [*CLUSTERFORMER.split(), *"--attention window+signs,signs(signs=2) --signs".split()]
    saved, out = tmp_path / "saved", tmp_path / "drawn"
    how = {"user_dir": plugin, "env": {"PYTHONPATH": str(REPO_ROOT)}}
    run = run_cli("fairseq-train", byte_data, *words, 3, "--save-dir", saved, **how)
    assert "done training" in run.stdout
    assert "(signs)" not in run.stdout  # it is no model
    state = torch.load(saved / "checkpoint_last.pt", weights_only=True)
    assert state["cfg"]["model"]["signs"] == 3
    (tmp_path / "passage").write_text("The cat sat on the mat.")
    read = ("--checkpoint", saved / "checkpoint_last.pt", "--text", tmp_path / "passage")
    run_cli("clusterformer", "draw", "--user-dir", plugin, "--out", out, *read, env=how["env"])
    assert (out / "clusters.html").exists()
    run = run_cli("fairseq-train", byte_data, *words, 0, "--save-dir", out, **how, check=False)
    assert run.stdout.splitlines()[-1] == "ValueError: --signs is 0; allowed: 1 or more"


@pytest.mark.whole
def test_a_kind_of_ones_own_keeps_what_every_kind_promises(plugin, run_cli):
    """The conformance suite runs on it as on those of the package."""
    (plugin / "as_every_kind.py").write_text(
        "import my_plugin\n"
        "from tests import kinds\n"
        "own = {'signs': 'signs(signs=2)', 'signs, gap': 'signs(gap=3)'}\n"
        "kinds.CAUSAL.update(own)\n"
        "kinds.BIDIRECTIONAL.update(own)\n"
    )
    words = "python -m pytest -q -p no:cacheprovider -p my_plugin.as_every_kind -k signs -m"
    run = run_cli(
        *(*words.split(), "", "tests/test_conformance.py", "tests/test_steps.py"),
        cwd=REPO_ROOT,
        env={"PYTHONPATH": f"{REPO_ROOT}:{plugin.parent}"},
        timeout=600,
    )
    passed = re.search(r"(\d+) passed", run.stdout.splitlines()[-1])
    assert int(passed[1]) > 40, run.stdout
