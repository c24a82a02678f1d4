"""Families of dense models as tables of facts: what is fixed, names of options and of tensors.

A new family is a row of :data:`FAMILIES`, and a function for what no table says: its embeddings.
Encoders of BERT's form are in ``models/pretrained.py``.
Shape letters: D model width, V words.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

from .texts import bart_text, gpt2_text, marian_text, tokenizer_text

State = dict[str, Tensor]
EPSILON = 1e-5  # of fairseq's layer norm
NEVER = -1e4  # logit of a symbol that the dense model does not have
_ACTIVATIONS = {
    "gelu_new": "gelu_accurate",
    "gelu_pytorch_tanh": "gelu_accurate",
    "gelu": "gelu",
    "relu": "relu",
    "swish": "swish",
    "silu": "swish",
    "swiglu": "swiglu",
}


@dataclass(frozen=True)
class Family:
    """How models of a type become ours."""

    auto: type  # the Auto class that loads them
    architecture: str  # of fairseq
    task: str
    fixed: dict[str, Any]  # what their options must be, where they have them
    always: dict[str, Any]  # our options that are the same for all
    #: our options by theirs: a name, or a function of their configuration
    options: dict[str, str | Callable[[Any], Any]]
    #: replaced in the names of their tensors, in this order; tensors without any are left out
    names: dict[str, str]
    #: our tensors that depend on the words, given their tensors, their configuration and their
    #: number of each of our symbols (-1: none)
    tables: Callable[[State, Any, list[int]], State]
    #: writes their text's files; see `fairseq_clusterformer.conversion.texts`
    text: Callable[[Path, Path, Any], list[int]]
    split: Callable[[State], State] = dict  # their tensors as one linear map each

    def options_of(self, config: Any) -> dict[str, Any]:
        """Our options of a configuration of theirs. Raises ValueError: layers of another form than
        ours; it names the option."""
        for name, wanted in self.fixed.items():
            if (found := getattr(config, name, wanted)) != wanted:
                raise ValueError(f"its {name} is {found}, not {wanted}")
        options = dict(self.always)
        for ours, theirs in self.options.items():
            options[ours] = theirs(config) if callable(theirs) else getattr(config, theirs)
        if (activation := options["activation_fn"]) not in _ACTIVATIONS:
            raise ValueError(f"its activation is {activation}, not {', '.join(_ACTIVATIONS)}")
        return options | {"activation_fn": _ACTIVATIONS[activation]}

    def state_of(self, theirs: State, config: Any, numbers: list[int]) -> State:
        """Our tensors, of theirs and their number of each of our symbols."""
        state = self.tables(theirs, config, numbers)
        for name, tensor in self.split(theirs).items():
            if any(old in name for old in self.names):
                for old, new in self.names.items():
                    name = name.replace(old, new)
                state[name] = tensor
        return state


def _rows(table: Tensor, numbers: list[int], silent: Tensor | None = None) -> Tensor:
    """Rows of a table [V, D] or biases [V] in our order; `silent` (default: 0) for no row."""
    order = torch.tensor(numbers)
    rows = table[order.clamp(min=0)]
    rows[order < 0] = torch.zeros_like(table[0]) if silent is None else silent
    return rows


def _behind_padding(places: Tensor) -> Tensor:
    """Learned positions with the rows that fairseq keeps for padding in front."""
    return torch.cat([places.new_zeros(2, places.size(1)), places])


def _sizes(side: str) -> dict[str, str]:
    return {
        f"{side}_layers": "num_hidden_layers",
        f"{side}_embed_dim": "hidden_size",
        f"{side}_attention_heads": "num_attention_heads",
    }


def _gpt2_tables(theirs: State, config: Any, numbers: list[int]) -> State:
    norm, bias = (theirs[f"transformer.ln_f.{name}"] for name in ("weight", "bias"))
    # A missing symbol needs an embedding that makes one low logit. What leaves the layer norm is
    # h = weight n + bias, and n has a mean of 0. So h times t / weight is t sum(bias / weight).
    total = (bias / norm).sum()
    silent = None if total.abs() <= 1e-3 else NEVER / total / norm  # an untrained norm: 0
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


GPT2 = Family(
    AutoModelForCausalLM,
    "clusterformer_lm",
    "language_modeling",
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
    options={
        **_sizes("decoder"),
        "decoder_ffn_embed_dim": lambda config: config.n_inner or 4 * config.n_embd,
        "activation_fn": "activation_function",
        "dropout": "resid_pdrop",
        "attention_dropout": "attn_pdrop",
        "max_target_positions": "n_positions",
    },
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
    text=gpt2_text,
    split=_gpt2_split,
)


_SIDES = ("encoder", "decoder")


def _begins_by_end(config: Any) -> bool:
    """Whether the decoder begins by ``</s>``, as fairseq's do."""
    return config.decoder_start_token_id == config.eos_token_id


