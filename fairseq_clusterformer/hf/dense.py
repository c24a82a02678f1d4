"""Dense models of ``transformers`` as ours with full attention: the same logits, word by word.

``clusterformer export FOLDER OUT --to fairseq`` writes them as bundles, which ``clusterformer
convert`` turns into clustered models.

Shape letters: D model width, V words.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.dataclass.configs import CommonConfig, DatasetConfig
from fairseq.models import MODEL_DATACLASS_REGISTRY
from fairseq.tasks import TASK_DATACLASS_REGISTRY
from omegaconf import OmegaConf
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, PreTrainedModel

from fairseq_clusterformer.errors import bad_option
from fairseq_clusterformer.inference.load import Loaded, reason_of
from fairseq_clusterformer.models.checkpoints import CheckpointError
from fairseq_clusterformer.models.encoder_only import fingerprint

from .build import build_model
from .configuration import ClusterformerConfig

ALLOWED = "a folder of GPT-2 or RoBERTa that save_pretrained wrote, tokenizer included"
_EPSILON = 1e-5  # of fairseq's layer norm
_ACTIVATIONS = {
    "gelu_new": "gelu_accurate",
    "gelu_pytorch_tanh": "gelu_accurate",
    "gelu": "gelu",
    "relu": "relu",
}
_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
_NEVER = -1e4  # logit of a symbol that the dense model does not have
State = dict[str, Tensor]


@dataclass(frozen=True)
class Dense:
    """How models of a type become ours.

    Attributes:
        auto: the Auto class that loads them.
        architecture, task, criterion: of fairseq.
        options: ours, of a configuration of theirs.
        state: our tensors, of a model of theirs and the numbers of its words in our order.
    """

    auto: type
    architecture: str
    task: str
    criterion: str
    options: Callable[[Any], dict[str, Any]]
    state: Callable[[PreTrainedModel, list[int]], State]


def is_dense(folder: Path) -> bool:
    """Whether a folder holds a model of another type than ours."""
    try:
        record = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    known = (None, ClusterformerConfig.model_type)
    return isinstance(record, dict) and record.get("model_type") not in known


def read_dense(folder: Path, data: Path) -> Loaded:
    """Read a dense model as ours, with full attention.

    Args:
        data: a new folder, which gets ``dict.txt``, ``encoder.json`` and ``vocab.bpe``.

    Raises:
        UserError: a model of another type or with another form of a layer; files that are missing
            or damaged.
    """
    record = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    kind = KINDS.get(record["model_type"])
    if kind is None:
        problem = f"a model of the type {record['model_type']}"
        raise bad_option("CHECKPOINT", folder, ALLOWED, problem)
    try:
        theirs = kind.auto.from_pretrained(folder, dtype=torch.float32).eval()
        pieces, merges = _tokenizer(folder)
        options = kind.options(theirs.config)
        _check_special(theirs.config, pieces)
    except (OSError, SafetensorError, ValueError, RuntimeError, KeyError) as error:
        raise bad_option("CHECKPOINT", folder, ALLOWED, reason_of(error)) from None
    words = _write_data(data, pieces, merges, theirs.config)
    config = ClusterformerConfig(
        architecture=kind.architecture,
        options=options,
        vocab_size=len(_SPECIAL) + len(words) + (kind.task == "masked_lm"),
        max_position_embeddings=options["max_target_positions"],
    )
    model = build_model(config)
    numbers = _numbers(theirs.config, words, config.vocab_size)
    state = kind.state(theirs, numbers)
    if kind.task == "masked_lm":
        dictionary = Dictionary.load(str(data / "dict.txt"))
        dictionary.add_symbol("<mask>")  # as fairseq's task does
        state["vocabulary"] = model.vocabulary = fingerprint(dictionary)
    own = model.state_dict()  # without its version, fairseq drops the last layer norm
    state |= {name: tensor for name, tensor in own.items() if name.endswith(".version")}
    try:
        model.load_state_dict(state)
    except CheckpointError as error:
        raise bad_option("CHECKPOINT", folder, ALLOWED, str(error)) from None
    return Loaded(
        model=model.eval(),
        task=SimpleNamespace(cfg=SimpleNamespace()),
        cfg=_training(kind, vars(config.namespace()), options["max_target_positions"]),
        folder=data,
        path=folder,
        updates=0,
    )


def _training(kind: Dense, options: dict[str, Any], length: int):
    """The options of a training that would have made the model."""
    defaults = {
        "common": CommonConfig(),
        "dataset": DatasetConfig(),
        "task": TASK_DATACLASS_REGISTRY[kind.task](),
        "model": MODEL_DATACLASS_REGISTRY[kind.architecture](),
    }
    plain = OmegaConf.create(
        {name: dict(vars(section)) for name, section in defaults.items()},
        flags={"allow_objects": True},
    )
    plain.task.update({"_name": kind.task, "data": None, "tokens_per_sample": length})
    plain.model.update({"_name": kind.architecture, **options})
    sections = OmegaConf.to_container(plain, resolve=True, enum_to_str=True)
    sections = {
        "model": sections["model"],
        "task": sections["task"],
        "criterion": {"_name": kind.criterion},
    }
    return OmegaConf.create(sections, flags={"allow_objects": True})


def _tokenizer(folder: Path) -> tuple[dict[str, int], list[str]]:
    """Pieces with their numbers, and merges, of byte-level BPE."""
    if (folder / "tokenizer.json").is_file():
        model = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]
        merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
        return model["vocab"], merges
    pieces = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    lines = (folder / "merges.txt").read_text(encoding="utf-8").splitlines()
    return pieces, [line for line in lines if line and not line.startswith("#version")]


def _write_data(data: Path, pieces: dict[str, int], merges: list[str], config: Any) -> list[int]:
    """Write the files that GPT-2's coding is read from; return the numbers that the words have in
    the dense model, in the dictionary's order."""
    special = {config.bos_token_id, config.eos_token_id, config.pad_token_id}
    special |= {pieces[name] for name in (*_SPECIAL, "<mask>") if name in pieces}
    in_order = sorted((n, piece) for piece, n in pieces.items() if n not in special)
    ours = {piece: i for i, (_, piece) in enumerate(in_order)}
    data.mkdir(parents=True, exist_ok=True)
    (data / "encoder.json").write_text(json.dumps(ours), encoding="utf-8")
    text = "\n".join(["#version: 0.2", *merges, ""])
    (data / "vocab.bpe").write_text(text, encoding="utf-8")
    lines = "".join(f"{i} 1\n" for i in range(len(in_order)))
    (data / "dict.txt").write_text(lines, encoding="utf-8")
    return [number for number, _ in in_order]


