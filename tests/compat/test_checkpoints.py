"""Loading a checkpoint of fairseq's own stays safe, and runs on today's torch."""

import argparse
import os
from collections.abc import Iterator

import omegaconf
import pytest
import torch
from fairseq.checkpoint_utils import load_checkpoint_to_cpu

from fairseq_clusterformer import compat
from tests.cli.in_process import DENSE_TRANSLATION, trained

BLEU = "--max-update 1 --eval-bleu --eval-bleu-args {} --best-checkpoint-metric bleu"
#: with options of a model that argparse configures, and BLEU's counts among the meters
translator = trained("parallel_data", DENSE_TRANSLATION, *BLEU.split())


@pytest.fixture(autouse=True)
def _nothing_allowed() -> Iterator[None]:
    before = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()
    yield
    torch.serialization.clear_safe_globals()
    torch.serialization.add_safe_globals(before)


def test_what_fairseq_writes_loads(translator, tmp_path):
    """Also saved again; and nothing without the types that are allowed."""
    with pytest.raises(ValueError, match="it needs "):
        load_checkpoint_to_cpu(str(translator))
    compat.apply()
    state = load_checkpoint_to_cpu(str(translator))
    assert isinstance(state["cfg"]["model"], argparse.Namespace)
    assert "valid" in state["extra_state"]["metrics"]
    torch.save(state, tmp_path / "again.pt")
    again = load_checkpoint_to_cpu(str(tmp_path / "again.pt"))
    assert isinstance(again["cfg"], omegaconf.DictConfig)
    assert again["cfg"]["task"] == state["cfg"]["task"]


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: argparse.Namespace(option=x)])
def test_foreign_code_is_refused(tmp_path, wrap):
    class Malicious:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path}/executed",)

    compat.apply()
    torch.save({"model": {}, "cfg": wrap(Malicious())}, tmp_path / "evil.pt")
    with pytest.raises(ValueError, match="it needs posix.system, which "):
        load_checkpoint_to_cpu(str(tmp_path / "evil.pt"))
    assert not (tmp_path / "executed").exists()
