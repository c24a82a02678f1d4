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
from omegaconf import DictConfig, OmegaConf

from fairseq_clusterformer.models.clusterformer_lm import ClusterformerLanguageModelConfig
from tests.cli.in_process import in_two_processes, load_state
from tests.conftest import REPO_ROOT

EXAMPLES = REPO_ROOT / "examples"
CONFIG = EXAMPLES / "language_model" / "config"
ARCHITECTURES = {
    "bytes": "clusterformer_lm_bytes",
    "enwik8": "clusterformer_lm_enwik8",
    "wikitext103": "clusterformer_lm_wiki103",
}
SMALLER = (
    "model.decoder_layers=3 model.decoder_embed_dim=32 model.decoder_input_dim=32"
    " model.decoder_output_dim=32 model.decoder_ffn_embed_dim=32 model.decoder_attention_heads=4"
    " model.attention_window=8 model.num_clusters=4 task.tokens_per_sample=64"
    " optimization.update_freq=[1] optimization.max_update=6"
    " dataset.num_workers=0 common.cpu=true common.log_interval=1 common.log_format=json"
    " distributed_training.distributed_world_size=1 lr_scheduler.warmup_updates=0"
).split()


def read(name: str) -> DictConfig:
    return OmegaConf.load(CONFIG / f"{name}.yaml")


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_model_is_the_named_architecture(name):
    """What the file says and what the model's options default to is what --arch would train."""
    config, expected = ClusterformerLanguageModelConfig(), ClusterformerLanguageModelConfig()
    given = OmegaConf.to_container(read(name).model)
    assert given.pop("_name") == "clusterformer_lm"
    assert given.keys() <= vars(config).keys()
    vars(config).update(given)
    architecture = Namespace()
    ARCH_CONFIG_REGISTRY[ARCHITECTURES[name]](architecture)
    vars(expected).update(vars(architecture))
    differences = {
        option: (getattr(config, option), value)
        for option, value in vars(expected).items()
        if option not in ("add_bos_token", "base_shuffle") and getattr(config, option) != value
    }
    assert differences == {}


@pytest.mark.parametrize(
    ("folder", "name", "architecture", "batch"),
    [
        ("question_answering", "quasar_t", "clusterformer_reader_large", 160),
        ("classification", "mr", "clusterformer_classifier_base", None),
        ("etc", "pretraining", "etc_masked_lm_base", 512),
        ("etc", "hotpotqa", "etc_reader_base", 32),
        ("etc", "wikihop", "etc_reader_base", 64),
        ("etc", "natural_questions", "etc_reader_base", 64),
    ],
)
def test_recipe_of_a_paper(folder, name, architecture, batch):
    """Every option is there; the model is the architecture, and 8 GPUs have the paper's batch."""
    given = OmegaConf.load(EXAMPLES / folder / "config" / f"{name}.yaml")
    dataclasses = {name: of["dataclass_registry"] for name, of in REGISTRIES.items()}
    dataclasses |= {"task": TASK_DATACLASS_REGISTRY, "model": MODEL_DATACLASS_REGISTRY}
    common = vars(FairseqConfig())
    del given.hydra
    for name, section in given.items():
        chosen = section.pop("_name", None)
        if name == "model":
            config = MODEL_DATACLASS_REGISTRY[chosen]()
        known = dataclasses[name][chosen] if chosen else common[name]
        assert section.keys() <= known.__dataclass_fields__.keys(), name
    vars(config).update(given.model)
    expected = Namespace()
    ARCH_CONFIG_REGISTRY[architecture](expected)
    assert vars(expected).items() <= vars(config).items()
    if batch:
        assert 8 * given.dataset.batch_size * given.optimization.update_freq[0] == batch


@pytest.mark.parametrize("name", ["bytes", pytest.param("wikitext103", marks=pytest.mark.whole)])
def test_runs(name, byte_data, tmp_path, run_cli):
    """As its first lines say, in its own precision, with its own optimizer and criterion."""
    more = ["optimization.lr=[0.005]", "dataset.batch_size=4"]
    if name == "bytes":  # a comma needs quotes; also a decoder of Llama's form
        more += ["model.attention='window*2,neural+window'", "++model.attention_sinks=2"]
        more += ["++model.norm=rms", "++model.activation_fn=swiglu", "++model.biases=none"]
        more += ["++model.positions=rotary", "++model.rotary_scaling='8,1,4,32'"]
    if name == "wikitext103":
        more += ["dataset.max_tokens=256", "+lr_scheduler.max_update=6", "optimization.lr=[0.1]"]
        more += [f"model.adaptive_{part}_cutoff='60,120'" for part in ("input", "softmax")]
    before = written_by_hydra()
    run = run_cli(
        *("fairseq-hydra-train", "--config-dir", "examples/language_model/config"),
        *("--config-name", name, f"task.data={byte_data}", f"checkpoint.save_dir={tmp_path}"),
        *(*SMALLER, *more),
        user_dir=None,
        cwd=REPO_ROOT,
    )
    losses = [float(loss) for loss in re.findall(r'"loss": "([\d.]+)"', run.stdout)]
    assert len(losses) == 6
    assert losses[-1] < losses[0] - 0.1
    assert len(re.findall(r'"cluster_effective": "[\d.]+"', run.stdout)) == 6
    # its log stands beside the checkpoints
    assert written_by_hydra() == before
    assert (tmp_path / ".hydra" / "config.yaml").exists()

    model = load_state(tmp_path / "checkpoint_last.pt")["model"]
    clustered = {name: t for name, t in model.items() if name.endswith(".log_normalizer")}
    router = "0.clustering" if name == "bytes" else "1.normalizer"  # neural; gated
    prefix = f"decoder.layers.2.self_attn.routers.{router}"
    assert clustered.keys() == {f"{prefix}.log_normalizer"}
    # fairseq saves in float32 what it has in half precision; an average is never in half
    in_half = [
        torch.equal(tensor, tensor.bfloat16().float())
        for tensor in (model["decoder.layers.0.fc1.weight"], *clustered.values())
    ]
    assert in_half == [bool(read(name).common.get("bf16")), False]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*/config/*.yaml")), ids=lambda p: p.stem)
def test_what_every_file_says_to_hydra(path):
    """The jobs of a sweep have folders; mistakes are one line."""
    hydra = OmegaConf.to_container(OmegaConf.load(path))["hydra"]
    assert hydra["sweep"] == {"dir": "${checkpoint.save_dir}"}
    assert hydra["searchpath"] == ["pkg://fairseq_clusterformer.config"]


def test_a_sweep(byte_data, tmp_path, run_cli):
    """Two models, each with its best checkpoint, though the first one is better."""
    rates = ["0.02", "0.0001"]
    run_cli(
        *("fairseq-hydra-train", "-m", "--config-dir", CONFIG, "--config-name", "bytes"),
        *(f"task.data={byte_data}", f"checkpoint.save_dir={tmp_path}", *SMALLER),
        *("optimization.lr=" + ",".join(f"[{rate}]" for rate in rates),),
        *("dataset.batch_size=4", "optimization.max_update=3"),
    )
    for job, rate in enumerate(rates):
        for name in ("best", "last"):
            state = load_state(tmp_path / str(job) / f"checkpoint_{name}.pt")
            assert state["cfg"]["optimization"]["lr"] == [float(rate)]
            assert state["optimizer_history"][-1]["num_updates"] == 3
    assert not [*tmp_path.glob("*.pt")]


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