def _numbers(config: Any, words: list[int], size: int) -> list[int]:
    """The dense model's number of each of our symbols; -1 where it has none."""
    numbers = [-1] * size
    numbers[len(_SPECIAL) : len(_SPECIAL) + len(words)] = words
    numbers[2] = config.eos_token_id
    if config.model_type == "roberta":  # which has fairseq's special symbols, and <mask> last
        numbers[0], numbers[1], numbers[3] = config.bos_token_id, config.pad_token_id, 3
        numbers[-1] = config.vocab_size - 1
    return numbers


def _check_special(config: Any, pieces: dict[str, int]) -> None:
    """Refuse special symbols that stand elsewhere than :func:`_numbers` takes them to be.

    Raises:
        ValueError: naming the symbol.
    """
    if not isinstance(config.eos_token_id, int):
        raise ValueError(f"its eos_token_id is {config.eos_token_id}, not a number")
    if (most := max(pieces.values(), default=0)) >= config.vocab_size:
        raise ValueError(f"its tokenizer has number {most}, and the model {config.vocab_size}")
    if config.model_type == "roberta":
        for symbol, wanted in (("<unk>", 3), ("<mask>", config.vocab_size - 1)):
            if (found := pieces.get(symbol, wanted)) != wanted:
                raise ValueError(f"its {symbol} is number {found}, not {wanted}")


