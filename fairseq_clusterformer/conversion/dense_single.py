"""Dense GPT-2 and RoBERTa as ours.

Shape letters: D model width.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, PreTrainedModel

from .dense_parts import (
    EPSILON,
    NEVER,
    Dense,
    State,
    activation_of,
    byte_pairs,
    checked,
    positions,
    rows_of,
)


def _never(weight: Tensor, bias: Tensor) -> Tensor:
    """An embedding [D] that makes one and the same low logit behind a layer norm.

    What leaves a layer norm is h = weight n + bias with a mean of n of 0, so that its product
    with t / weight is t times the sum of bias / weight, whatever n is.
    """
    total = (bias / weight).sum()
    if not total.abs() > 1e-3:  # an untrained norm: as likely as a word of embedding 0
        return torch.zeros_like(weight)
    return NEVER / total / weight


def _sizes(side: str, config: Any, inner: int, activation: str) -> dict[str, Any]:
    return {
        f"{side}_layers": config.num_hidden_layers,
        f"{side}_embed_dim": config.hidden_size,
        f"{side}_ffn_embed_dim": inner,
        f"{side}_attention_heads": config.num_attention_heads,
        f"{side}_learned_pos": True,
        "activation_fn": activation_of(activation),
        "no_scale_embedding": True,
    }


def _gpt2_options(config: Any) -> dict[str, Any]:
    checked(
        config,
        layer_norm_epsilon=EPSILON,
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
    table = rows_of(theirs["transformer.wte.weight"], numbers, _never(*norm))
    state = {
        "decoder.embed_tokens.weight": table,
        "decoder.output_projection.weight": table,
        "decoder.embed_positions.weight": positions(theirs["transformer.wpe.weight"]),
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
    checked(
        config,
        layer_norm_eps=EPSILON,
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
    table = rows_of(theirs[f"{embeddings}.word_embeddings.weight"], numbers, silent)
    places = theirs[f"{embeddings}.position_embeddings.weight"]
    # each token is of the first type
    places = places + theirs[f"{embeddings}.token_type_embeddings.weight"][0]
    biases = [NEVER if n < 0 else float(theirs["lm_head.bias"][n]) for n in numbers]
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


GPT2 = Dense(
    AutoModelForCausalLM,
    "clusterformer_lm",
    "language_modeling",
    "clusterformer_cross_entropy",
    _gpt2_options,
    byte_pairs,
    _gpt2_state,
)
ROBERTA = Dense(
    AutoModelForMaskedLM,
    "clusterformer_masked_lm",
    "masked_lm",
    "clusterformer_masked_lm",
    _roberta_options,
    byte_pairs,
    _roberta_state,
)
