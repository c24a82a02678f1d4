"""Families of models in folders of ``transformers``, as one table of facts: what is fixed, and
what their options and their tensors are called. A new family is a row of :data:`FAMILIES`, and a
function for what no table says: its embeddings. Shape letters: D model width, V words."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

State = dict[str, Tensor]
EPSILON = 1e-5  # of fairseq's layer norm
NEVER = -1e4  # logit of a symbol that the other model does not have
#: fairseq's names by theirs
ACTIVATIONS = {name: name for name in ("gelu", "relu", "swish", "swiglu", "tanh", "linear")}
ACTIVATIONS |= dict.fromkeys(("gelu_new", "gelu_pytorch_tanh"), "gelu_accurate")
ACTIVATIONS["silu"] = "swish"
#: of options by the ends of their names
_TYPES = {"activation_fn": (str, "a name"), "norm_eps": (float, "a number")}
_TYPES |= dict.fromkeys(("_layers", "_dim", "_heads", "_positions"), (int, "a whole number"))


@dataclass(frozen=True)
class Family:
    """How models of a type become ours."""

    #: our options by theirs: a name, or a function of their configuration
    options: Mapping[str, str | Callable[[Any], Any]]
    #: replaced in the names of their tensors, in this order; tensors without any are left out
    names: Mapping[str, str]
    #: our tensors that depend on the words, given their tensors, their configuration and their
    #: number of each of our symbols (-1: none)
    tables: Callable[[State, Any, Sequence[int]], State]
    fixed: Mapping[str, Any]  # what their options must be, where they have them
    always: Mapping[str, Any]  # our options that are the same for all
    architecture: str  # of fairseq
    task: str
    #: how their text is coded, see `fairseq_clusterformer.conversion.dense`
    text: str = "tokenizer"
    auto: str = ""  # the class of transformers that loads them; none: the encoder's files are read
    prefix: str = ""  # of an encoder's tensors in a model with a head
    split: Callable[[State], State] = field(default=dict)  # their tensors as one linear map each

    def options_of(self, config: Any) -> dict[str, Any]:
        """Our options of a configuration of theirs. Raises ValueError: layers of another form than
        ours; it names the option."""
        for name, wanted in self.fixed.items():
            if (found := getattr(config, name, wanted)) != wanted:
                raise ValueError(f"its {name} is {found}, not {wanted}")
        options = dict(self.always)
        for ours, theirs in self.options.items():
            options[ours] = theirs(config) if callable(theirs) else getattr(config, theirs)
            kinds = (kind for end, kind in _TYPES.items() if ours.endswith(end))
            for kind, allowed in kinds if isinstance(theirs, str) else ():
                if type(options[ours]) is not kind:
                    raise ValueError(f"its {theirs} is {options[ours]!r}; allowed: {allowed}")
        if (activation := options["activation_fn"]) not in ACTIVATIONS:
            raise ValueError(f"its activation is {activation}, not {', '.join(ACTIVATIONS)}")
        return options | {"activation_fn": ACTIVATIONS[activation]}

    def named(self, name: str) -> str | None:
        """Our name of a tensor of theirs; None: none of our layers has it."""
        name = name.removeprefix(self.prefix)
        if not any(old in name for old in self.names):
            return None
        for old, new in self.names.items():
            name = name.replace(old, new)
        return name

    def state_of(self, theirs: State, config: Any, numbers: Sequence[int]) -> State:
        """Our tensors, of theirs and their number of each of our symbols."""
        theirs = {name.removeprefix(self.prefix): tensor for name, tensor in theirs.items()}
        named = {self.named(name): tensor for name, tensor in self.split(theirs).items()}
        named.pop(None, None)
        return named | self.tables(theirs, config, numbers)


def _rows(table: Tensor, numbers: Sequence[int], silent: Tensor | float = 0.0) -> Tensor:
    """Rows of a table [V, D] or biases [V] in our order; `silent` for no row."""
    order = torch.as_tensor(numbers)
    rows = table[order.clamp(min=0)]
    rows[order < 0] = silent
    return rows


def _behind_padding(places: Tensor) -> Tensor:
    """Learned positions with the rows that fairseq keeps for padding in front."""
    return torch.cat([places.new_zeros(2, places.size(1)), places])


def _sizes(side: str, **others: str) -> dict[str, str]:
    return {
        f"{side}_layers": "num_hidden_layers",
        f"{side}_embed_dim": "hidden_size",
        f"{side}_ffn_embed_dim": "intermediate_size",
        f"{side}_attention_heads": "num_attention_heads",
        **others,
    }


# Encoders of BERT's form

_MASKED_BIAS = {"cls.predictions.bias", "lm_head.bias", "vocab_projector.bias"}


def _bert_types(config: Any) -> int:
    if (types := getattr(config, "type_vocab_size", 2)) not in (1, 2):
        raise ValueError(f"its type_vocab_size is {types}; allowed: 1 or 2")
    return 2 if types == 2 else 0


def _bert_tables(theirs: State, config: Any, numbers: Sequence[int]) -> State:
    """ "encoder.embed_types.weight" [1 or 2, D] is 0 where there are no types of tokens."""
    words = _rows(theirs["embeddings.word_embeddings.weight"], numbers)
    places = theirs["embeddings.position_embeddings.weight"]
    places = places[2 if config.model_type == "roberta" else 0 :]
    types = theirs.get("embeddings.token_type_embeddings.weight", 0 * places[:1])
    found = {
        "encoder.embed_tokens.weight": words,
        "encoder.embed_positions.weight": _behind_padding(places),
        "encoder.embed_types.weight": types,
        "lm_head.weight": words,
    }
    for name in theirs.keys() & _MASKED_BIAS:
        found["lm_head.bias"] = _rows(theirs[name], numbers)
    return found


_BERT = Family(
    options=_sizes("encoder", activation_fn="hidden_act", layer_norm_eps="layer_norm_eps")
    | {"window_positions": "max_position_embeddings", "token_types": _bert_types},
    names={
        "embeddings.LayerNorm.": "encoder.layernorm_embedding.",
        "encoder.layer.": "encoder.layers.",
        **{f".attention.self.{x}.": f".self_attn.{x[0]}_proj." for x in ("query", "key", "value")},
        ".attention.output.dense.": ".self_attn.out_proj.",
        ".attention.output.LayerNorm.": ".self_attn_layer_norm.",
        ".intermediate.dense.": ".fc1.",
        ".output.dense.": ".fc2.",
        ".output.LayerNorm.": ".final_layer_norm.",
        "cls.predictions.transform.dense.": "lm_head.dense.",
        "cls.predictions.transform.LayerNorm.": "lm_head.layer_norm.",
        **{f"lm_head.{part}.": f"lm_head.{part}." for part in ("dense", "layer_norm")},  # RoBERTa
        "qa_outputs.": "heads.span.",
    },
    tables=_bert_tables,
    fixed={"position_embedding_type": "absolute", "is_decoder": False},
    always={
        "encoder_learned_pos": True,
        "layernorm_embedding": True,
        "no_scale_embedding": True,
        "encoder_normalize_before": False,
        "no_token_positional_embeddings": False,
    },
    architecture="clusterformer_masked_lm",
    task="masked_lm",
    text="bert",
    prefix="bert.",
)
_ROBERTA = replace(
    _BERT,
    options=_BERT.options
    | {"window_positions": lambda config: config.max_position_embeddings - 2},
    fixed=_BERT.fixed | {"pad_token_id": 1},
    prefix="roberta.",
)
_DISTILBERT = replace(
    _BERT,
    options={
        "encoder_layers": "n_layers",
        "encoder_embed_dim": "dim",
        "encoder_ffn_embed_dim": "hidden_dim",
        "encoder_attention_heads": "n_heads",
        "activation_fn": "activation",
        "window_positions": "max_position_embeddings",
    },
    names=_BERT.names
    | {
        "transformer.layer.": "encoder.layers.",
        **{f".attention.{x}_lin.": f".self_attn.{x}_proj." for x in ("q", "k", "v", "out")},
        ".sa_layer_norm.": ".self_attn_layer_norm.",
        ".ffn.lin1.": ".fc1.",
        ".ffn.lin2.": ".fc2.",
        ".output_layer_norm.": ".final_layer_norm.",
        "vocab_transform.": "lm_head.dense.",
        "vocab_layer_norm.": "lm_head.layer_norm.",
    },
    fixed={},
    always=_BERT.always | {"token_types": 0, "layer_norm_eps": 1e-12},
    prefix="distilbert.",
)


# Language models


def _gpt2_tables(theirs: State, config: Any, numbers: Sequence[int]) -> State:
    norm, bias = (theirs[f"transformer.ln_f.{name}"] for name in ("weight", "bias"))
    # A missing symbol needs an embedding that makes one low logit. What leaves the layer norm is
    # h = weight n + bias, and n has a mean of 0. So h times t / weight is t sum(bias / weight).
    total = (bias / norm).sum()
    silent = 0.0 if total.abs() <= 1e-3 else NEVER / total / norm  # an untrained norm: 0
    table = _rows(theirs["transformer.wte.weight"], numbers, silent)
    return {
        "decoder.embed_tokens.weight": table,
        "decoder.output_projection.weight": table,
        "decoder.embed_positions.weight": _behind_padding(theirs["transformer.wpe.weight"]),
    }


def _gpt2_split(theirs: State) -> State:
    """Queries, keys and values apart; and linear maps [out, in], which are the other way round."""
    found = {}
    for name, tensor in theirs.items():
        if ".c_" in name and tensor.dim() == 2:
            tensor = tensor.t()
        parts = tensor.chunk(3) if ".c_attn." in name else [tensor]
        for letter, part in zip("qkv", parts, strict=False):
            found[name.replace("c_attn", f"{letter}_proj")] = part
    return found


_GPT2 = Family(
    options=_sizes(
        "decoder",
        activation_fn="activation_function",
        dropout="resid_pdrop",
        attention_dropout="attn_pdrop",
        max_target_positions="n_positions",
    )
    | {"decoder_ffn_embed_dim": lambda config: config.n_inner or 4 * config.n_embd},
    names={
        "transformer.ln_f.": "decoder.layer_norm.",
        "transformer.h.": "decoder.layers.",
        ".ln_1.": ".self_attn_layer_norm.",
        ".ln_2.": ".final_layer_norm.",
        ".mlp.c_fc.": ".fc1.",
        ".mlp.c_proj.": ".fc2.",
        ".attn.c_proj.": ".self_attn.out_proj.",
        ".attn.": ".self_attn.",
    },
    tables=_gpt2_tables,
    fixed={
        "layer_norm_epsilon": EPSILON,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
        "tie_word_embeddings": True,
    },
    always={
        "attention": "full",
        "decoder_learned_pos": True,
        "decoder_normalize_before": True,
        "no_scale_embedding": True,
        "share_decoder_input_output_embed": True,
    },
    architecture="clusterformer_lm",
    task="language_modeling",
    auto="AutoModelForCausalLM",
    split=_gpt2_split,
)


def _llama_tables(theirs: State, config: Any, numbers: Sequence[int]) -> State:
    words = theirs["model.embed_tokens.weight"]
    table = output = _rows(words, numbers)
    if not config.tie_word_embeddings:
        output = _rows(theirs["lm_head.weight"], numbers)
    none = words.new_zeros(len(words))
    return {
        "decoder.embed_tokens.weight": table,
        "decoder.output_projection.weight": output,
        "decoder.output_projection.bias": _rows(none, numbers, NEVER),
    }


def _llama_sight(config: Any) -> str:
    """What the heads of each layer see."""
    window = getattr(config, "sliding_window", None)
    if window is None or config.model_type == "llama":  # which has no use for such a number
        return "full"
    layers = getattr(config, "layer_types", None) or ["sliding_attention"]
    return ",".join("full" if kind == "full_attention" else f"window({window})" for kind in layers)


def _llama_scaling(config: Any) -> str:
    """As ``--rotary-scaling`` has it."""
    known = ("default", "linear", "llama3", "yarn")
    if (kind := config.rope_parameters["rope_type"]) not in known:
        raise ValueError(f"its rope_type is {kind}, not {', '.join(known)}")
    return "" if kind == "default" else rotary_table(config)


def rotary_table(config: Any) -> str:
    """What ``--rotary-scaling`` is for a configuration of transformers that scales."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = config.rope_parameters
    found, sharpness = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, "cpu")
    plain = rope["rope_theta"] ** -(torch.arange(len(found)).double() / len(found))
    rates = ",".join(f"{rate:.7g}" for rate in (found / plain).tolist())
    return f"{sharpness**2:.9g}:{rates}"


