"""Encoders that start from a folder of BERT's form, as ``transformers`` writes them.

A family of models is a table of facts: what its tensors are called, what its configuration must
say, and where its positions begin. Shape letters: D model width, V words.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from fairseq import utils
from torch import Tensor

from fairseq_clusterformer.data.subwords import TOKENIZER, TokenizerSubwords

from .checkpoints import CheckpointError
from .encoder_only import EncoderOnlyModel, tell

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
_ACTIVATIONS = {"gelu_new": "gelu_accurate", "gelu_pytorch_tanh": "gelu_accurate"}


@dataclass(frozen=True)
class Family:
    """What is to know of a family of encoders.

    Attributes:
        prefix: of its encoder's tensors in a model with a head.
        layer: what its layers' tensors begin with, before the number.
        names: of a layer's linear maps and norms: theirs, ours.
        sizes: our options: what its configuration calls them.
        fixed: what its configuration must say.
        unused: rows of its table of positions before the first position.
        types: whether it has embeddings of token types.
        epsilon: of its layer norms; None: its configuration says it.
    """

    prefix: str
    layer: str = "encoder.layer"
    names: Mapping[str, str] = field(default_factory=lambda: _BERT_LAYER)
    sizes: Mapping[str, str] = field(default_factory=lambda: _BERT_SIZES)
    fixed: Mapping[str, object] = field(default_factory=dict)
    unused: int = 0
    types: bool = True
    epsilon: float | None = None


_ABSOLUTE = {"position_embedding_type": "absolute", "is_decoder": False}
#: by the ``model_type`` of a configuration
FAMILIES = {
    "bert": Family("bert.", fixed=_ABSOLUTE),
    "roberta": Family("roberta.", fixed=_ABSOLUTE | {"pad_token_id": 1}, unused=2),
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
        types=False,
        epsilon=1e-12,
    ),
}


def load_folder(model: EncoderOnlyModel, folder: str, option: str = "--pretrained") -> None:
    """Start a model's encoder from a folder. What the folder does not have starts anew.

    Args:
        model: with ``args``, and an ``encoder`` of the folder's sizes, token types and words.
        folder: with ``config.json``, ``tokenizer.json`` and ``model.safetensors`` (or
            ``pytorch_model.bin``).
        option: that names the folder, for errors.

    Raises:
        CheckpointError: files that are missing or damaged, another family, sizes or words.
    """
    path = Path(folder)
    config = _config(path, option)
    family = _family(config, path, option)
    numbers = _numbers(model.encoder.dictionary.symbols, path, option)
    theirs = _tensors(path, option)
    mine = model.state_dict()
    try:
        _check_options(model.args, config, family)
        loaded, left = _renamed(theirs, family, config, numbers)
        heads = _question_answering(theirs, mine)
        loaded |= heads
        model.load_state_dict(mine | loaded)
    except KeyError as error:
        raise CheckpointError(
            f"{option} is {folder}: it has no {error}; allowed: a folder that transformers has "
            "written"
        ) from None
    except (TypeError, ValueError, IndexError, RuntimeError) as error:  # of what a file says
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{option} is {folder}: it does not fit: {reason}") from None
    if heads:
        left = [name for name in left if not name.startswith("qa_outputs.")]
    tell(folder, mine, loaded, left)


def sizes_of(path: Path, option: str) -> dict[str, Any]:
    """The options of a `ClusterformerReader` whose encoder is a folder's; raises CheckpointError
    as `load_folder`."""
    config = _config(path, option)
    try:
        return _sizes(config, _family(config, path, option))
    except (KeyError, TypeError, ValueError) as error:
        reason = f"has no {error}" if isinstance(error, KeyError) else f"does not fit: {error}"
        raise CheckpointError(f"{option} is {path}: its config.json {reason}") from None


def _config(path: Path, option: str) -> dict[str, Any]:
    try:
        return dict(json.loads((path / "config.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(
            f"{option} is {path}: no config.json that can be read ({error}); allowed: a folder "
            "that transformers has written"
        ) from None


def _family(config: dict[str, Any], path: Path, option: str) -> Family:
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise CheckpointError(
            f"{option} is {path}: its model_type is {kind}; allowed: {', '.join(FAMILIES)}"
        )
    family = FAMILIES[kind]
    for name, wanted in family.fixed.items():
        if (found := config.get(name, wanted)) != wanted:
            raise CheckpointError(f"{option} is {path}: its {name} is {found}; allowed: {wanted}")
    width = config.get(family.sizes["encoder_embed_dim"])
    if (found := config.get("embedding_size", width)) != width:
        raise CheckpointError(
            f"{option} is {path}: its embeddings are {found} wide; allowed: {width}, as its layers"
        )
    return family


def _sizes(config: dict[str, Any], family: Family) -> dict[str, Any]:
    """Options that make a folder's encoder; raises ValueError for what no option makes."""
    wanted = {ours: config[theirs] for ours, theirs in family.sizes.items()}
    wanted["activation_fn"] = _ACTIVATIONS.get(wanted["activation_fn"], wanted["activation_fn"])
    if wanted["activation_fn"] not in utils.get_available_activation_fns():
        raise ValueError(f"its activation is {wanted['activation_fn']}, which fairseq lacks")
    wanted["layer_norm_eps"] = family.epsilon or config["layer_norm_eps"]
    types = config.get("type_vocab_size", 2) if family.types else 1
    if types not in (1, 2):
        raise ValueError(f"its type_vocab_size is {types}; allowed: 1 or 2")
    wanted["token_types"] = 2 if types == 2 else 0
    wanted["window_positions"] = config["max_position_embeddings"] - family.unused
    return wanted


