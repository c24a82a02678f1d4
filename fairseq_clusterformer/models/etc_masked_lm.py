"""``--arch etc_masked_lm``: masked words, by ETC's encoder (Ainslie et al. 2020).

It is trained by the task ``clusterformer_masked_lm``, with fixed blocks as parts.
"""

from dataclasses import dataclass, field

import torch
from fairseq.models import register_model, register_model_architecture
from torch import Tensor

from fairseq_clusterformer.clustering import Report

from . import etc
from .checkpoints import CheckpointError, read_model
from .clusterformer_masked_lm import ClusterformerMaskedLM
from .options import complete

_OPTION = "--lift"
#: parts of a dense model that have no place here
_LEFT_OUT = ("embed_positions.", "lm_head.", "classification_heads.", "version")


@dataclass
class ETCMaskedLMConfig(etc.ETCOptions):
    """Options of the encoder."""

    lift: str = field(
        default="",
        metadata={
            "help": "checkpoint of fairseq's roberta or of clusterformer_masked_lm, whose weights "
            "the encoder starts from"
        },
    )


@register_model("etc_masked_lm", dataclass=ETCMaskedLMConfig)
class ETCMaskedLM(ClusterformerMaskedLM):
    """ETC's encoder, and RoBERTa's head on the long stream, which shares the words' embeddings."""

    @classmethod
    def build_model(cls, args, task):
        """Build a model from fairseq's options.

        Raises:
            ValueError: an option that is not allowed.
        """
        complete(args, ETCMaskedLMConfig)
        return cls(args, task)

    @classmethod
    def build_encoder(cls, args, task) -> etc.ETCEncoder:
        """The encoder that the options name.

        Raises:
            ValueError: an option that is not allowed.
        """
        return etc.ETCEncoder(args, task.source_dictionary)

    def encoded(self, src_tokens: Tensor) -> tuple[Tensor, list[Report]]:
        """As its parent's; no layer clusters."""
        return self.encoder(src_tokens).of_long, []

    def load_initial_weights(self) -> None:
        """Start from the model that ``--lift`` names.

        Raises:
            CheckpointError: a file that cannot be read, or that does not fit.
        """
        if not self.args.lift:
            return
        found = {}
        for name, tensor in read_model(_OPTION, self.args.lift).items():
            short = name.removeprefix("encoder.").removeprefix("sentence_encoder.")
            found[short.replace("emb_layer_norm.", "layernorm_embedding.")] = tensor
        mine = self.encoder.state_dict()
        allowed = "allowed: an encoder of the same sizes and words, with a norm of its embeddings"
        words = found.pop("vocabulary", None)
        if words is not None and not torch.equal(words.cpu(), self.vocabulary.cpu()):
            raise CheckpointError(
                f"{_OPTION} is {self.args.lift}: it was trained with another dictionary "
                f"(dict.txt); {allowed}"
            )
        try:
            own, unused = etc.lifted(found, mine)
            unused = [name for name in unused if not name.startswith(_LEFT_OUT)]
            if unused:
                raise CheckpointError(
                    f"{_OPTION} is {self.args.lift}: it also has {unused[0]}; {allowed}"
                )
            self.encoder.load_state_dict(own)
        except KeyError as error:
            raise CheckpointError(
                f"{_OPTION} is {self.args.lift}: it has no {error.args[0]}; {allowed}"
            ) from None
        except RuntimeError as error:
            first = str(error).splitlines()[1].strip()
            raise CheckpointError(f"{_OPTION} is {self.args.lift}: {first}; {allowed}") from None


for _name in ("tiny", "small", "base", "large"):
    register_model_architecture("etc_masked_lm", f"etc_masked_lm_{_name}")(getattr(etc, _name))
