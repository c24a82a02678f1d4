"""The clusters that a language model sees in a passage and in its validation text."""

from pathlib import Path

import numpy as np
import torch
from fairseq.data import indexed_dataset
from torch import Tensor

from fairseq_clusterformer.attention.inspect import token_clusters
from fairseq_clusterformer.checkpoints.load import Loaded
from fairseq_clusterformer.data.coding import TextCoding
from fairseq_clusterformer.errors import bad_option, check_file

from .words import ClusteredText, DrawnLayer, describe, word_endings

MOST_COUNTED = 1 << 16  # tokens of the validation text
MOST_SHOWN = 1 << 13  # tokens of the passage


def read_clusters(loaded: Loaded, text: Path) -> ClusteredText:
    """Run a language model over the passage of a file and over its validation text (``valid.bin``
    of the data folder), by which clusters are described; where there is none, as in a bundle, by
    the passage. Raises UserError if no layer clusters, or the file has no text."""
    model, row = loaded.model, loaded.model.max_positions()
    coding = TextCoding.from_folder(loaded.folder, loaded.task.source_dictionary)
    check_file("--text", text, "a file of text")
    passage = coding.encode(text.read_bytes(), f"--text is {text}")
    if not len(passage):
        raise bad_option("--text", text, f"a text of one {coding.unit} or more", "is empty")
    counted = shown = passage[:MOST_SHOWN]
    if indexed_dataset.dataset_exists(valid := str(loaded.folder / "valid"), "mmap"):
        data = indexed_dataset.make_dataset(valid, "mmap")
        items = int(np.searchsorted(np.cumsum(data.sizes), MOST_COUNTED)) + 1
        counted = torch.cat([data[i] for i in range(min(items, len(data)))])[:MOST_COUNTED].long()
    of_passage, of_counted = (_clusters_by_row(model, tokens, row) for tokens in (shown, counted))
    if not of_counted:
        allowed = "a model with a kind that clusters in its --attention, such as neural"
        what = f"no layer of this {type(model).__name__} clusters"
        raise bad_option("--checkpoint", loaded.path, allowed, what)
    shows, endings = [], []
    for tokens in counted.split(row):
        shows += (of_row := shown_tokens(coding, tokens))
        if coding.unit == "word":  # each with the one before it
            endings += [
                before + token for before, token in zip(["", *of_row], of_row, strict=False)
            ]
        else:
            endings += word_endings(of_row)
    layers = []
    for (name, head), clusters in of_counted.items():
        rule = model.get_submodule(name).rule
        window = rule.window if rule.can_step and rule.gap == 0 else None
        described = describe(shows, clusters, rule.clusters, endings)
        label = _label(model, name, head)
        layers.append(DrawnLayer(label, window, of_passage[name, head], described))
    notes = []
    if len(shown) > row:
        notes.append(f"The model reads the passage in parts of {row:,} {coding.unit}s.")
    if len(passage) > len(shown):
        notes.append(f"The passage is cut after {len(shown):,} {coding.unit}s.")
    what = "the passage itself" if counted is shown else "validation text"
    return ClusteredText(
        model=describe_model(loaded),
        unit=coding.unit,
        tokens=shown_tokens(coding, shown),
        row=row,
        counted=f"Sizes and words are counted over {len(counted):,} {coding.unit}s of {what}.",
        note=" ".join(notes),
        layers=layers,
    )


def shown_tokens(coding: TextCoding, tokens: Tensor) -> list[str]:
    """What each token shows; the first one begins a line. Joined, it is the text."""
    shown, last = list(coding.stream(tokens)), len(tokens) - 1
    return [*shown[:last], "".join(shown[last:])]


def describe_model(loaded: Loaded) -> str:
    """One line: the checkpoint, the class of the model and its size."""
    parameters = sum(p.numel() for p in loaded.model.parameters())
    return f"{loaded.path.name}: {type(loaded.model).__name__}, {parameters:,} parameters"


def _clusters_by_row(model, tokens: Tensor, row: int) -> dict[tuple[str, int | None], list[int]]:
    """Clusters of tokens [N], which are read in rows, by router and by head: None where its heads
    share them."""
    found: dict[tuple[str, int | None], list[int]] = {}
    for part in tokens.split(row):
        for name, clusters in token_clusters(model, part.unsqueeze(0)).items():
            for head, of_head in enumerate(clusters[0].tolist()):
                key = (name, head if clusters.size(1) > 1 else None)
                found.setdefault(key, []).extend(of_head)
    return found


def _label(model, name: str, head: int | None) -> str:
    """Which layer and heads a router's clusters serve, for people."""
    stack, number, _, _, router = name.rsplit(".", 4)  # ... layers.3.self_attn.routers.1
    layers = model.get_submodule(stack)
    kinds, heads = layers[int(number)].kinds, layers[int(number)].self_attn.num_heads
    share = heads // len(kinds)
    first, last = int(router) * share, (int(router) + 1) * share - 1
    if head is not None:
        first = last = first + head
    which = f"head {first}" if first == last else f"heads {first} to {last}"
    which = "all heads" if last - first + 1 == heads else f"{which} of heads 0 to {heads - 1}"
    return (
        f"layer {number} of layers 0 to {len(layers) - 1}, {which}, {kinds[int(router)].written}"
    )
