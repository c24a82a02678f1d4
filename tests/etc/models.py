"""Small models of ETC's encoder, their task, their checkpoints and their inputs."""

from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from fairseq.data import Dictionary, ListDataset
from torch import Tensor

from fairseq_clusterformer.corpora.binarize import symbol_dictionary
from fairseq_clusterformer.etc.masked_lm import ETCMaskedLMTaskConfig
from fairseq_clusterformer.etc.masked_parts import MaskedParts
from fairseq_clusterformer.models.options import defaults_of

CLOSE = {"rtol": 0, "atol": 1e-12}
SIZES = {"encoder_layers": 2, "encoder_embed_dim": 12, "encoder_ffn_embed_dim": 20}
SIZES |= {"encoder_attention_heads": 3, "dropout": 0.0, "activation_fn": "gelu"}
SIZES |= {"radius": 5, "max_distance": 2, "block": 8}


def make_dictionary(words: int = 30, *more: str) -> Dictionary:
    return symbol_dictionary([*(f"word{number}" for number in range(words)), *more])


def make_task(*symbols: str, words: int = 30, **more: object) -> Namespace:
    """A task whose dictionary has some words, and these symbols behind them."""
    dictionary = make_dictionary(words, *symbols)
    return Namespace(source_dictionary=dictionary, max_positions=lambda: 100, **more)


def build(model: type, task: Namespace | None = None, **options: object) -> torch.nn.Module:
    """A model in float64 and evaluation."""
    args = Namespace(**{**SIZES, **options})
    return model.build_model(args, task or make_task()).double().eval()


def write(path: Path, tensors: dict[str, Tensor], max_distance: int = 2) -> Path:
    """A checkpoint as fairseq writes it."""
    last = {"num_updates": 1, "lr_scheduler_state": {}, "optimizer_name": "x"}
    args = Namespace(arch="etc_masked_lm", max_distance=max_distance)
    state = {"model": tensors, "args": args, "optimizer_history": [last]}
    torch.save(state | {"extra_state": {"train_iterator": {"epoch": 1}}}, path)
    return path


def rows_of(lines: Iterable[list[int]], words: int = 30, begins: object = None, **options):
    """Rows of sentences, each of which gets ``</s>``; by default each symbol begins a word."""
    dictionary = make_dictionary(words, "<mask>")
    begins = np.ones(len(dictionary), bool) if begins is None else begins
    lines = [torch.tensor([*line, 2]) for line in lines]
    cfg = defaults_of(ETCMaskedLMTaskConfig) | {"seed": 1} | options
    lines = ListDataset(lines, [*map(len, lines)])
    return MaskedParts(lines, dictionary, begins, Namespace(**cfg))


def assert_all_have_gradients(model: torch.nn.Module) -> None:
    """Finite ones: workers that share a training expect one of each parameter."""
    assert [name for name, p in model.named_parameters() if p.grad is None] == []
    assert all(p.grad.isfinite().all() for p in model.parameters())