def _check_options(args: Any, config: dict[str, Any], family: Family) -> None:
    """Raises ValueError for options that make another model than the folder's, with all that
    fit; and for what no option makes."""
    wanted = _sizes(config, family)
    if any(getattr(args, name) != value for name, value in wanted.items() if hasattr(args, name)):
        shown = " ".join(f"--{n.replace('_', '-')} {v}" for n, v in wanted.items())
        raise ValueError(f"other sizes; allowed: {shown}")


def _numbers(symbols: list[str], path: Path, option: str) -> Tensor:
    """The folder's number of each of our symbols, int64 [V]."""
    try:
        found = TokenizerSubwords(path / TOKENIZER).symbols
    except ValueError as error:
        raise CheckpointError(f"{option} is {path}: {error}") from None
    theirs = {symbol: i for i, symbol in enumerate(found)}
    missing = [symbol for symbol in symbols if symbol not in theirs]
    if missing:
        raise CheckpointError(
            f"{option} is {path}: its tokenizer lacks {len(missing):,} of the dictionary's "
            f"symbols, {missing[0]!r} first; allowed: data prepared with --tokenizer "
            f"{path / TOKENIZER}"
        )
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
    except Exception as error:  # safetensors raises its own
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise CheckpointError(
            f"{option} is {path}: no weights that can be read ({reason}); allowed: "
            "model.safetensors or pytorch_model.bin"
        ) from None
    renamed = ((n.replace("LayerNorm.gamma", "LayerNorm.weight"), t) for n, t in found.items())
    return {
        name.replace("LayerNorm.beta", "LayerNorm.bias"): tensor.float()
        for name, tensor in renamed
        if tensor.is_floating_point()
    }


def _renamed(
    theirs: dict[str, Tensor], family: Family, config: dict[str, Any], numbers: Tensor
) -> tuple[dict[str, Tensor], list[str]]:
    """Our encoder's tensors, and the names of those that are left in the folder."""
    prefix = family.prefix if any(name.startswith(family.prefix) for name in theirs) else ""
    used: set[str] = set()

    def take(name: str) -> Tensor:
        used.add(prefix + name)
        return theirs[prefix + name]

    words = take("embeddings.word_embeddings.weight")
    places = take("embeddings.position_embeddings.weight")[family.unused :]
    ours = {"encoder.embed_tokens.weight": words[numbers]}
    if family.types:
        types = take("embeddings.token_type_embeddings.weight")
        if len(types) > 1:
            ours["encoder.embed_types.weight"] = types
        else:  # each token has the same
            places = places + types[0]
    # fairseq keeps two rows in front, for padding
    ours["encoder.embed_positions.weight"] = torch.cat(
        [places.new_zeros(2, words.size(1)), places]
    )
    for name, tensor in _maps(take, family, config[family.sizes["encoder_layers"]]):
        ours[name] = tensor
    return ours, [name for name in theirs if name not in used]


def _maps(take, family: Family, layers: int) -> Iterator[tuple[str, Tensor]]:
    names = {"embeddings.LayerNorm": "encoder.layernorm_embedding"}
    for i in range(layers):
        names |= {
            f"{family.layer}.{i}.{theirs}": f"encoder.layers.{i}.{ours}"
            for theirs, ours in family.names.items()
        }
    for name, then in names.items():
        for part in ("weight", "bias"):
            yield f"{then}.{part}", take(f"{name}.{part}")


def _question_answering(
    theirs: dict[str, Tensor], mine: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The head of a model of ``...ForQuestionAnswering``, where ours has one."""
    return {
        f"heads.span.{part}": theirs[f"qa_outputs.{part}"]
        for part in ("weight", "bias")
        if f"qa_outputs.{part}" in theirs and f"heads.span.{part}" in mine
    }