_LLAMA = Family(
    options=_sizes(
        "decoder",
        decoder_kv_heads="num_key_value_heads",
        share_decoder_input_output_embed="tie_word_embeddings",
        norm_eps="rms_norm_eps",
        attention_dropout="attention_dropout",
        max_target_positions="max_position_embeddings",
    )
    | {
        "decoder_head_dim": lambda config: getattr(config, "head_dim", None) or 0,
        "rotary_base": lambda config: config.rope_parameters["rope_theta"],
        "rotary_scaling": _llama_scaling,
        "attention": _llama_sight,
    },
    names={
        "model.layers.": "decoder.layers.",
        "model.norm.": "decoder.layer_norm.",
        ".input_layernorm.": ".self_attn_layer_norm.",
        ".post_attention_layernorm.": ".final_layer_norm.",
        ".mlp.gate_proj.": ".fc1.",
        ".mlp.up_proj.": ".fc_gated.",
        ".mlp.down_proj.": ".fc2.",
        ".o_proj.": ".out_proj.",
        ".q_norm.": ".norms.q.",
        ".k_norm.": ".norms.k.",
    },
    tables=_llama_tables,
    fixed={"hidden_act": "silu", "attention_bias": False, "mlp_bias": False},
    always={
        "decoder_normalize_before": True,
        "no_scale_embedding": True,
        "output_bias": True,  # which hides what their vocabulary does not have
        "norm": "rms",
        "biases": "none",
        "activation_fn": "swiglu",
        "positions": "rotary",
        "dropout": 0.0,
    },
    architecture="clusterformer_lm",
    task="language_modeling",
    auto="AutoModelForCausalLM",
)


