"""The files of examples/*/config, as fairseq-hydra-train reads them."""

import re
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from fairseq.dataclass.configs import FairseqConfig
from fairseq.models import ARCH_CONFIG_REGISTRY, MODEL_DATACLASS_REGISTRY
from fairseq.registry import REGISTRIES
from fairseq.tasks import TASK_DATACLASS_REGISTRY
from omegaconf import OmegaConf

import fairseq_clusterformer.plugin  # noqa: F401
from tests.cli.in_process import in_two_processes, load_state
from tests.conftest import REPO_ROOT

EXAMPLES = REPO_ROOT / "examples"
CONFIG = EXAMPLES / "language_model" / "config"
ARCHITECTURES = {
    "bytes": "clusterformer_lm_bytes",
    "enwik8": "clusterformer_lm_enwik8",
    "wikitext103": "clusterformer_lm_wiki103",
    "mr": "clusterformer_classifier_base",
    "multi30k": "clusterformer_tiny",
    "minilm": "clusterformer_reader_minilm",
    "quasar_t": "clusterformer_reader_large",
    "pretraining": "etc_masked_lm_base",
    **dict.fromkeys(("hotpotqa", "wikihop", "natural_questions"), "etc_reader_base"),
}
#: of the papers, on 8 GPUs
BATCHES = {"quasar_t": 160, "pretraining": 512, "hotpotqa": 32, "wikihop": 64}
BATCHES |= {"natural_questions": 64}
#: what a recipe may say otherwise than its architecture
OWN = {
    *("add_bos_token", "base_shuffle", "decoder_input_dim", "decoder_output_dim", "lift"),
    *("share_all_embeddings", "pretrained", "shared_softmax", "checkpoint_activations"),
    *("dropout", "attention_dropout", "classifier_dropout", "num_clusters", "kmeans_interval"),
    *("hard_global", "supporting_facts", "structure", "paragraphs_alone", "narrow_cls"),
}
SMALLER = (
    "model.decoder_layers=3 model.decoder_embed_dim=32 model.decoder_input_dim=32"
    " model.decoder_output_dim=32 model.decoder_ffn_embed_dim=32 model.decoder_attention_heads=4"
    " model.attention_window=8 model.num_clusters=4 task.tokens_per_sample=64"
    " optimization.update_freq=[1] optimization.max_update=6"
    " dataset.num_workers=0 common.cpu=true common.log_interval=1 common.log_format=json"
    " distributed_training.distributed_world_size=1 lr_scheduler.warmup_updates=0"
).split()


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*/config/*.yaml")), ids=lambda p: p.stem)
def test_a_recipe(path):
    """Every option is there; the model is the architecture, and 8 GPUs have the paper's batch.
    The jobs of a sweep have folders; mistakes are one line."""
    given = OmegaConf.to_container(OmegaConf.load(path))
    hydra = given.pop("hydra")
    assert hydra["sweep"] == {"dir": "${checkpoint.save_dir}"}
    assert hydra["searchpath"] == ["pkg://fairseq_clusterformer.config"]
    dataclasses = {name: of["dataclass_registry"] for name, of in REGISTRIES.items()}
    dataclasses |= {"task": TASK_DATACLASS_REGISTRY, "model": MODEL_DATACLASS_REGISTRY}
    model = MODEL_DATACLASS_REGISTRY[given["model"]["_name"]]
    for name, section in given.items():
        chosen = section.pop("_name", None)
        known = dataclasses[name][chosen] if chosen else vars(FairseqConfig())[name]
        assert section.keys() <= known.__dataclass_fields__.keys(), name
    if architecture := ARCHITECTURES.get(path.stem):
        ARCH_CONFIG_REGISTRY[architecture](named := Namespace())
        expected = {**vars(model()), **vars(named)}
        found = {**vars(model()), **given["model"]}
        differ = {name for name, value in expected.items() if found[name] != value}
        # a language model's is spelled out whole
        assert differ <= (OWN if path.parent != CONFIG else {"add_bos_token", "base_shuffle"})
    if batch := BATCHES.get(path.stem):
        updates = given["optimization"]["update_freq"][0]
        assert 8 * given["dataset"]["batch_size"] * updates == batch


def test_a_sweep_runs(byte_data, tmp_path, run_cli):
    """As its first lines say, in its own precision; each job has its best checkpoint, though the
    first one is better."""
    more, rates = ["dataset.batch_size=4"], ["0.005", "0.0001"]
    # a comma needs quotes; also a decoder of Llama's form
    more += ["model.attention='window*2,neural+window'", "++model.attention_sinks=2"]
    more += ["++model.norm=rms", "++model.activation_fn=swiglu", "++model.biases=none"]
    more += ["++model.positions=rotary", "++model.rotary_scaling='8,1,4,32'"]
    before = written_by_hydra()
    run = run_cli(
        *("fairseq-hydra-train", "-m", "--config-dir", "examples/language_model/config"),
        *("--config-name", "bytes", f"task.data={byte_data}", f"checkpoint.save_dir={tmp_path}"),
        *(*SMALLER, *more, "optimization.lr=" + ",".join(f"[{rate}]" for rate in rates)),
        user_dir=None,
        cwd=REPO_ROOT,
    )
    losses = [float(loss) for loss in re.findall(r'"loss": "([\d.]+)"', run.stdout)]
    assert len(losses) == 6 * len(rates)
    assert losses[5] < losses[0] - 0.1
    assert len(re.findall(r'"cluster_effective": "[\d.]+"', run.stdout)) == len(losses)
    # its log stands beside the checkpoints
    assert written_by_hydra() == before
    assert not [*tmp_path.glob("*.pt")]
    for job, rate in enumerate(rates):
        folder = tmp_path / str(job)
        assert (folder / ".hydra" / "config.yaml").exists()
        for which in ("best", "last"):
            state = load_state(folder / f"checkpoint_{which}.pt")
            assert state["cfg"]["optimization"]["lr"] == [float(rate)]
            assert state["optimizer_history"][-1]["num_updates"] == 6
    model = load_state(tmp_path / "0" / "checkpoint_last.pt")["model"]
    clustered = {name: t for name, t in model.items() if name.endswith(".log_normalizer")}
    name = "decoder.layers.2.self_attn.routers.0.clustering.log_normalizer"
    assert clustered.keys() == {name}
    # fairseq saves in float32 what it has in half precision; an average is never in half
    in_half = [
        torch.equal(tensor, tensor.bfloat16().float())
        for tensor in (model["decoder.layers.0.fc1.weight"], *clustered.values())
    ]
    in_half_there = OmegaConf.load(CONFIG / "bytes.yaml").common.get("bf16")
    assert in_half == [bool(in_half_there), False]


@pytest.mark.whole
def test_two_processes_of_hydra(byte_data, tmp_path, run_cli):
    options = [f"task.data={byte_data}", f"checkpoint.save_dir={tmp_path}", *SMALLER]
    options = [option for option in options if "world_size" not in option]
    words = ["--config-dir", CONFIG, "--config-name", "bytes", *options]
    said = in_two_processes(run_cli, "fairseq-hydra-train", *words)
    assert "training on 2 devices" in said
    state = load_state(tmp_path / "checkpoint_last.pt")
    assert state["cfg"]["distributed_training"]["distributed_world_size"] == 2


def written_by_hydra() -> set[Path]:
    """What it would leave where the command runs, did the files not say otherwise."""
    names = ("outputs", ".hydra", "hydra_train.log", "checkpoints")
    return {REPO_ROOT / name for name in names if (REPO_ROOT / name).exists()}
