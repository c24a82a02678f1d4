"""fairseq's model for a configuration, without fairseq's task and without its files."""

from types import SimpleNamespace

import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_MODEL_REGISTRY, BaseFairseqModel

from .configuration import ClusterformerConfig


def build_model(config: ClusterformerConfig) -> BaseFairseqModel:
    """The model that the configuration describes, with fairseq's initial values.

    It is made on the CPU wherever transformers would make it: kinds of attention initialise
    centroids and buffers from data, which a meta device does not have.

    Raises:
        ValueError: an option that is not allowed.
    """
    target = numbered(config.vocab_size)
    source = target
    if config.source_vocab_size is not None:
        source = numbered(config.source_vocab_size)
    task = SimpleNamespace(
        dictionary=target,
        source_dictionary=source,
        target_dictionary=target,
        max_positions=lambda: config.max_position_embeddings,
        classes=list(config.id2label or {}),
        is_pair=config.form != "text",
        is_siamese=False,
    )
    with torch.device("cpu"):
        model = ARCH_MODEL_REGISTRY[config.architecture].build_model(config.namespace(), task)
    model.set_num_updates(config.updates)  # before loading: a model commits to what it has seen
    return model.to(torch.get_default_dtype())  # positions are made in float32


def numbered(size: int) -> Dictionary:
    """A dictionary of that many symbols; models ask for their number and the special ones."""
    dictionary = Dictionary()
    for number in range(len(dictionary), size):
        dictionary.add_symbol(f"token{number}")
    return dictionary