# Models of pairs

_SIDES = ("encoder", "decoder")


def _begins_by_end(config: Any) -> bool:
    """Whether the decoder begins by ``</s>``, as fairseq's do."""
    return config.decoder_start_token_id == config.eos_token_id


def _bart_tables(theirs: State, config: Any, numbers: Sequence[int]) -> State:
    """Marian counts positions as fairseq does not: its sinusoids become learned positions."""
    shared, bias = theirs["model.shared.weight"], theirs["final_logits_bias"][0]
    table = _rows(shared, numbers)
    read = table.clone()  # of the decoder, where it begins by another symbol, which is our </s>
    read[2] = shared[config.decoder_start_token_id]
    found = {
        "encoder.embed_tokens.weight": table,
        "decoder.embed_tokens.weight": table if _begins_by_end(config) else read,
        "decoder.output_projection.weight": table,
        "decoder.output_projection.bias": _rows(bias, numbers, NEVER),
    }
    for side in _SIDES:
        places = theirs[f"model.{side}.embed_positions.weight"]
        is_marian = config.model_type == "marian"
        found[f"{side}.embed_positions.weight"] = _behind_padding(places) if is_marian else places
    return found


_BART = Family(
    options={
        f"{side}_{ours}": theirs.format(side)
        for side in _SIDES
        for ours, theirs in (
            ("layers", "{}_layers"),
            ("embed_dim", "d_model"),
            ("ffn_embed_dim", "{}_ffn_dim"),
            ("attention_heads", "{}_attention_heads"),
        )
    }
    | {name: name for name in ("dropout", "attention_dropout", "activation_dropout")}
    | {
        "max_source_positions": "max_position_embeddings",
        "max_target_positions": "max_position_embeddings",
        "activation_fn": "activation_function",
        "no_scale_embedding": lambda config: not config.scale_embedding,
        "share_all_embeddings": _begins_by_end,
    },
    names={
        f"model.{side}.{part}.": f"{side}.{part}."
        for side in _SIDES
        for part in ("layers", "layernorm_embedding")
    },
    tables=_bart_tables,
    fixed={
        "tie_word_embeddings": True,
        "share_encoder_decoder_embeddings": True,
        "normalize_before": False,
        "add_final_layer_norm": False,
    },
    always={
        "encoder_attention": "full",
        "decoder_attention": "full",
        "encoder_learned_pos": True,
        "decoder_learned_pos": True,
        "layernorm_embedding": True,
        "output_bias": True,
    },
    architecture="clusterformer",
    task="translation",
    text="bart",
    auto="AutoModelForSeq2SeqLM",
)

#: by the ``model_type`` of a configuration
FAMILIES = {
    "bert": _BERT,
    "roberta": _ROBERTA,
    "electra": replace(_BERT, prefix="electra."),
    "distilbert": _DISTILBERT,
    "gpt2": _GPT2,
    "marian": replace(_BART, always=_BART.always | {"layernorm_embedding": False}, text="marian"),
    "bart": _BART,
    "llama": _LLAMA,  # SmolLM2, too
    "mistral": _LLAMA,
    "qwen2": replace(_LLAMA, always=_LLAMA.always | {"biases": "qkv"}),
    "qwen3": replace(_LLAMA, always=_LLAMA.always | {"qk_norm": True}),
}
ENCODERS = [name for name, family in FAMILIES.items() if not family.auto]
KNOWN = "GPT-2, BERT, RoBERTa, Marian, BART, Llama, Mistral, Qwen2 or Qwen3"
