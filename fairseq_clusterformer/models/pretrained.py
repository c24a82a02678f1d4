"""Encoders that start from a folder of BERT's form, as ``transformers`` writes them, a checkpoint
of ours or of fairseq's RoBERTa (Liu et al., 2019), or vectors of words.

Shape letters: D model width, V words.
"""

import logging
import math
from argparse import Namespace
from collections.abc import Container, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from fairseq.data import Dictionary
from torch import Tensor, nn

from fairseq_clusterformer.data.subwords import TOKENIZER, Subwords
from fairseq_clusterformer.errors import check_no_pipes, first_line, read_json, refused
from fairseq_clusterformer.families import ENCODERS, FAMILIES, State

from .checkpoints import CheckpointError, check_words, read_checkpoint, renamed, unfit
from .options import flag, set_defaults

logger = logging.getLogger(__name__)

_WRITTEN = "a folder that transformers has written"
_SIZES = ("encoder_layers", "encoder_embed_dim", "encoder_ffn_embed_dim")
_PRETRAINED = ("encoder.", "vocabulary")
_HEADS = ("lm_head.", "classification_heads.")  # of fairseq's RoBERTa
_OF_WORDS = {"encoder.embed_tokens.weight", "lm_head.weight", "lm_head.bias"}
#: what no dense encoder has: clusters, our mark of the dictionary, and the mark of its version
_OURS = (".routers.", "encoder.centroids", "vocabulary", "encoder.version")


def load_pretrained(
    model: nn.Module, path: str, option: str = "--pretrained", numbers: Tensor | None = None
) -> None:
    """Start the encoder of an :class:`~.encoder.EncoderOnlyModel`, and as far as it can its head,
    from what an option names: a folder with ``config.json``, ``tokenizer.json`` and
    ``model.safetensors`` (or ``pytorch_model.bin``), or a checkpoint. What that does not have
    starts anew. ``numbers`` are a folder's of each of our words, int64 [V]; None: as its tokenizer
    says. Raises CheckpointError: what is missing or damaged; another family, sizes or words."""
    if Path(path).is_file():
        loaded, new = _of_checkpoint(model, path, option)
        allowed = "a clusterformer_masked_lm or a RoBERTa of the same sizes, attention and words"
    else:
        loaded, new = _of_folder(model, path, option, numbers), _OURS
        allowed = _WRITTEN
    others = model.state_dict().keys() - loaded.keys()
    anew = [
        name
        for name in others
        if not name.startswith(_PRETRAINED) or any(part in name for part in new)
    ]
    start_from(model, option, path, loaded, anew, allowed)
    for what, names in {"loaded": loaded, "starting anew": others}.items():
        logger.info(f"{path}: {len(names)} tensors {what}: {', '.join(names)}")


def start_from(
    model: nn.Module, option: str, path: str, loaded: State, anew: Iterable[str], allowed: str
) -> None:
    """Start from the tensors of a checkpoint, but for those that may start anew. Raises
    CheckpointError: a file that does not fit; it names the option and what is allowed."""
    own = model.state_dict()
    try:
        model.load_state_dict({name: own[name] for name in anew} | loaded)
    except CheckpointError as error:
        raise unfit(option, path, f"it does not fit the model: {error}", allowed) from None


def _of_checkpoint(model: nn.Module, path: str, option: str) -> tuple[State, tuple[str, ...]]:
    """What a model takes of a checkpoint, of its head what ``pretrained_parts`` names, and what
    the checkpoint may lack."""
    given, mine = read_checkpoint(option, path)["model"], model.state_dict()
    words, parts = model.encoder.dictionary, model.pretrained_parts()
    is_roberta = any(".sentence_encoder." in name for name in given)
    if is_roberta:
        check_words(option, path, words)
        if model.encoder.embed_scale != 1:
            raise unfit(option, path, "words are scaled here", "--no-scale-embedding")
        given = {
            name if name.startswith(_HEADS) else f"encoder.{name}": tensor
            for name, tensor in renamed(given).items()
        }
        parts |= {name: name for name in mine.keys() & given.keys() if name.startswith(_HEADS)}
        for name in _OF_WORDS & given.keys():
            if len(given[name]) == len(words) + 1:
                given[name] = given[name][:-1]  # its task's <mask> is in no dict.txt
    loaded = {name: t for name, t in given.items() if name.startswith(_PRETRAINED)}
    loaded |= {parts[name]: tensor for name, tensor in given.items() if name in parts}
    if "segments.weight" in given and "segments.weight" not in loaded:
        # a text alone is the first of a pair: its segment was added to every word
        table = loaded["encoder.embed_tokens.weight"].clone()
        real = torch.arange(len(table)) != model.encoder.padding_idx
        table[real] += given["segments.weight"][0]
        loaded["encoder.embed_tokens.weight"] = table
    return loaded, _OURS if is_roberta else ()


def _of_folder(model: nn.Module, folder: str, option: str, numbers: Tensor | None) -> State:
    mine, words = model.state_dict(), model.encoder.dictionary
    found, config = folder_tensors(folder, option, words, model.args, numbers)
    tied = getattr(config, "tie_word_embeddings", True)
    loaded = {n: t for n, t in found.items() if n in mine and (tied or "lm_head." not in n)}
    types = found["encoder.embed_types.weight"]
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
    return loaded


