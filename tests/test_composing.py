"""What tests take for fairseq's configuration is fairseq's."""

import pytest
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from omegaconf import OmegaConf

from tests import composing
from tests.cli import in_process

LINES = {
    "language model": in_process.CLUSTERFORMER,
    "dense": in_process.TRANSFORMER,
    "translation": in_process.CLUSTERED_TRANSLATION,
    "odd characters": f"{in_process.TRANSFORMER} --wandb-project a='b',{{{{c}}}}=[d,e]",
    "no dataclass": f"{in_process.CLASSIFICATION} --optimizer adafactor --lr-scheduler fixed",
}


@pytest.mark.parametrize("name", LINES)
def test_every_value_is_the_same(name, monkeypatch):
    words = ["data", *LINES[name].split()]
    args = options.parse_args_and_arch(options.get_training_parser(), input_args=words)
    monkeypatch.setattr("fairseq.dataclass.utils.compose", composing._whole)
    whole = convert_namespace_to_omegaconf(args)
    monkeypatch.undo()
    for _ in range(2):  # the second from memory, untouched by what was done to the first
        config = convert_namespace_to_omegaconf(args)
        assert config == whole
        assert OmegaConf.is_struct(config)
        config.common.seed = 123
