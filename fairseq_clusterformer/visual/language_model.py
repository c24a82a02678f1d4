"""Reads a checkpoint: which clusters it sees in a passage and in its validation text."""

import pickle
from dataclasses import dataclass
from pathlib import Path

import torch
from fairseq import checkpoint_utils
from fairseq.data import indexed_dataset
from fairseq.models import FairseqLanguageModel
from torch import Tensor

import fairseq_clusterformer.plugin  # noqa: F401  registers our models
from fairseq_clusterformer.attention.inspect import token_clusters
from fairseq_clusterformer.data.coding import TextCoding
from fairseq_clusterformer.errors import UserError, bad_option
from fairseq_clusterformer.models.checkpoints import CheckpointError
from fairseq_clusterformer.visual.words import (
    Cluster,
    describe,
    readable,
    word_endings,
    word_pairs,
)

MOST_COUNTED = 1 << 16  # tokens of the validation text
MOST_SHOWN = 1 << 13  # tokens of the passage
PICKLE_ERRORS = (pickle.UnpicklingError, RuntimeError, EOFError, KeyError, ValueError, OSError)


@dataclass(frozen=True)
class Layer:
    """One clustering of a model, over the passage and over the validation text.

    Attributes:
        name: such as "layer 2 of 4".
        heads: such as "heads 3 to 4 of 4, neural".
        window: keys of its cluster that a query sees, if that is the rule.
        passage: cluster of each token of the passage.
        clusters: what is in each over the validation text.
    """

    name: str
    heads: str
    window: int | None
    passage: list[int]
    clusters: list[Cluster]


@dataclass(frozen=True)
class Reading:
    """What a model sees in a text.

    Attributes:
        model: one line that says which model this is.
        unit: what a token is: "byte", "piece" or "word".
        tokens: what each token of the passage reads; joined, the passage.
        row: tokens that the model sees at once; a longer passage is read in parts.
        cut: whether the passage goes on beyond ``tokens``.
        counted: tokens of the validation text.
    """

    model: str
    unit: str
    tokens: list[str]
    row: int
    cut: bool
    counted: int
    layers: list[Layer]


def read_clusters(checkpoint: Path, data: Path, text: Path) -> Reading:
    """Run a checkpoint over a passage and over the validation text of its data.

    Args:
        checkpoint: of a language model with a layer that clusters.
        data: folder that a prepare script made, with its dictionary.
        text: file with the passage.

    Raises:
        UserError: for what is missing or something else.
    """
    model, task = load_language_model(checkpoint, data)
    coding = TextCoding.from_folder(data, task.source_dictionary)
    passage = encode_file(coding, text)
    shown, valid = passage[:MOST_SHOWN], _validation_text(data)
    row = model.max_positions()
    of_passage, of_valid = (_clusters_by_row(model, tokens, row) for tokens in (shown, valid))
    if not of_valid:
        raise UserError(
            f"--checkpoint {checkpoint}: no layer of this {type(model).__name__} clusters; "
            "allowed is one with a kind that clusters in its --attention, such as neural"
        )
    rows = [shown_tokens(coding, tokens) for tokens in valid.split(row)]
    endings = [endings_of(coding, tokens) for tokens in rows]
    layers = []
    for (name, head), clusters in of_valid.items():
        router = model.get_submodule(name)
        recent = router.causal and router.config.cluster_rule == "recent"
        # Heads that cluster apart may cluster keys apart from queries.
        window = router.window if recent and head is None else None
        described = describe(
            rows, clusters, router.config.num_clusters, window=window, endings=endings
        )
        passage = sum(of_passage[name, head], [])
        layers.append(Layer(*_label(model, name, head), window, passage, described))
    return Reading(
        model=_describe_model(model, checkpoint),
        unit=coding.unit,
        tokens=shown_tokens(coding, shown),
        row=row,
        cut=len(passage) > len(shown),
        counted=len(valid),
        layers=layers,
    )