def _embeddings(table: Tensor, numbers: list[int], silent: Tensor) -> Tensor:
    """Rows of a table [V, D] in our order, and `silent` [D] where it has none."""
    found = torch.stack([silent if n < 0 else table[n] for n in numbers])
    return found.clone()


def _never(weight: Tensor, bias: Tensor) -> Tensor:
    """An embedding [D] that makes one and the same low logit behind a layer norm.

    What leaves a layer norm is h = weight n + bias with a mean of n of 0, so that its product
    with t / weight is t times the sum of bias / weight, whatever n is.
    """
    total = (bias / weight).sum()
    if not total.abs() > 1e-3:  # an untrained norm: as likely as a word of embedding 0
        return torch.zeros_like(weight)
    return _NEVER / total / weight


def _checked(config: Any, **wanted: object) -> None:
    """Refuse a configuration whose layers are others than ours.

    Raises:
        ValueError: naming the option.
    """
    for name, value in wanted.items():
        if (found := getattr(config, name, value)) != value:
            raise ValueError(f"its {name} is {found}, not {value}")


def _sizes(side: str, config: Any, inner: int, activation: str) -> dict[str, Any]:
    if activation not in _ACTIVATIONS:
        raise ValueError(f"its activation is {activation}, not {', '.join(_ACTIVATIONS)}")
    return {
        f"{side}_layers": config.num_hidden_layers,
        f"{side}_embed_dim": config.hidden_size,
        f"{side}_ffn_embed_dim": inner,
        f"{side}_attention_heads": config.num_attention_heads,
        f"{side}_learned_pos": True,
        "activation_fn": _ACTIVATIONS[activation],
        "no_scale_embedding": True,
    }


def _gpt2_options(config: Any) -> dict[str, Any]:
    _checked(
        config,
        layer_norm_epsilon=_EPSILON,
        scale_attn_weights=True,
        scale_attn_by_inverse_layer_idx=False,
        add_cross_attention=False,
        tie_word_embeddings=True,
    )
    inner = config.n_inner or 4 * config.n_embd
    return {
        **_sizes("decoder", config, inner, config.activation_function),
        "decoder_normalize_before": True,
        "share_decoder_input_output_embed": True,
        "attention": "full",
        "dropout": config.resid_pdrop,
        "attention_dropout": config.attn_pdrop,
        "max_target_positions": config.n_positions,
    }


def _gpt2_state(model: PreTrainedModel, numbers: list[int]) -> State:
    theirs = model.state_dict()
    norm = [theirs[f"transformer.ln_f.{name}"] for name in ("weight", "bias")]
    table = _embeddings(theirs["transformer.wte.weight"], numbers, _never(*norm))
    state = {
        "decoder.embed_tokens.weight": table,
        "decoder.output_projection.weight": table,
        "decoder.embed_positions.weight": _positions(theirs["transformer.wpe.weight"]),
        "decoder.layer_norm.weight": norm[0],
        "decoder.layer_norm.bias": norm[1],
    }
    names = {
        "ln_1": "self_attn_layer_norm",
        "ln_2": "final_layer_norm",
        "mlp.c_fc": "fc1",
        "mlp.c_proj": "fc2",
        "attn.c_proj": "self_attn.out_proj",
    }
    for i in range(model.config.n_layer):
        old, new = f"transformer.h.{i}", f"decoder.layers.{i}"
        for name, then in names.items():
            weight = theirs[f"{old}.{name}.weight"]  # its linear maps are the other way round
            state[f"{new}.{then}.weight"] = weight.t() if weight.dim() == 2 else weight
            state[f"{new}.{then}.bias"] = theirs[f"{old}.{name}.bias"]
        for part in ("weight", "bias"):
            joined = theirs[f"{old}.attn.c_attn.{part}"].chunk(3, dim=-1)
            for name, tensor in zip("qkv", joined, strict=True):
                tensor = tensor.t() if tensor.dim() == 2 else tensor
                state[f"{new}.self_attn.{name}_proj.{part}"] = tensor
    return {name: tensor.clone() for name, tensor in state.items()}


