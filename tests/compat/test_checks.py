"""What a training is given is refused before it draws a number or writes a file."""

import os
import re
import shutil
from pathlib import Path

import fairseq_cli.train
import pytest
from fairseq import options as fairseq_options
from fairseq import tasks
from fairseq.dataclass.configs import FairseqConfig
from fairseq.dataclass.initialize import add_defaults
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.distributed import utils as distributed_utils
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

import fairseq_clusterformer.plugin  # noqa: F401
from fairseq_clusterformer.compat.checks import one_line
from fairseq_clusterformer.compat.processes import check_configurations
from tests.cli.in_process import CLUSTERFORMER, train


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("nope", "DATA is nope: nope is no folder; allowed: a folder that `clusterformer prep"),
        ("data:nope", "DATA is data:nope: nope is no folder; allowed: a folder that"),
        ("taken", "DATA is taken: taken has no dictionary; allowed: a folder that"),
        ("data", "Must specify batch size either with --max-tokens or --batch-size"),
        ("--seed 4294967296", "--seed is 4294967296; allowed: 0 or more, up to 2147483647"),
        ("--save-dir file/a/b", "Not a directory: 'file/a'"),
        ("--optimizer adam --adam-betas (0.9,nan)", "(0.9,nan); allowed: a number, a list or"),
        ("--optimizer-overrides x/y", "x/y; allowed: a number, a list or a dictionary"),
        ("--optimizer-overrides []", "--optimizer-overrides is []; allowed: a dictionary"),
        ("--update-freq=", "--update-freq is empty; allowed: numbers, separated by commas"),
        ("--optimizer adam --lr=", "'lr': []}: list index out of range; allowed: options with"),
        ("--optimizer adam --adam-betas (-0.1,0.9)", "betas (-0.1, 0.9), and not two of 0 or mor"),
        ("--optimizer sgd --momentum -1", "--optimizer is sgd: Invalid momentum value: -1.0; all"),
        ("--lr-scheduler tri_stage --optimizer nag", "please specify steps or phase_ratio; allow"),
        ("--optimizer nag --lr-scheduler inverse_sqrt --warmup-updates 0", "division by zero; al"),
        ("--fp16", "--fp16 is given: no GPU; allowed: float32"),
    ],
)
def test_before_anything_is_written(options, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    os.makedirs("taken")
    Path("data").mkdir()
    Path("data/dict.txt").touch()
    before = sorted(tmp_path.rglob("*"))
    words = ["data", "--batch-size", "2"] if options.startswith("-") else []
    words += ["--task", "language_modeling", "--arch", "transformer_lm", *options.split(), "--cpu"]
    args = fairseq_options.parse_args_and_arch(fairseq_options.get_training_parser(), words)
    cfg = convert_namespace_to_omegaconf(args)
    with pytest.raises((ValueError, AssertionError, OSError)) as caught:
        distributed_utils.call_main(cfg, fairseq_cli.train.main)
    assert message in one_line(caught.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_tokens_that_the_dictionary_does_not_have(byte_data, tmp_path):
    shutil.copytree(byte_data, tmp_path / "data")
    (tmp_path / "data" / "train.bin").write_bytes(
        b"\xff" * (byte_data / "train.bin").stat().st_size
    )
    said = r"data/train.bin: damaged \(token 65535 of a dictionary of \d+\); allowed"
    with pytest.raises(ValueError, match=said):
        train(tmp_path / "data", CLUSTERFORMER, tmp_path / "saved")


OWN = {"clusterformer_masked_lm", "clusterformer_qa", "clusterformer_sentence", "etc_masked_lm"}


@pytest.mark.parametrize("name", sorted(OWN))
def test_a_missing_folder_of_our_tasks(name):
    ours = {t for t, of in tasks.TASK_REGISTRY.items() if "fairseq_clusterformer" in of.__module__}
    assert ours == OWN
    cfg = hydra_config(task={"_name": name, "data": "nope"}, model=None)
    add_defaults(cfg)
    with pytest.raises((ValueError, FileNotFoundError)) as caught:
        tasks.setup_task(cfg.task)
    assert re.match("DATA is nope.*; allowed: .*`clusterformer prepare ", str(caught.value))


def hydra_config(**changed: object) -> DictConfig:
    """As ``fairseq-hydra-train`` has read it, with our model and criterion."""
    cfg = OmegaConf.create(OmegaConf.to_container(OmegaConf.structured(FairseqConfig)))
    cfg.task = {"_name": "language_modeling", "data": "data"}
    cfg.model = {"_name": "clusterformer_lm"}
    cfg.dataset.batch_size = 2
    for name, value in changed.items():
        OmegaConf.update(cfg, name.replace("__", "."), value)
    return cfg


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model__num_clusters": "many"}, "num_clusters: Value 'many' of type 'str' could not be"),
        ({"model__num_clustrs": 3}, "num_clustrs: Key 'num_clustrs' not in '"),
        ({"model___name": "clusterfomer_lm"}, "model._name is clusterfomer_lm: unknown; allowed"),
        ({"model___name": "bidaf_reader_x"}, "moved; allowed: it with common.user_dir=examples/"),
        ({"criterion": "nope"}, "criterion._name is nope: unknown; allowed: a registered name"),
        ({"task": None}, "--config-name is byt: it names no task; allowed: a file of"),
    ],
)
def test_a_configuration_of_hydra_s(changed, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    Path("data/dict.txt").touch()
    job = OmegaConf.create({"job": {"config_name": "byt"}, "mode": RunMode.RUN})
    monkeypatch.setattr(HydraConfig, "initialized", lambda: True)
    monkeypatch.setattr(HydraConfig, "get", lambda: job)
    monkeypatch.setattr(fairseq_cli.train, "add_defaults", add_defaults)
    check_configurations()
    with pytest.raises(Exception) as caught:  # noqa: PT011  a ValueError, or omegaconf's own
        fairseq_cli.train.add_defaults(hydra_config(**changed))
    assert message in one_line(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