def load_language_model(checkpoint: Path, data: Path):
    """Load a checkpoint of a language model, in eval mode, and its task.

    Raises:
        UserError: for what is missing or something else.
    """
    if not checkpoint.is_file():
        raise UserError(f"--checkpoint {checkpoint}: no such file; allowed is {_ALLOWED}")
    if not (data / "dict.txt").is_file():
        raise UserError(
            f"--data {data}: holds no dict.txt; allowed is the folder that the model was trained "
            "on, such as scripts/prepare_text.sh makes"
        )
    try:
        state = torch.load(checkpoint, map_location="cpu", weights_only=True)
    except PICKLE_ERRORS as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"--checkpoint {checkpoint}: cannot be read ({reason}); allowed is {_ALLOWED}"
        ) from None
    if not isinstance(state, dict) or "model" not in state or not state.get("cfg"):
        raise UserError(f"--checkpoint {checkpoint}: is something else; allowed is {_ALLOWED}")
    try:
        (model,), _, task = checkpoint_utils.load_model_ensemble_and_task(
            [str(checkpoint)], arg_overrides={"data": str(data)}
        )
    except (RuntimeError, CheckpointError) as error:
        reason = str(error).strip().splitlines()[-1].strip()
        raise UserError(
            f"--data {data}: does not fit --checkpoint {checkpoint} ({reason}); allowed is the "
            "folder that the model was trained on"
        ) from None
    if not isinstance(model, FairseqLanguageModel):
        raise UserError(
            f"--checkpoint {checkpoint}: is a {type(model).__name__}; allowed is a language model"
        )
    return model.eval(), task


_ALLOWED = "a checkpoint of a language model that fairseq-train wrote"


def encode_file(coding: TextCoding, text: Path) -> Tensor:
    """Tokens of a text file, int64 [N].

    Raises:
        UserError: if there is no text in it, or it is not UTF-8.
    """
    if not text.is_file():
        raise bad_option("--text", text, "a file of text", "no such file")
    tokens = coding.encode(text.read_bytes(), f"--text is {text}")
    if not len(tokens):
        raise bad_option("--text", text, f"a text of one {coding.unit} or more", "it is empty")
    return tokens


def shown_tokens(coding: TextCoding, tokens: Tensor) -> list[str]:
    """What each token shows; the first one begins a line. Joined, it is the text."""
    return readable(coding.chunks(tokens))


def endings_of(coding: TextCoding, tokens: list[str]) -> list[str]:
    """What to show of each token with what stands before it."""
    return word_pairs(tokens) if coding.unit == "word" else word_endings(tokens)


def _validation_text(data: Path) -> Tensor:
    """The first tokens of the validation text, int64 [N]."""
    prefix = data / "valid"
    if not indexed_dataset.dataset_exists(str(prefix), "mmap"):
        raise UserError(
            f"--data {data}: holds no valid.bin and valid.idx; allowed is a folder "
            "such as scripts/prepare_text.sh makes"
        )
    items, length = [], 0
    for item in indexed_dataset.make_dataset(str(prefix), "mmap"):
        items.append(item)
        length += len(item)
        if length >= MOST_COUNTED:
            break
    return torch.cat(items)[:MOST_COUNTED].long()


def _clusters_by_row(
    model, tokens: Tensor, row: int
) -> dict[tuple[str, int | None], list[list[int]]]:
    """Clusters of the tokens [N], in rows of at most ``row`` tokens, by router and by its head, or
    None where its heads cluster together."""
    rows: dict[tuple[str, int | None], list[list[int]]] = {}
    for part in tokens.split(row):
        for name, clusters in token_clusters(model, part.unsqueeze(0)).items():
            for head, of_head in enumerate(clusters[0].tolist()):
                key = (name, head if clusters.size(1) > 1 else None)
                rows.setdefault(key, []).append(of_head)
    return rows


def _label(model, name: str, head: int | None) -> tuple[str, str]:
    """Which layer and which of its heads a router's clusters serve, for people."""
    path, _, router = name.rpartition(".routers.")
    attention = model.get_submodule(path)
    layer_path, _, number = path.removesuffix(".self_attn").rpartition(".")
    kinds = model.get_submodule(f"{layer_path}.{number}").kinds
    share = attention.num_heads // len(kinds)
    first, last = int(router) * share + 1, (int(router) + 1) * share
    if head is not None:
        first = last = first + head
    which = f"head {first}" if first == last else f"heads {first} to {last}"
    depth = len(model.get_submodule(layer_path))
    heads = f"{which} of {attention.num_heads}, {kinds[int(router)]}"
    return f"layer {int(number) + 1} of {depth}", heads


def _describe_model(model, checkpoint: Path) -> str:
    parameters = sum(p.numel() for p in model.parameters())
    return f"{checkpoint.name}: {type(model).__name__}, {parameters:,} parameters"