def _roberta_options(config: Any) -> dict[str, Any]:
    _checked(
        config,
        layer_norm_eps=_EPSILON,
        pad_token_id=1,
        is_decoder=False,
        tie_word_embeddings=True,
    )
    return {
        **_sizes("encoder", config, config.intermediate_size, config.hidden_act),
        "layernorm_embedding": True,
        "encoder_attention": "full",
        "dropout": config.hidden_dropout_prob,
        "attention_dropout": config.attention_probs_dropout_prob,
        "max_target_positions": config.max_position_embeddings - 2,
    }


def _roberta_state(model: PreTrainedModel, numbers: list[int]) -> State:
    theirs = model.state_dict()
    embeddings = "roberta.embeddings"
    silent = theirs[f"{embeddings}.word_embeddings.weight"].new_zeros(model.config.hidden_size)
    table = _embeddings(theirs[f"{embeddings}.word_embeddings.weight"], numbers, silent)
    places = theirs[f"{embeddings}.position_embeddings.weight"]
    # each token is of the first type
    places = places + theirs[f"{embeddings}.token_type_embeddings.weight"][0]
    biases = [_NEVER if n < 0 else float(theirs["lm_head.bias"][n]) for n in numbers]
    state = {
        "encoder.embed_tokens.weight": table,
        "lm_head.weight": table,
        "encoder.embed_positions.weight": places,
        "lm_head.bias": torch.tensor(biases),
    }
    for name, tensor in _renamed(theirs, model.config.num_hidden_layers, embeddings):
        state[name] = tensor
    return {name: tensor.clone() for name, tensor in state.items()}


def _renamed(theirs: State, layers: int, embeddings: str) -> Iterator[tuple[str, Tensor]]:
    """RoBERTa's tensors that are ours by another name."""
    names = {f"{embeddings}.LayerNorm": "encoder.layernorm_embedding"}
    names |= {"lm_head.dense": "lm_head.dense", "lm_head.layer_norm": "lm_head.layer_norm"}
    for i in range(layers):
        old, new = f"roberta.encoder.layer.{i}", f"encoder.layers.{i}"
        names |= {
            f"{old}.attention.self.query": f"{new}.self_attn.q_proj",
            f"{old}.attention.self.key": f"{new}.self_attn.k_proj",
            f"{old}.attention.self.value": f"{new}.self_attn.v_proj",
            f"{old}.attention.output.dense": f"{new}.self_attn.out_proj",
            f"{old}.attention.output.LayerNorm": f"{new}.self_attn_layer_norm",
            f"{old}.intermediate.dense": f"{new}.fc1",
            f"{old}.output.dense": f"{new}.fc2",
            f"{old}.output.LayerNorm": f"{new}.final_layer_norm",
        }
    for name, then in names.items():
        for part in ("weight", "bias"):
            yield f"{then}.{part}", theirs[f"{name}.{part}"]


def _positions(table: Tensor) -> Tensor:
    """Learned positions with the rows that fairseq keeps for padding in front."""
    return torch.cat([table.new_zeros(2, table.size(1)), table])


KINDS = {
    "gpt2": Dense(
        AutoModelForCausalLM,
        "clusterformer_lm",
        "language_modeling",
        "clusterformer_cross_entropy",
        _gpt2_options,
        _gpt2_state,
    ),
    "roberta": Dense(
        AutoModelForMaskedLM,
        "clusterformer_masked_lm",
        "masked_lm",
        "clusterformer_masked_lm",
        _roberta_options,
        _roberta_state,
    ),
}
