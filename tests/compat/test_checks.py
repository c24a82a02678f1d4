"""What a training is given is refused before it draws a number or writes a file."""

import os
from pathlib import Path

import fairseq_cli.train
import pytest
from fairseq import options as fairseq_options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.distributed import utils as distributed_utils

import fairseq_clusterformer.plugin  # noqa: F401


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--seed -1", "--seed is -1; allowed: 0 or more"),
        ("--seed 4294967296", "--seed is 4294967296; allowed: 0 or more, up to 2147483647"),
        ("--save-dir file", "--save-dir is file: it is a file; allowed: a folder to write to"),
        ("--save-dir file/a/b", "/file is a file; allowed: a folder to write to"),
        ("--optimizer adam --adam-betas (0.9,nan)", "--adam-betas is (0.9,nan); allowed: two"),
        ("--optimizer adam --adam-betas 0.9", "--adam-betas is 0.9; allowed: two numbers"),
        ("--lr-scheduler inverse_sqrt --warmup-updates 0", "--warmup-updates is 0; allowed: 1"),
        ("--fp16", "--fp16 is given: no GPU; allowed: float32"),
        ("--save-dir taken", "taken/checkpoint_last.pt is a folder; allowed: a folder with"),
    ],
)
def test_before_anything_is_written(
    options: str, message: str, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    os.makedirs("taken/checkpoint_last.pt")
    before = sorted(tmp_path.rglob("*"))
    words = [
        "data",
        "--task",
        "language_modeling",
        "--arch",
        "transformer_lm",
        "--cpu",
        *options.split(),
    ]
    args = fairseq_options.parse_args_and_arch(fairseq_options.get_training_parser(), words)
    cfg = convert_namespace_to_omegaconf(args)
    with pytest.raises(ValueError, match="; allowed: ") as caught:
        distributed_utils.call_main(cfg, fairseq_cli.train.main)
    assert message in str(caught.value)
    assert sorted(tmp_path.rglob("*")) == before
