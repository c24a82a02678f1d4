"""fairseq runs on today's torch, numpy and hydra, and loading a checkpoint stays safe."""

import argparse
import os
import random
import warnings
from collections.abc import Iterator
from pathlib import Path

import fairseq.distributed.utils as distributed_utils
import numpy as np
import omegaconf
import pytest
import torch
from fairseq.checkpoint_utils import load_checkpoint_to_cpu
from fairseq.data import TokenBlockDataset, data_utils
from fairseq.data.iterators import EpochBatchIterator
from fairseq.models.ema.ema import EMA
from fairseq.ngram_repeat_block import NGramRepeatBlock
from fairseq.trainer import Trainer
from torch.utils.data import TensorDataset

from fairseq_clusterformer import compat
from tests.conftest import RunCli

TINY_TRANSLATION = (
    "--task translation --arch transformer --encoder-layers 1 --encoder-embed-dim 8"
    " --encoder-ffn-embed-dim 8 --encoder-attention-heads 2 --decoder-layers 1"
    " --decoder-embed-dim 8 --decoder-ffn-embed-dim 8 --decoder-attention-heads 2"
    " --optimizer adam --lr 0.001 --max-tokens 300 --max-update 1 --cpu"
    " --eval-bleu --eval-bleu-args {} --best-checkpoint-metric bleu"
).split()


@pytest.fixture(scope="module")
def translation_data(tmp_path_factory: pytest.TempPathFactory, run_cli: RunCli) -> Path:
    folder = tmp_path_factory.mktemp("translation")
    generator = random.Random(0)
    for name in ("train.src", "train.tgt", "valid.src", "valid.tgt"):
        lines = (" ".join(generator.choices("abcdefgh", k=6)) for _ in range(32))
        (folder / name).write_text("\n".join(lines) + "\n")
    prefixes = ["--trainpref", folder / "train", "--validpref", folder / "valid"]
    languages = ["-s", "src", "-t", "tgt", "--joined-dictionary"]
    destination = ["--destdir", folder / "data"]
    run_cli("fairseq-preprocess", *languages, *prefixes, *destination, user_dir=None)
    return folder / "data"


@pytest.fixture(scope="module")
def argparse_checkpoint(translation_data: Path, run_cli: RunCli) -> Path:
    """What fairseq itself wrote after one update: its options and BLEU's counts are in it."""
    folder = translation_data.parent / "checkpoints"
    run_cli(
        *("fairseq-train", translation_data, *TINY_TRANSLATION, "--save-dir", folder),
        user_dir=None,
    )
    return folder / "checkpoint_last.pt"


@pytest.mark.parametrize("count", [1, 7, 8, 11, 17])
@pytest.mark.parametrize("limits", [{"max_tokens": 40}, {"max_sentences": 8}])
@pytest.mark.parametrize("vector", [False, True])
def test_every_sentence_is_in_a_batch(count, limits, vector):
    indices, sizes = np.random.permutation(count), np.full(count, 5)
    batches = data_utils.batch_by_size(
        indices,
        num_tokens_fn=lambda i: int(sizes[i]),
        num_tokens_vec=sizes if vector else None,
        required_batch_size_multiple=8,
        **limits,
    )
    assert np.concatenate(batches).tolist() == indices.tolist()
    assert all(len(batch) <= 8 for batch in batches)


def test_ngrams_are_blocked():
    """A hypothesis a b a must not go on with b, however long the buffer behind it is."""
    pad, a, b = 1, 4, 5
    tokens = torch.full((2, 20), pad)
    tokens[0, :4] = torch.tensor([2, a, b, a])
    tokens[1, :4] = torch.tensor([2, b, b, a])
    lprobs = torch.zeros(2, 8)
    out = NGramRepeatBlock(2)(tokens, lprobs, bsz=1, beam_size=2, step=3)
    assert torch.isinf(out).nonzero().tolist() == [[0, b]]


@pytest.fixture
def _nothing_allowed() -> Iterator[None]:
    before = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()
    yield
    torch.serialization.clear_safe_globals()
    torch.serialization.add_safe_globals(before)


