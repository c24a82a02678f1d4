"""What readers of dense models share: their text, their symbols in our order, their options.

Shape letters: D model width, V words.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

EPSILON = 1e-5  # of fairseq's layer norm
_ACTIVATIONS = {
    "gelu_new": "gelu_accurate",
    "gelu_pytorch_tanh": "gelu_accurate",
    "gelu": "gelu",
    "relu": "relu",
    "swish": "swish",
    "silu": "swish",
}
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
NEVER = -1e4  # logit of a symbol that the dense model does not have
State = dict[str, Tensor]


@dataclass(frozen=True)
class Dense:
    """How models of a type become ours.

    Attributes:
        auto: the Auto class that loads them.
        architecture, task, criterion: of fairseq.
        options: ours, of a configuration of theirs.
        text: writes the files of a data folder, given that of the model and its configuration;
            returns the model's number of each of our symbols, -1 where it has none.
        state: our tensors, of a model of theirs and these numbers.
    """

    auto: type
    architecture: str
    task: str
    criterion: str
    options: Callable[[Any], dict[str, Any]]
    text: Callable[[Path, Path, Any], list[int]]
    state: Callable[[PreTrainedModel, list[int]], State]


def _vocabulary(folder: Path) -> tuple[dict[str, int], list[str]]:
    """Pieces with their numbers, and merges, of byte-level BPE."""
    if (folder / "tokenizer.json").is_file():
        model = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]
        merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
        return model["vocab"], merges
    pieces = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    lines = (folder / "merges.txt").read_text(encoding="utf-8").splitlines()
    return pieces, [line for line in lines if line and not line.startswith("#version")]


def byte_pairs(folder: Path, data: Path, config: Any) -> list[int]:
    """Write the files that GPT-2's coding is read from; see :attr:`Dense.text`."""
    pieces, merges = _vocabulary(folder)
    _check_special(config, pieces)
    special = {config.bos_token_id, config.eos_token_id, config.pad_token_id}
    special |= {pieces[name] for name in (*SPECIAL, "<mask>") if name in pieces}
    in_order = sorted((n, piece) for piece, n in pieces.items() if n not in special)
    ours = {piece: i for i, (_, piece) in enumerate(in_order)}
    (data / "encoder.json").write_text(json.dumps(ours), encoding="utf-8")
    text = "\n".join(["#version: 0.2", *merges, ""])
    (data / "vocab.bpe").write_text(text, encoding="utf-8")
    lines = "".join(f"{i} 1\n" for i in range(len(in_order)))
    (data / "dict.txt").write_text(lines, encoding="utf-8")
    words = [number for number, _ in in_order]
    if config.model_type == "gpt2":
        return [-1, -1, config.eos_token_id, -1, *words]
    # RoBERTa has fairseq's special symbols, and <mask> last
    first = [config.bos_token_id, config.pad_token_id, config.eos_token_id, 3]
    return [*first, *words, config.vocab_size - 1]


def _check_special(config: Any, pieces: dict[str, int]) -> None:
    """Refuse special symbols that stand elsewhere than :func:`byte_pairs` takes them to be.

    Raises:
        ValueError: naming the symbol.
    """
    if not isinstance(config.eos_token_id, int):
        raise ValueError(f"its eos_token_id is {config.eos_token_id}, not a number")
    if (most := max(pieces.values(), default=0)) >= config.vocab_size:
        raise ValueError(f"its tokenizer has number {most}, and the model {config.vocab_size}")
    if config.model_type != "gpt2":
        for symbol, wanted in (("<unk>", 3), ("<mask>", config.vocab_size - 1)):
            if (found := pieces.get(symbol, wanted)) != wanted:
                raise ValueError(f"its {symbol} is number {found}, not {wanted}")


def rows_of(table: Tensor, numbers: list[int], silent: Tensor) -> Tensor:
    """Rows of a table [V, D] in our order, and `silent` [D] where it has none."""
    found = torch.stack([silent if n < 0 else table[n] for n in numbers])
    return found.clone()


def checked(config: Any, **wanted: object) -> None:
    """Refuse a configuration whose layers are others than ours.

    Raises:
        ValueError: naming the option.
    """
    for name, value in wanted.items():
        if (found := getattr(config, name, value)) != value:
            raise ValueError(f"its {name} is {found}, not {value}")


def activation_of(name: str) -> str:
    """fairseq's name of an activation.

    Raises:
        ValueError: one that fairseq does not have.
    """
    if name not in _ACTIVATIONS:
        raise ValueError(f"its activation is {name}, not {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def positions(table: Tensor) -> Tensor:
    """Learned positions with the rows that fairseq keeps for padding in front."""
    return torch.cat([table.new_zeros(2, table.size(1)), table])
