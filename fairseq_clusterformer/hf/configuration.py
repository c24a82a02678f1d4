"""What a model is, as ``config.json`` says it by fairseq's names of options, and that model."""

from argparse import Namespace
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from fairseq import models
from transformers import PreTrainedConfig

import fairseq_clusterformer.plugin  # noqa: F401  registers our architectures
from fairseq_clusterformer.corpora.binarize import symbol_dictionary
from fairseq_clusterformer.models.options import defaults_of, set_defaults


class ClusterformerConfig(PreTrainedConfig):
    """A model's architecture and its options; ValueError for an architecture that is not known.

    ClusterformerConfig(
        architecture="clusterformer_lm_tiny",
        options={"attention": "window(64)+taught", "decoder_layers": 4},
        vocab_size=260,
    )
    """

    model_type = "clusterformer"
    keys_to_ignore_at_inference = ["cache", "encoder_last_hidden_state"]

    architecture: str = "clusterformer_lm_tiny"  # as ``fairseq-train --arch`` has it
    #: of the model, by fairseq's names (docs/options.md); what is missing is the architecture's
    options: dict[str, Any] | None = None
    task: dict[str, Any] | None = None  # what else fairseq's configuration says, for the way back
    #: weights of the clustering losses, such as {"routing_loss_weight": 0.5}, which training adds
    criterion: dict[str, Any] | None = None
    form: str = "text"  # of a classifier's texts, or "joined" pairs
    text_length: int | None = None  # tokens that each was cut to, with ``</s>``; None: none was
    others: dict[str, Any] | None = None  # as `task`
    updates: int = 0  # of the training
    vocab_size: int = 260  # of the input, and of the output where there is one
    source_vocab_size: int | None = None  # of an encoder with a dictionary of its own
    max_position_embeddings: int = 1024  # tokens of the longest text of the training
    languages: list[str] | None = None  # source and target of a translation model
    bos_token_id: int | None = 0
    pad_token_id: int | None = 1
    eos_token_id: int | None = 2
    unk_token_id: int | None = 3
    decoder_start_token_id: int | None = None
    use_cache: bool = True
    tie_word_embeddings: bool = True

    def __post_init__(self, **kwargs):
        self.options, self.task = self.options or {}, self.task or {}
        self.criterion, self.others = self.criterion or {}, self.others or {}
        if self.architecture not in models.ARCH_CONFIG_REGISTRY:
            known = sorted(a for a in models.ARCH_CONFIG_REGISTRY if a.startswith("cluster"))
            raise ValueError(f"architecture is {self.architecture}; allowed: {', '.join(known)}")
        self.is_encoder_decoder = self.family == "clusterformer"
        super().__post_init__(**kwargs)

    @property
    def family(self) -> str:
        """The model that the architecture is a size of, such as "clusterformer_lm"."""
        return models.ARCH_MODEL_NAME_REGISTRY[self.architecture]

    def namespace(self) -> Namespace:
        """All options, with the defaults of those that were not given."""
        args = Namespace(**self.options)
        args.checkpoint_activations = False  # transformers switches it on and off
        if self.family == "clusterformer_lm" and "decoder_embed_dim" in self.options:
            width = {f"decoder_{at}_dim": args.decoder_embed_dim for at in ("input", "output")}
            set_defaults(args, **width)
        models.ARCH_CONFIG_REGISTRY[self.architecture](args)
        defaults = defaults_of(models.MODEL_DATACLASS_REGISTRY[self.family])
        # fairseq's references to other options are resolved by its architectures
        plain = {k: v for k, v in defaults.items() if not str(v).startswith("${")}
        set_defaults(args, **plain)
        return args

    def _of_stack(self, name: str) -> int:
        side = "decoder" if self.family == "clusterformer_lm" else "encoder"
        return getattr(self.namespace(), f"{side}_{name}")

    #: sizes of the encoder, or of a language model's decoder: D, layers and H
    hidden_size = property(partial(_of_stack, name="embed_dim"))
    num_hidden_layers = property(partial(_of_stack, name="layers"))
    num_attention_heads = property(partial(_of_stack, name="attention_heads"))


def build_model(config: ClusterformerConfig) -> models.BaseFairseqModel:
    """fairseq's model with its initial values, without fairseq's task and files; ValueError for an
    option that is not allowed. It is made on the CPU wherever transformers would make it: kinds of
    attention initialise centroids and buffers from data, which a meta device does not have."""
    # models ask for the number of symbols, and for the special ones, which are four
    sizes = config.vocab_size, config.source_vocab_size or config.vocab_size
    target, source = (symbol_dictionary(f"token{n}" for n in range(4, size)) for size in sizes)
    task = SimpleNamespace(
        dictionary=target,
        source_dictionary=source,
        target_dictionary=target,
        max_positions=lambda: config.max_position_embeddings,
        classes=list(config.id2label or {}),
        is_pair=config.form != "text",
        is_siamese=False,
        next_sentence=bool(config.task.get("next_sentence")),
    )
    with torch.device("cpu"):
        kind = models.ARCH_MODEL_REGISTRY[config.architecture]
        model = kind.build_model(config.namespace(), task)
    model.set_num_updates(config.updates)  # before loading: a model commits to what it has seen
    return model.to(torch.get_default_dtype())  # positions are made in float32
