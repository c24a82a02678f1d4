"""Encoders that start from a folder of BERT's form, as ``transformers`` writes them, or from a
checkpoint of fairseq's RoBERTa (Liu et al., 2019).

Shape letters: D model width, V words.
"""

from argparse import Namespace
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from fairseq.data import Dictionary
from torch import Tensor

from fairseq_clusterformer.data.subwords import TOKENIZER, Subwords
from fairseq_clusterformer.errors import check_no_pipes, first_line, read_json
from fairseq_clusterformer.families import ENCODERS, FAMILIES

from .checkpoints import CheckpointError, unfit
from .encoder_only import EncoderOnlyModel, tell
from .options import flag, set_defaults

_WRITTEN = "a folder that transformers has written"
_SIZES = ("encoder_layers", "encoder_embed_dim", "encoder_ffn_embed_dim")


def load_pretrained(model: EncoderOnlyModel, path: str) -> None:
    """Start a model's encoder, and as far as it can its head, from what ``--pretrained`` names.
    What that does not have starts anew. Raises CheckpointError: files that are missing or damaged,
    another family, sizes or words.

    Args:
        model: with ``args``, and an ``encoder`` of the same sizes and words.
        path: a folder with ``config.json``, ``tokenizer.json`` and ``model.safetensors`` (or
            ``pytorch_model.bin``), or a checkpoint of fairseq's RoBERTa.
    """
    if Path(path).is_file():
        model.load_encoder("--pretrained", path)
    else:
        load_folder(model, path, "--pretrained")


class StartsFromFolder:
    """Mixin before a model with the option ``--pretrained``."""

    def load_initial_weights(self) -> None:
        """Start from what ``--pretrained`` names, see :func:`load_pretrained`."""
        if self.args.pretrained:
            load_pretrained(self, self.args.pretrained)


def set_sizes_of_folder(args: Any) -> None:
    """Take the sizes that are not given from the folder that ``--pretrained`` names."""
    if all(hasattr(args, name) for name in _SIZES):  # as in a checkpoint
        return
    if not getattr(args, "pretrained", ""):
        raise CheckpointError("--pretrained is missing; allowed: a folder of transformers")
    path = Path(args.pretrained)
    if path.is_dir():  # else it is said when the weights are loaded
        set_defaults(args, **sizes_of(path, "--pretrained"), encoder_attention="full")


def sizes_of(path: Path, option: str) -> dict[str, Any]:
    """Our options that make a folder's encoder; raises CheckpointError as `load_pretrained`."""
    return _read(path, option)[1]


def folder_tensors(
    folder: str,
    option: str,
    words: Dictionary,
    args: Any,
    mine: Collection[str] = (),
    numbers: Tensor | None = None,
) -> tuple[dict[str, Tensor], list[str]]:
    """A folder's tensors by our names, with the rows of our words; raises CheckpointError as
    :func:`load_pretrained` does. Returns the tensors, and the names of what is left in the folder.
    Embeddings of token types, "encoder.embed_types.weight" [1 or 2, D], are 0 where it has none.

    Args:
        args: options that must be the folder's; what they lack is not compared.
        mine: names of the model's tensors, of which the heads are taken.
        numbers: the folder's number of each of our words, int64 [V]; None: as its tokenizer says.
    """
    config, options = _read(Path(folder), option)
    family = FAMILIES[config.model_type]
    if numbers is None:
        numbers = _numbers(words.symbols, Path(folder), option)
    theirs = _tensors(Path(folder), option)
    wanted = {name: value for name, value in options.items() if hasattr(args, name)}
    if any(getattr(args, name) != value for name, value in wanted.items()):
        given = ((flag(name), v) for name, v in wanted.items() if v is not False)
        shown = " ".join(name if v is True else f"{name} {v}" for name, v in given)
        raise unfit(option, folder, "it does not fit: other sizes", shown)
    try:
        found = family.state_of(theirs, config, numbers)
        parts = [new for new in family.names.values() if new.startswith(".")]
        layers = range(options["encoder_layers"])
        needed = [f"encoder.layers.{number}{part}" for number in layers for part in parts]
        for name in ("encoder.layernorm_embedding.", *needed):
            if not found.keys() >= {f"{name}weight", f"{name}bias"}:
                for theirs_is, ours_is in family.names.items():
                    name = name.replace(ours_is, theirs_is)
                raise KeyError(name)
    except KeyError as error:
        raise unfit(option, folder, f"it has no {error}", _WRITTEN) from None
    except (TypeError, ValueError, IndexError, RuntimeError) as error:  # of what a file says
        raise unfit(option, folder, f"it does not fit: {' '.join(str(error).split())}") from None
    tied = getattr(config, "tie_word_embeddings", True)
    found = {
        name: tensor
        for name, tensor in found.items()
        if (name in mine and (tied or "lm_head." not in name))
        or (name.startswith("encoder.") and (not mine or name == "encoder.embed_types.weight"))
    }
    left = [name for name in theirs if family.named(name) not in found]
    return found, [name for name in left if "_embeddings." not in name]


