"""Dense Marian and BART, which read one text and write another, as ours.

Marian begins to write by its padding symbol, and counts positions as fairseq does not: its decoder
gets a table of embeddings of its own, and its sinusoids become learned positions.
"""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSeq2SeqLM, PreTrainedModel

from fairseq_clusterformer.data import RECORD
from fairseq_clusterformer.data.text import TARGETS_OWN, VOCABULARIES, TextPipeline

from .dense_parts import (
    NEVER,
    Dense,
    State,
    activation_of,
    byte_pairs,
    checked,
    positions,
    rows_of,
)

SIDES = ("encoder", "decoder")


def languages(folder: Path) -> tuple[str, str]:
    """Of a Marian, as its tokenizer names them; "source" and "target" otherwise."""
    file = folder / "tokenizer_config.json"
    found = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    first, second = found.get("source_lang"), found.get("target_lang")
    return (first, second) if first and second and first != second else ("source", "target")


def _write_recipe(folder: Path, data: Path, **how: object) -> None:
    """Name the dictionary of each language, and say how texts become subwords."""
    pipeline = TextPipeline(languages=languages(folder), tokenizer="none", **how)
    (data / RECORD).write_text(json.dumps({"recipe": pipeline.recipe()}), encoding="utf-8")
    for language in pipeline.languages:
        shutil.copyfile(data / "dict.txt", data / f"dict.{language}.txt")
    (data / "dict.txt").unlink()


def _text_of_bart(folder: Path, data: Path, config: Any) -> list[int]:
    numbers = byte_pairs(folder, data, config)
    with (data / "dict.txt").open("a", encoding="utf-8") as file:
        file.write("<mask> 1\n")  # fairseq's task of translation adds none
    _write_recipe(folder, data, bpe="gpt2")
    return numbers


def _text_of_marian(folder: Path, data: Path, config: Any) -> list[int]:
    pieces = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    special = {config.pad_token_id, config.eos_token_id, pieces["<unk>"]}
    if (most := max(pieces.values())) >= config.vocab_size:
        raise ValueError(f"its tokenizer has number {most}, and the model {config.vocab_size}")
    in_order = sorted((n, piece) for piece, n in pieces.items() if n not in special)
    lines = "".join(f"{piece} 1\n" for _, piece in in_order)
    (data / "dict.txt").write_text(lines, encoding="utf-8")
    shutil.copyfile(folder / "source.spm", data / VOCABULARIES["sentencepiece"])
    shutil.copyfile(folder / "target.spm", data / TARGETS_OWN)
    _write_recipe(folder, data, bpe="sentencepiece", normalize_punctuation=True)
    first = [-1, config.pad_token_id, config.eos_token_id, pieces["<unk>"]]
    return [*first, *(number for number, _ in in_order)]


def _options(config: Any, *, norm_of_embeddings: bool) -> dict[str, Any]:
    checked(config, tie_word_embeddings=True, share_encoder_decoder_embeddings=True)
    checked(config, normalize_before=False, add_final_layer_norm=False)
    found: dict[str, Any] = {
        "activation_fn": activation_of(config.activation_function),
        "no_scale_embedding": not config.scale_embedding,
        "layernorm_embedding": norm_of_embeddings,
        "share_all_embeddings": _begins_by_end(config),
        "output_bias": True,
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": config.activation_dropout,
    }
    for side in SIDES:
        found |= {
            f"{side}_layers": getattr(config, f"{side}_layers"),
            f"{side}_embed_dim": config.d_model,
            f"{side}_ffn_embed_dim": getattr(config, f"{side}_ffn_dim"),
            f"{side}_attention_heads": getattr(config, f"{side}_attention_heads"),
            f"{side}_learned_pos": True,
            f"{side}_attention": "full",
        }
    length = config.max_position_embeddings
    return found | {"max_source_positions": length, "max_target_positions": length}


def _begins_by_end(config: Any) -> bool:
    """Whether the decoder begins by ``</s>``, as fairseq's do."""
    return config.decoder_start_token_id == config.eos_token_id


def _state(model: PreTrainedModel, numbers: list[int], *, padded: bool) -> State:
    """Our tensors.

    Args:
        padded: their learned positions have the two rows in front that fairseq keeps for padding.
    """
    theirs, config = model.state_dict(), model.config
    shared = theirs["model.shared.weight"]
    table = rows_of(shared, numbers, shared.new_zeros(config.d_model))
    read = table.clone()
    read[2] = shared[config.decoder_start_token_id]
    bias = theirs["final_logits_bias"][0]
    state = {
        "encoder.embed_tokens.weight": table,
        "decoder.embed_tokens.weight": table if _begins_by_end(config) else read,
        "decoder.output_projection.weight": table,
        "decoder.output_projection.bias": torch.stack(
            [bias.new_tensor(NEVER) if n < 0 else bias[n] for n in numbers]
        ),
    }
    for side in SIDES:
        places = theirs[f"model.{side}.embed_positions.weight"]
        state[f"{side}.embed_positions.weight"] = places if padded else positions(places)
    for name, tensor in theirs.items():
        ours = name.removeprefix("model.")
        if ".layers." in ours or ".layernorm_embedding." in ours:
            state[ours] = tensor
    return {name: tensor.clone() for name, tensor in state.items()}


_kind = partial(
    Dense,
    AutoModelForSeq2SeqLM,
    "clusterformer",
    "translation",
    "clusterformer_label_smoothed_cross_entropy",
)
MARIAN = _kind(
    partial(_options, norm_of_embeddings=False), _text_of_marian, partial(_state, padded=False)
)
BART = _kind(
    partial(_options, norm_of_embeddings=True), _text_of_bart, partial(_state, padded=True)
)
