"""Encoders that start from a folder of BERT's form, as ``transformers`` writes them, or from a
checkpoint of fairseq's RoBERTa (Liu et al., 2019).

A family of models is a table of facts: what its tensors are called, what its configuration must
say, and where its positions begin. Shape letters: D model width, V words.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from fairseq import utils
from fairseq.data import Dictionary
from torch import Tensor

from fairseq_clusterformer.data.subwords import TOKENIZER, Subwords
from fairseq_clusterformer.errors import first_line

from .checkpoints import CheckpointError, read_checkpoint, unfit
from .encoder_only import EncoderOnlyModel, tell
from .options import flag, set_defaults

PARTS = ("weight", "bias")
_WRITTEN = "a folder that transformers has written"
_BERT_LAYER = {
    "attention.self.query": "self_attn.q_proj",
    "attention.self.key": "self_attn.k_proj",
    "attention.self.value": "self_attn.v_proj",
    "attention.output.dense": "self_attn.out_proj",
    "attention.output.LayerNorm": "self_attn_layer_norm",
    "intermediate.dense": "fc1",
    "output.dense": "fc2",
    "output.LayerNorm": "final_layer_norm",
}
_BERT_SIZES = {
    "encoder_layers": "num_hidden_layers",
    "encoder_embed_dim": "hidden_size",
    "encoder_ffn_embed_dim": "intermediate_size",
    "encoder_attention_heads": "num_attention_heads",
    "activation_fn": "hidden_act",
}
#: options of an encoder of BERT's form, but for its sizes
_FORM = {
    "encoder_learned_pos": True,
    "layernorm_embedding": True,
    "no_scale_embedding": True,
    "encoder_normalize_before": False,
    "no_token_positional_embeddings": False,
}
ACTIVATIONS = {"gelu_new": "gelu_accurate", "gelu_pytorch_tanh": "gelu_accurate"}


@dataclass(frozen=True)
class Family:
    """What is to know of a family of encoders."""

    prefix: str  # of its encoder's tensors in a model with a head
    layer: str = "encoder.layer"  # what its layers' tensors begin with, before the number
    #: of a layer's linear maps and norms: theirs, ours
    names: Mapping[str, str] = field(default_factory=lambda: _BERT_LAYER)
    #: our options: what its configuration calls them
    sizes: Mapping[str, str] = field(default_factory=lambda: _BERT_SIZES)
    fixed: Mapping[str, object] = field(default_factory=dict)  # what its configuration must say
    #: the linear map, the norm and the bias of its head that guesses masked words, as far as it
    #: has one
    masked: tuple[str, ...] = ()
    unused: int = 0  # rows of its table of positions before the first position
    types: bool = True  # whether it has embeddings of token types
    epsilon: float | None = None  # of its layer norms; None: its configuration says it


_ABSOLUTE = {"position_embedding_type": "absolute", "is_decoder": False}
_BERT_HEAD = "cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm"
#: by the ``model_type`` of a configuration
FAMILIES = {
    "bert": Family("bert.", fixed=_ABSOLUTE, masked=(*_BERT_HEAD, "cls.predictions")),
    "roberta": Family(
        "roberta.",
        fixed=_ABSOLUTE | {"pad_token_id": 1},
        masked=("lm_head.dense", "lm_head.layer_norm", "lm_head"),
        unused=2,
    ),
    "electra": Family("electra.", fixed=_ABSOLUTE),
    "distilbert": Family(
        "distilbert.",
        layer="transformer.layer",
        names={
            "attention.q_lin": "self_attn.q_proj",
            "attention.k_lin": "self_attn.k_proj",
            "attention.v_lin": "self_attn.v_proj",
            "attention.out_lin": "self_attn.out_proj",
            "sa_layer_norm": "self_attn_layer_norm",
            "ffn.lin1": "fc1",
            "ffn.lin2": "fc2",
            "output_layer_norm": "final_layer_norm",
        },
        sizes={
            "encoder_layers": "n_layers",
            "encoder_embed_dim": "dim",
            "encoder_ffn_embed_dim": "hidden_dim",
            "encoder_attention_heads": "n_heads",
            "activation_fn": "activation",
        },
        masked=("vocab_transform", "vocab_layer_norm", "vocab_projector"),
        types=False,
        epsilon=1e-12,
    ),
}


def load_pretrained(model: EncoderOnlyModel, path: str, option: str = "--pretrained") -> None:
    """Start a model's encoder, and as far as it can its head, from other weights. What these do
    not have starts anew. Raises CheckpointError: files that are missing or damaged, another
    family, sizes or words.

    Args:
        model: with ``args``, and an ``encoder`` of the same sizes and words.
        path: a folder with ``config.json``, ``tokenizer.json`` and ``model.safetensors`` (or
            ``pytorch_model.bin``), or a checkpoint of fairseq's RoBERTa.
        option: that names it, for errors.
    """
    (_load_roberta if Path(path).is_file() else load_folder)(model, path, option)


def set_sizes_of_folder(args: Any, option: str = "--pretrained") -> None:
    """Take the sizes that are not given from the folder that ``--pretrained`` names."""
    if all(hasattr(args, name) for name in _BERT_SIZES):  # as in a checkpoint
        return
    if not getattr(args, "pretrained", ""):
        raise CheckpointError(f"{option} is missing; allowed: a folder of transformers")
    path = Path(args.pretrained)
    if path.is_dir():  # else it is said when the weights are loaded
        set_defaults(args, **sizes_of(path, option), encoder_attention="full")


def sizes_of(path: Path, option: str) -> dict[str, Any]:
    """Our options that make a folder's encoder; raises CheckpointError as `load_pretrained`."""
    config = _config(path, option)
    family = _family(config, path, option)
    try:
        return _options(config, family)
    except (KeyError, TypeError, ValueError) as error:
        lacks = isinstance(error, KeyError)
        problem = f"it has no {error}" if lacks else f"it does not fit: {error}"
        raise unfit(option, path, problem) from None


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
    path = Path(folder)
    config = _config(path, option)
    family = _family(config, path, option)
    if numbers is None:
        numbers = _numbers(words.symbols, path, option)
    theirs = _tensors(path, option)
    used: set[str] = set()

    def take(name: str) -> Tensor:
        used.add(name)
        return theirs[name]

    try:
        _check_options(args, _options(config, family))
        prefix = family.prefix if any(name.startswith(family.prefix) for name in theirs) else ""
        found = _encoder(lambda name: take(prefix + name), family, config, numbers)
        for ours, name in _heads(family, config).items():
            if ours in mine and name in theirs:
                found[ours] = take(name)
        if "lm_head.bias" in found:
            found["lm_head.bias"] = found["lm_head.bias"][numbers]
        if "lm_head.weight" in mine:
            found["lm_head.weight"] = found["encoder.embed_tokens.weight"]
    except KeyError as error:
        raise unfit(option, folder, f"it has no {error}", _WRITTEN) from None
    except (TypeError, ValueError, IndexError, RuntimeError) as error:  # of what a file says
        raise unfit(option, folder, f"it does not fit: {' '.join(str(error).split())}") from None
    return found, [name for name in theirs if name not in used]


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