def load_folder(
    model: EncoderOnlyModel, folder: str, option: str, numbers: Tensor | None = None
) -> None:
    """As :func:`load_pretrained`, of a folder; ``numbers`` as of :func:`folder_tensors`."""
    mine, words = model.state_dict(), model.encoder.dictionary
    loaded, left = folder_tensors(folder, option, words, model.args, mine, numbers)
    types = loaded.pop("encoder.embed_types.weight")
    places = loaded["encoder.embed_positions.weight"]
    home = next((n for n in ("encoder.embed_types.weight", "segments.weight") if n in mine), None)
    if home is not None:
        loaded[home] = types.expand(2, -1)
    else:  # all tokens are of the first type
        places[2:] += types[0]
    # a text that is longer than the folder's begins its positions anew
    rows = len(mine["encoder.embed_positions.weight"])
    places = torch.cat([places, *[places[2:]] * (rows // len(places[2:]))])
    loaded["encoder.embed_positions.weight"] = places[:rows]
    try:
        model.load_state_dict(mine | loaded)
    except (CheckpointError, RuntimeError) as error:
        raise unfit(option, folder, f"it does not fit: {error}") from None
    tell(folder, mine, loaded, left)


def _read(path: Path, option: str) -> tuple[Namespace, dict[str, Any]]:
    """A folder's configuration, and our options that make its encoder."""
    if not path.is_dir():
        raise unfit(option, path, "no such file or folder", _WRITTEN)
    check_no_pipes(option, path)
    try:
        config = Namespace(**read_json(path / "config.json"))
    except (OSError, ValueError, TypeError) as error:
        raise unfit(option, path, f"no config.json can be read ({error})", _WRITTEN) from None
    if (kind := getattr(config, "model_type", None)) not in ENCODERS:
        raise unfit(option, path, f"its model_type is {kind}", ", ".join(ENCODERS))
    try:
        options = FAMILIES[kind].options_of(config)
    except (AttributeError, TypeError, ValueError) as error:
        raise unfit(option, path, f"it does not fit: {error}") from None
    width = options["encoder_embed_dim"]
    if (found := getattr(config, "embedding_size", width)) != width:
        raise unfit(option, path, f"its embeddings are {found} wide", f"{width}, as its layers")
    return config, options


def _numbers(symbols: list[str], path: Path, option: str) -> Tensor:
    """The folder's number of each of our symbols, int64 [V]."""
    try:
        theirs = {symbol: i for i, symbol in enumerate(Subwords(path / TOKENIZER).symbols)}
    except ValueError as error:
        raise unfit(option, path, str(error)) from None
    if missing := [symbol for symbol in symbols if symbol not in theirs]:
        problem = f"its tokenizer lacks {len(missing):,} of our symbols, {missing[0]!r} first"
        raise unfit(option, path, problem, f"data prepared with --tokenizer {path / TOKENIZER}")
    return torch.tensor([theirs[symbol] for symbol in symbols])


def _tensors(path: Path, option: str) -> dict[str, Tensor]:
    """All tensors of the folder, in float32; old names of layer norms are renamed."""
    from safetensors.torch import load_file

    found: dict[str, Tensor] = {}
    try:
        if files := sorted(path.glob("model*.safetensors")):
            for file in files:
                found |= load_file(file)
        else:
            file = path / "pytorch_model.bin"
            found = torch.load(file, map_location="cpu", weights_only=True)
        for old, new in (("Norm.gamma", "Norm.weight"), ("Norm.beta", "Norm.bias")):
            found = {name.replace(old, new): tensor for name, tensor in found.items()}
        return {name: t.float() for name, t in found.items() if t.is_floating_point()}
    except Exception as error:  # safetensors raises its own
        raise unfit(option, path, f"no weights can be read ({first_line(error)})") from None