@pytest.mark.usefixtures("_nothing_allowed")
class TestCheckpoints:
    def test_argparse_model_loads(self, argparse_checkpoint):
        with pytest.raises(ValueError, match="it needs "):
            load_checkpoint_to_cpu(str(argparse_checkpoint))
        compat.allow_checkpoint_types()
        state = load_checkpoint_to_cpu(str(argparse_checkpoint))
        assert isinstance(state["cfg"]["model"], argparse.Namespace)
        assert "valid" in state["extra_state"]["metrics"]

    @pytest.mark.parametrize("dtype", ["int32", "int64", "float32", "float64"])
    def test_numpy_meters_load(self, tmp_path, dtype):
        counts = np.arange(4, dtype=dtype)
        torch.save({"best": counts[1], "counts": counts}, tmp_path / "meters.pt")
        compat.allow_checkpoint_types()
        meters = torch.load(tmp_path / "meters.pt")
        assert meters["best"] == 1
        assert meters["counts"].tolist() == [0, 1, 2, 3]

    def test_loaded_checkpoint_loads_when_saved_again(self, argparse_checkpoint, tmp_path):
        compat.allow_checkpoint_types()
        state = load_checkpoint_to_cpu(str(argparse_checkpoint))
        torch.save(state, tmp_path / "again.pt")
        again = load_checkpoint_to_cpu(str(tmp_path / "again.pt"))
        assert isinstance(again["cfg"], omegaconf.DictConfig)
        assert again["cfg"]["task"] == state["cfg"]["task"]

        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals([argparse.Namespace])
        with pytest.raises(ValueError, match="it needs "):
            load_checkpoint_to_cpu(str(tmp_path / "again.pt"))

    def test_state_reaches_the_other_workers(self, argparse_checkpoint, monkeypatch):
        """broadcast_object as rank 0 and then as rank 1, over a list instead of a network."""
        compat.allow_checkpoint_types()
        state = load_checkpoint_to_cpu(str(argparse_checkpoint))
        rank, wire = 0, []

        def broadcast(tensor: torch.Tensor, src: int, group: object) -> None:
            if rank == src:
                wire.append(tensor.clone())
            else:
                tensor.copy_(wire.pop(0).view_as(tensor))

        monkeypatch.setattr(distributed_utils, "broadcast", broadcast)
        monkeypatch.setattr(distributed_utils, "get_rank", lambda group: rank)
        device = torch.device("cpu")
        distributed_utils.broadcast_object(state, 0, None, device)
        rank = 1
        received = distributed_utils.broadcast_object(None, 0, None, device)
        assert not wire
        assert received["cfg"]["task"] == state["cfg"]["task"]
        assert received["model"].keys() == state["model"].keys()
        for name, value in state["model"].items():
            assert torch.equal(received["model"][name], value)

    @pytest.mark.parametrize("wrap", [lambda x: x, lambda x: argparse.Namespace(option=x)])
    def test_foreign_code_is_refused(self, tmp_path, wrap):
        class Malicious:
            def __reduce__(self):
                return os.system, (f"touch {tmp_path}/executed",)

        compat.apply()
        torch.save({"model": {}, "cfg": wrap(Malicious())}, tmp_path / "evil.pt")
        with pytest.raises(ValueError, match="it needs posix.system, which "):
            load_checkpoint_to_cpu(str(tmp_path / "evil.pt"))
        assert not (tmp_path / "executed").exists()


def test_sample_break_mode_eos(monkeypatch):
    def blocks() -> TokenBlockDataset:
        sentences = [torch.tensor([4, 5, 2]), torch.tensor([6, 2])]
        return TokenBlockDataset(sentences, [3, 2], None, pad=1, eos=2, break_mode="eos")

    monkeypatch.delattr(np, "compat", raising=False)
    with pytest.raises(AttributeError):
        blocks()
    compat.restore_names()
    assert [block.tolist() for block in blocks()] == [[4, 5, 2], [6, 2]]


@pytest.mark.parametrize("reused", [False, True])
def test_a_curriculum_ends(reused):
    batches = [[i] for i in range(20)]
    iterator = EpochBatchIterator(
        TensorDataset(torch.arange(20)),
        lambda samples: [int(number) for (number,) in samples],
        batches,
        reuse_dataloader=reused,
    )
    first = list(iterator.next_epoch_itr(shuffle=False))
    second, third = (list(iterator.next_epoch_itr(shuffle=True)) for _ in range(2))
    assert first == batches
    assert first != second != third
    assert sorted(second) == sorted(third) == batches


def test_only_known_warnings_are_silenced():
    known = "'pin_memory' argument is set as true but no accelerator is found, then ..."
    with warnings.catch_warnings(record=True) as seen:
        warnings.resetwarnings()
        compat.silence_known_warnings()
        warnings.warn(known, UserWarning, stacklevel=1)
        warnings.warn("pin_memory was never asked for", UserWarning, stacklevel=1)
    assert [str(one.message) for one in seen] == ["pin_memory was never asked for"]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compat.silence_known_warnings()
        with pytest.raises(UserWarning, match="pin_memory"):
            warnings.warn(known, UserWarning, stacklevel=1)


def test_applying_twice_changes_nothing():
    def state() -> tuple:
        known = len(torch.serialization.get_safe_globals()), len(warnings.filters), np.compat
        return *known, Trainer.valid_step, Trainer.begin_epoch, EMA.__init__, EMA.restore

    compat.apply()
    before = state()
    compat.apply()
    assert state() == before