def folder_tensors(
    folder: str, option: str, words: Dictionary, args: Any, numbers: Tensor | None = None
) -> tuple[State, Namespace]:
    """A folder's tensors by our names, with the rows of our words, and its configuration, which
    must be as ``args`` says. Token types, "encoder.embed_types.weight" [1 or 2, D], are 0 where it
    has none. Takes ``numbers`` and raises as :func:`load_pretrained` does."""
    path = Path(folder)
    config, options = read_config(path, option)
    if numbers is None:
        numbers = _numbers(words.symbols, path, option)
    theirs = _tensors(path, option)
    wanted = {name: value for name, value in options.items() if hasattr(args, name)}
    if any(getattr(args, name) != value for name, value in wanted.items()):
        given = ((flag(name), v) for name, v in wanted.items() if v is not False)
        shown = " ".join(name if v is True else f"{name} {v}" for name, v in given)
        raise unfit(option, folder, "it does not fit: other sizes", shown)
    try:
        return FAMILIES[config.model_type].state_of(theirs, config, numbers), config
    except KeyError as error:
        raise unfit(option, folder, f"it has no {error}", _WRITTEN) from None
    except (TypeError, ValueError, IndexError, RuntimeError) as error:  # of what a file says
        raise unfit(option, folder, f"it does not fit: {' '.join(str(error).split())}") from None


def set_sizes_of_folder(args: Any) -> None:
    """Take the sizes that are not given from the folder that ``--pretrained`` names."""
    if all(hasattr(args, name) for name in _SIZES):  # as in a checkpoint
        return
    if not getattr(args, "pretrained", ""):
        raise CheckpointError("--pretrained is missing; allowed: a folder of transformers")
    path = Path(args.pretrained)
    if path.is_dir():  # else it is said when the weights are loaded
        set_defaults(args, **read_config(path, "--pretrained")[1], encoder_attention="full")


def read_config(path: Path, option: str) -> tuple[Namespace, dict[str, Any]]:
    """A folder's configuration, and our options that make its encoder; raises CheckpointError as
    :func:`load_pretrained` does."""
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


def _tensors(path: Path, option: str) -> State:
    """All tensors of the folder, in float32; old names of layer norms are renamed."""
    from safetensors.torch import load_file

    found: State = {}
    try:
        for file in sorted(path.glob("model*.safetensors")):
            found |= load_file(file)
        if not found:
            file = path / "pytorch_model.bin"
            found = torch.load(file, map_location="cpu", weights_only=True)
        for old, new in (("Norm.gamma", "Norm.weight"), ("Norm.beta", "Norm.bias")):
            found = {name.replace(old, new): tensor for name, tensor in found.items()}
        return {name: t.float() for name, t in found.items() if t.is_floating_point()}
    except Exception as error:  # safetensors raises its own
        raise unfit(option, path, f"no weights can be read ({first_line(error)})") from None


def read_word_vectors(
    path: str, width: int, option: str, *, known: Container[str] = (), most: int | None = None
) -> tuple[list[str], Tensor]:
    """Words of a file, as GloVe, word2vec and fastText write them, each once, and their vectors,
    float32 [n, width]; of those that are known, or all, in its first lines, or all. A line is a
    word and its numbers; of a word that comes twice the first counts, and word2vec's first line,
    two numbers, is passed over. Raises ValueError: no such file; a line that is no vector of this
    width, which the option says; no word found; or numbers that are all the same."""
    given = "--word-vectors", path
    if not Path(path).is_file():
        resume = "to resume, leave the option out: the checkpoint has them"
        raise refused(*given, f"a text file of vectors; {resume}", "no such file")
    found: dict[str, list[float]] = {}
    with open(path, "rb") as lines:
        for number, raw in enumerate(islice(lines, most), 1):
            try:
                line = raw.decode().rstrip()
                cells = line.split(" ")
                if number == 1 and len(cells) == 2 and all(map(str.isdigit, cells)):
                    continue
                # some words contain spaces; they are read only after a line that shows the width
                if len(cells) != width + 1 and (number <= 2 or len(cells) <= width):
                    raise ValueError(f"it has {len(cells) - 1} numbers")
                word, *values = line.rsplit(" ", width)
                if word not in found and (not known or word in known):
                    found[word] = [float(value) for value in values]
                    if not all(map(math.isfinite, found[word])):
                        raise ValueError("it has a number that is not finite")
            except ValueError as error:  # not UTF-8, no number
                shape = f"a word and {width} numbers ({option}), in UTF-8"
                raise refused(*given, shape, f"line {number}: {error}") from None
    if not found:
        problem = "none of the dictionary's words is in it" if known else "it is empty"
        raise refused(*given, "a text file of vectors of the data's words", problem)
    vectors = torch.tensor(list(found.values()))
    if vectors.min() == vectors.max():
        raise refused(*given, "vectors that differ", f"its numbers are all {vectors[0, 0]:g}")
    return list(found), vectors