def _config(path: Path, option: str) -> dict[str, Any]:
    if not path.is_dir():
        allowed = f"{_WRITTEN}, or a checkpoint of fairseq's roberta"
        raise unfit(option, path, "no such file or folder", allowed)
    try:
        return dict(json.loads((path / "config.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        problem = f"no config.json that can be read ({error})"
        raise unfit(option, path, problem, _WRITTEN) from None


def _family(config: dict[str, Any], path: Path, option: str) -> Family:
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise unfit(option, path, f"its model_type is {kind}", ", ".join(FAMILIES))
    family = FAMILIES[kind]
    for name, wanted in family.fixed.items():
        if (found := config.get(name, wanted)) != wanted:
            raise unfit(option, path, f"its {name} is {found}", str(wanted))
    width = config.get(family.sizes["encoder_embed_dim"])
    if (found := config.get("embedding_size", width)) != width:
        problem = f"its embeddings are {found} wide"
        raise unfit(option, path, problem, f"{width}, as its layers")
    return family


def _options(config: dict[str, Any], family: Family) -> dict[str, Any]:
    """Our options that make the folder's model; raises ValueError where none does."""
    wanted: dict[str, Any] = {
        ours: _typed(config, theirs, str if ours == "activation_fn" else int)
        for ours, theirs in family.sizes.items()
    }
    wanted["activation_fn"] = ACTIVATIONS.get(wanted["activation_fn"], wanted["activation_fn"])
    if wanted["activation_fn"] not in utils.get_available_activation_fns():
        raise ValueError(f"its activation is {wanted['activation_fn']}, which fairseq lacks")
    wanted["layer_norm_eps"] = family.epsilon or _typed(config, "layer_norm_eps", float)
    types = config.get("type_vocab_size", 2) if family.types else 1
    if types not in (1, 2):
        raise ValueError(f"its type_vocab_size is {types}; allowed: 1 or 2")
    wanted["token_types"] = 2 if types == 2 else 0
    places = _typed(config, "max_position_embeddings", int)
    wanted["window_positions"] = places - family.unused
    return wanted | _FORM


def _typed(config: dict[str, Any], name: str, kind: type) -> Any:
    """A value of a configuration; raises ValueError for one of another type."""
    found = config[name]
    if type(found) is not kind:
        allowed = {int: "a whole number", float: "a number", str: "a name"}[kind]
        raise ValueError(f"its {name} is {found!r}; allowed: {allowed}")
    return found


def _check_options(args: Any, wanted: dict[str, Any]) -> None:
    """Raises ValueError for options that make another model, with all that fit."""
    wanted = {name: value for name, value in wanted.items() if hasattr(args, name)}
    if any(getattr(args, name) != value for name, value in wanted.items()):
        given = ((flag(name), v) for name, v in wanted.items() if v is not False)
        shown = " ".join(name if v is True else f"{name} {v}" for name, v in given)
        raise ValueError(f"other sizes; allowed: {shown}")


def _numbers(symbols: list[str], path: Path, option: str) -> Tensor:
    """The folder's number of each of our symbols, int64 [V]."""
    try:
        found = Subwords(path / TOKENIZER).symbols
    except ValueError as error:
        raise unfit(option, path, str(error)) from None
    theirs = {symbol: i for i, symbol in enumerate(found)}
    if missing := [symbol for symbol in symbols if symbol not in theirs]:
        problem = f"its tokenizer lacks {len(missing):,} of the dictionary's symbols"
        allowed = f"data prepared with --tokenizer {path / TOKENIZER}"
        raise unfit(option, path, f"{problem}, {missing[0]!r} first", allowed)
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
        if not all(isinstance(tensor, Tensor) for tensor in dict(found).values()):
            raise ValueError("it holds more than tensors")
    except Exception as error:  # safetensors raises its own
        problem = f"no weights that can be read ({first_line(error)})"
        allowed = "model.safetensors or pytorch_model.bin"
        raise unfit(option, path, problem, allowed) from None
    renamed = ((n.replace("LayerNorm.gamma", "LayerNorm.weight"), t) for n, t in found.items())
    return {
        name.replace("LayerNorm.beta", "LayerNorm.bias"): tensor.float()
        for name, tensor in renamed
        if tensor.is_floating_point()
    }


def _encoder(
    take: Callable[[str], Tensor], family: Family, config: dict[str, Any], numbers: Tensor
) -> dict[str, Tensor]:
    """Our encoder's tensors; ``take`` gives those of the folder."""
    words = take("embeddings.word_embeddings.weight")
    places = take("embeddings.position_embeddings.weight")[family.unused :]
    types = take("embeddings.token_type_embeddings.weight") if family.types else 0 * places[:1]
    ours = {
        "encoder.embed_tokens.weight": words[numbers],
        # fairseq keeps two rows in front, for padding
        "encoder.embed_positions.weight": torch.cat([places.new_zeros(2, words.size(1)), places]),
        "encoder.embed_types.weight": types,
    }
    for theirs, name in encoder_names(family, config[family.sizes["encoder_layers"]]).items():
        for part in PARTS:
            ours[f"encoder.{name}.{part}"] = take(f"{theirs}.{part}")
    return ours


def encoder_names(family: Family, layers: int) -> dict[str, str]:
    """What a family calls the linear maps and norms of an encoder, and what we do."""
    names = {"embeddings.LayerNorm": "layernorm_embedding"}
    for i in range(layers):
        for theirs, ours in family.names.items():
            names[f"{family.layer}.{i}.{theirs}"] = f"layers.{i}.{ours}"
    return names


def _heads(family: Family, config: dict[str, Any]) -> dict[str, str]:
    """Our names of heads, and those of ``...ForQuestionAnswering`` and ``...ForMaskedLM``."""
    names = {"heads.span": "qa_outputs"}
    if family.masked and config.get("tie_word_embeddings", True):
        ours = ("lm_head.dense", "lm_head.layer_norm", "lm_head")
        names |= zip(ours, family.masked, strict=True)
    both = ((f"{n}.{part}", f"{t}.{part}") for n, t in names.items() for part in PARTS)
    return {ours: theirs for ours, theirs in both if ours != "lm_head.weight"}  # the embeddings


def renamed(given: dict[str, Tensor]) -> dict[str, Tensor]:
    """Parameters of an encoder by today's names, without "encoder." in front. RoBERTa was released
    with other names, and with queries, keys and values as one."""
    found = {}
    for name, tensor in given.items():
        short = re.sub(r"^decoder\.(?=sentence_encoder|lm_head)", "encoder.", name)
        short = short.removeprefix("encoder.").removeprefix("sentence_encoder.")
        short = short.replace("emb_layer_norm.", "layernorm_embedding.")
        if "in_proj_" in short:
            for which, part in zip("qkv", tensor.chunk(3), strict=True):
                found[short.replace("in_proj_", f"{which}_proj.")] = part
        else:
            found[short] = tensor
    return found


def _load_roberta(model: EncoderOnlyModel, path: str, option: str) -> None:
    """The same from a checkpoint; a ``dict.txt`` in its folder must have the same words."""
    given = read_checkpoint(option, path)["model"]
    parts = ("sentence_encoder.", "lm_head.", "classification_heads.")
    if other := next((name for name in given if not any(part in name for part in parts)), None):
        raise unfit(option, path, f"it is no RoBERTa, it has {other}")
    if model.encoder.embed_scale != 1:
        problem = f"words are scaled by {model.encoder.embed_scale:g} here"
        raise unfit(option, path, problem, "--no-scale-embedding")
    mine, words = model.state_dict(), model.encoder.dictionary
    check_words(option, path, words)
    heads = {name for name in renamed(given) if name.startswith(parts[1:])}
    loaded = {
        name if name in heads else f"encoder.{name}": tensor
        for name, tensor in renamed(given).items()
        if name not in heads or name in mine
    }
    for name in ("encoder.embed_tokens.weight", "lm_head.weight", "lm_head.bias"):
        if name in loaded and len(loaded[name]) == len(words) + 1:
            loaded[name] = loaded[name][:-1]  # its task's last word, <mask>, is in no dict.txt
    # what no RoBERTa has: clusters, heads of a reader, and the mark of its version
    anew = [
        name
        for name in mine
        if not name.startswith("encoder.") or ".routers." in name or name == "encoder.version"
    ]
    names = list(loaded)
    allowed = "a RoBERTa of the same sizes, positions and words"
    model.start_from(option, path, loaded, [n for n in anew if n not in loaded], allowed)
    tell(path, mine, names, heads - {*names})


def check_words(option: str, path: str, words: Dictionary) -> None:
    """Raise CheckpointError where the folder of a checkpoint has a dictionary of other words."""
    beside = Path(path).parent / "dict.txt"
    if not beside.is_file():
        return
    theirs: list[str] = Dictionary.load(str(beside)).symbols
    own = words.symbols[: -1 if words.symbols[-1] == "<mask>" else None]  # a task's own word
    if theirs != own:
        pairs = zip(theirs, own, strict=False)
        first = next((n for n, (a, b) in enumerate(pairs) if a != b), None)
        what = f"{len(theirs)} words, here {len(own)}"
        if first is not None:
            what = f"word {first} is {theirs[first]!r}, here {own[first]!r}"
        problem = f"{beside} is another dictionary ({what})"
        raise unfit(option, path, problem, "data prepared with that dict.txt")
