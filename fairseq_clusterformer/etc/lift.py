"""What models of ETC's encoder share: options, sizes, and the start from a dense model's weights
(Ainslie et al. 2020, section 3.4: "lifting")."""

import copy
import re
from pathlib import Path

import torch
from fairseq.models import register_model
from torch import Tensor

from fairseq_clusterformer.models.checkpoints import CheckpointError, read_checkpoint, unfit
from fairseq_clusterformer.models.encoder_only import EncoderOnlyModel, fingerprint, set_epsilon
from fairseq_clusterformer.models.options import register_sizes
from fairseq_clusterformer.models.pretrained import check_words, folder_tensors, renamed

from .encoder import SIZES, ETCEncoder, ETCOptions

_OPTION = "--lift"
_FITTING = "an encoder of the same sizes and words, with a norm of its embeddings"
_WORDS, _TYPES, _CENTROIDS = "embed_tokens.weight", "embed_types.weight", "centroids"
#: parts of other models that have no place in the encoder
_LEFT_OUT = ("embed_positions.", "lm_head.", "classification_heads.", "contrast.", "version")


def register_etc(name: str, options: type[ETCOptions]):
    """Register a model with its options, and the sizes ``NAME_tiny`` to ``NAME_large``."""

    def register(model: type) -> type:
        model = register_model(name, dataclass=options)(model)
        register_sizes(name, **SIZES)
        return model

    return register


class ETCModel(EncoderOnlyModel):
    """A model of ETC's encoder and a head; its options are :class:`ETCOptions`."""

    @classmethod
    def build_encoder(cls, args, task) -> ETCEncoder:
        return set_epsilon(ETCEncoder(args, task.source_dictionary), args.layer_norm_eps)

    def load_initial_weights(self) -> None:
        """Start from the model that ``--lift`` names; raises CheckpointError for a file that
        cannot be read, or that does not fit."""
        if not self.args.lift:
            return
        is_folder = Path(self.args.lift).is_dir()
        given = self._folder() if is_folder else read_checkpoint(_OPTION, self.args.lift)
        try:
            self.encoder.load_state_dict(self._lifted(given))
        except KeyError as error:
            raise self._error(f"it has no {error.args[0]}") from None
        except RuntimeError as error:  # torch names what is of another size in its second line
            raise self._error(str(error).splitlines()[1].strip()) from None

    def _folder(self) -> dict:
        """A folder of BERT's form as a checkpoint; its first type is added to each word."""
        words = self.encoder.dictionary
        found, _ = folder_tensors(self.args.lift, _OPTION, words, self.args)
        types = found.pop("encoder.embed_types.weight")
        found["encoder.embed_tokens.weight"] += types[0]
        return {"model": found | {"vocabulary": fingerprint(words)}}

    def _error(self, problem: str, allowed: str = _FITTING) -> CheckpointError:
        return unfit(_OPTION, self.args.lift, problem, allowed)

    def _lifted(self, given: dict) -> dict[str, Tensor]:
        found, words = renamed(given["model"]), self.encoder.dictionary
        with_mask = copy.deepcopy(words)  # tasks of masked words add one that is in no dict.txt
        with_mask.add_symbol("<mask>")
        theirs = found.pop("vocabulary", None)
        if theirs is None:
            check_words(_OPTION, self.args.lift, words)
        elif not any(torch.equal(theirs.cpu(), fingerprint(w)) for w in (words, with_mask)):
            raise self._error("it was trained with another dictionary (dict.txt)")
        if _WORDS in found and len(found[_WORDS]) == len(with_mask):
            found[_WORDS] = found[_WORDS][: len(words)]
        # the numbers of labels depend on k, the sizes of their tables do not
        distance = getattr((given.get("cfg") or {}).get("model"), "max_distance", None)
        if _TYPES in found and distance not in (None, self.args.max_distance):
            allowed = f"{self.args.max_distance}, as here"
            raise self._error(f"its --max-distance is {distance}", allowed)
        own, unused = lifted(found, self.encoder.state_dict())
        for name in unused:
            if not name.startswith(_LEFT_OUT):
                raise self._error(f"it also has {name}")
        return own


def lifted(
    given: dict[str, Tensor], mine: dict[str, Tensor]
) -> tuple[dict[str, Tensor], list[str]]:
    """The parameters of a dense encoder as those of an ETC encoder, and the names of what was not
    used; raises KeyError for what ``given`` has no tensor for.

    Queries, keys and values go to every copy of theirs, norms to both streams, words and
    feed-forward layers as they are. Positions have no place, and labels and types start anew:
    where these are 0 and the radius covers the text, the encoder is the dense one, except for the
    epsilon of the norm behind words that a dense encoder scales. Parameters of another ETC encoder
    stay as they are; centroids start anew where it has none.
    """
    result, used, same = {}, set(), _TYPES in given
    for name, tensor in mine.items():
        anew = not same and ("label_" in name or name == _TYPES)
        if anew or (name == _CENTROIDS and name not in given):
            result[name] = tensor
            continue
        source = name
        for pattern, dense in () if same else _DENSE.items():
            source = re.sub(pattern, dense, source)
        used.add(source)
        result[name] = given[source]
    return result, [name for name in given if name not in used]


#: of an ETC parameter's name, what a dense encoder has in its place; such as
#: layers.0.self_attn.linear.k_l2g.weight, attention_norms.1.bias
_DENSE = {
    r"\blinear\.(q|k|v|out)_\w+": r"\1_proj",
    r"\battention_norms\.\d": "self_attn_layer_norm",
    r"\bfinal_norms\.\d": "final_layer_norm",
    r"^norms\.\d": "layer_norm",
}