def _marian_tables(theirs: State, config: Any, numbers: list[int]) -> State:
    """Marian counts positions as fairseq does not: its sinusoids become learned positions."""
    state = _bart_tables(theirs, config, numbers)
    for side in _SIDES:
        name = f"{side}.embed_positions.weight"
        state[name] = _behind_padding(state[name])
    return state


def _bart_tables(theirs: State, config: Any, numbers: list[int]) -> State:
    shared, bias = theirs["model.shared.weight"], theirs["final_logits_bias"][0]
    table = _rows(shared, numbers)
    read = table.clone()  # of the decoder, where it begins by another symbol, which is our </s>
    read[2] = shared[config.decoder_start_token_id]
    return {
        "encoder.embed_tokens.weight": table,
        "decoder.embed_tokens.weight": table if _begins_by_end(config) else read,
        "decoder.output_projection.weight": table,
        "decoder.output_projection.bias": _rows(bias, numbers, bias.new_tensor(NEVER)),
        **{
            f"{side}.embed_positions.weight": theirs[f"model.{side}.embed_positions.weight"]
            for side in _SIDES
        },
    }


BART = Family(
    AutoModelForSeq2SeqLM,
    "clusterformer",
    "translation",
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
    options={
        "encoder_layers": "encoder_layers",
        "decoder_layers": "decoder_layers",
        "encoder_embed_dim": "d_model",
        "decoder_embed_dim": "d_model",
        "encoder_ffn_embed_dim": "encoder_ffn_dim",
        "decoder_ffn_embed_dim": "decoder_ffn_dim",
        "encoder_attention_heads": "encoder_attention_heads",
        "decoder_attention_heads": "decoder_attention_heads",
        "max_source_positions": "max_position_embeddings",
        "max_target_positions": "max_position_embeddings",
        "activation_fn": "activation_function",
        "dropout": "dropout",
        "attention_dropout": "attention_dropout",
        "activation_dropout": "activation_dropout",
        "no_scale_embedding": lambda config: not config.scale_embedding,
        "share_all_embeddings": _begins_by_end,
    },
    names={
        f"model.{side}.{part}.": f"{side}.{part}."
        for side in _SIDES
        for part in ("layers", "layernorm_embedding")
    },
    tables=_bart_tables,
    text=bart_text,
)
MARIAN = replace(
    BART,
    always=BART.always | {"layernorm_embedding": False},
    tables=_marian_tables,
    text=marian_text,
)


def _llama_tables(theirs: State, config: Any, numbers: list[int]) -> State:
    words = theirs["model.embed_tokens.weight"]
    table = output = _rows(words, numbers)
    if not config.tie_word_embeddings:
        output = _rows(theirs["lm_head.weight"], numbers)
    none = words.new_zeros(len(words))
    return {
        "decoder.embed_tokens.weight": table,
        "decoder.output_projection.weight": output,
        "decoder.output_projection.bias": _rows(none, numbers, none[0] + NEVER),
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
    rope = config.rope_parameters
    if (kind := rope["rope_type"]) not in ("default", "llama3"):
        raise ValueError(f"its rope_type is {kind}, not default, llama3")
    names = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    return ",".join(str(rope[name]) for name in names) if kind == "llama3" else ""


LLAMA = Family(
    AutoModelForCausalLM,
    "clusterformer_lm",
    "language_modeling",
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
    options={
        **_sizes("decoder"),
        "decoder_ffn_embed_dim": "intermediate_size",
        "decoder_kv_heads": "num_key_value_heads",
        "decoder_head_dim": lambda config: getattr(config, "head_dim", None) or 0,
        "share_decoder_input_output_embed": "tie_word_embeddings",
        "norm_eps": "rms_norm_eps",
        "rotary_base": lambda config: config.rope_parameters["rope_theta"],
        "rotary_scaling": _llama_scaling,
        "attention": _llama_sight,
        "attention_dropout": "attention_dropout",
        "max_target_positions": "max_position_embeddings",
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
    text=tokenizer_text,
)
FAMILIES = {
    "gpt2": GPT2,
    "marian": MARIAN,
    "bart": BART,
    "llama": LLAMA,  # SmolLM2, too
    "mistral": LLAMA,
    "qwen2": replace(LLAMA, always=LLAMA.always | {"biases": "qkv"}),
    "qwen3": replace(LLAMA, always=LLAMA.always | {"qk_norm": True}),
}
KNOWN = "GPT-2, BERT, RoBERTa, Marian, BART, Llama, Mistral, Qwen2 or Qwen3"
