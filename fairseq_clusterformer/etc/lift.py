"""ETC's encoder from a dense model's weights (Ainslie et al. 2020, section 3.4: "lifting")."""

import copy
import re
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fairseq_clusterformer.models.checkpoints import CheckpointError, read_checkpoint
from fairseq_clusterformer.models.encoder_only import fingerprint
from fairseq_clusterformer.models.roberta import check_words

from . import encoder as etc

_OPTION = "--lift"
_WORDS, _TYPES, _CENTROIDS = "embed_tokens.weight", "embed_types.weight", "centroids"
#: parts of other models that have no place in the encoder
_LEFT_OUT = (
    "embed_positions.",
    "lm_head.",
    "classification_heads.",
    "contrast.",
    "version",
)


@dataclass
class LiftOptions(etc.ETCOptions):
    """Options of the encoder, and what it starts from."""

    lift: str = field(
        default="",
        metadata={
            "help": "checkpoint of fairseq's roberta, of clusterformer_masked_lm or of "
            "etc_masked_lm, whose weights the encoder starts from"
        },
    )


class Lifts:
    """Mixin before a model with ETC's ``encoder``, and ``args`` of :class:`LiftOptions`."""

    def load_initial_weights(self) -> None:
        """Start from the model that ``--lift`` names.

        Raises:
            CheckpointError: a file that cannot be read, or that does not fit.
        """
        if not self.args.lift:
            return
        given = read_checkpoint(_OPTION, self.args.lift)
        found, mine = renamed(given["model"]), self.encoder.state_dict()
        allowed = "allowed: an encoder of the same sizes and words, with a norm of its embeddings"
        # tasks of masked words add one that stands in no dict.txt
        words = self.encoder.dictionary
        with_mask = copy.deepcopy(words)
        with_mask.add_symbol("<mask>")
        theirs = found.pop("vocabulary", None)
        if theirs is None:
            check_words(_OPTION, self.args.lift, words)
        elif not any(
            torch.equal(theirs.cpu(), fingerprint(known)) for known in (words, with_mask)
        ):
            raise CheckpointError(
                f"{_OPTION} is {self.args.lift}: it was trained with another dictionary "
                f"(dict.txt); {allowed}"
            )
        if _WORDS in found and len(found[_WORDS]) == len(with_mask):
            found[_WORDS] = found[_WORDS][: len(words)]
        # the numbers of labels are of k, and the tables' rows are not
        distance = getattr((given.get("cfg") or {}).get("model"), "max_distance", None)
        if _TYPES in found and distance not in (None, self.args.max_distance):
            raise CheckpointError(
                f"{_OPTION} is {self.args.lift}: its --max-distance is {distance}; allowed: "
                f"{self.args.max_distance}, as here"
            )
        try:
            own, unused = lifted(found, mine)
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


def renamed(given: dict[str, Tensor]) -> dict[str, Tensor]:
    """Parameters of an encoder by today's names, without "encoder." in front. RoBERTa was released
    with other names, and with queries, keys and values as one."""
    found = {}
    for name, tensor in given.items():
        short = re.sub(r"^decoder\.(?=sentence_encoder|lm_head)", "encoder.", name)
        short = short.removeprefix("encoder.").removeprefix("sentence_encoder.")
        short = short.replace("emb_layer_norm.", "layernorm_embedding.")
        if "in_proj_" in short:
            for which, part in zip("qkv", tensor.chunk(3), strict=True):
                found[short.replace("in_proj_", f"{which}_proj.")] = part
        else:
            found[short] = tensor
    return found


def lifted(
    given: dict[str, Tensor], mine: dict[str, Tensor]
) -> tuple[dict[str, Tensor], list[str]]:
    """The parameters of a dense encoder as those of an ETC encoder, one by one: queries, keys and
    values go to every copy of theirs, norms to both streams, words and feed-forward layers as
    they are. Positions have no place here, and labels and types start anew: where these are 0 and
    the radius covers the text, the encoder is the dense one, except for the epsilon of the norm
    behind words that a dense encoder scales. Parameters of another ETC encoder stay as they are;
    centroids start anew where it has none.

    Args:
        given: of fairseq's RoBERTa or of our encoders, without "encoder." in front.
        mine: of the encoder to be.

    Returns:
        The parameters, and the names of what was not used.

    Raises:
        KeyError: what ``given`` has no tensor for.
    """
    result, used, same = {}, set(), _TYPES in given
    for name, tensor in mine.items():
        anew = not same and ("label_" in name or name == _TYPES)
        if anew or (name == _CENTROIDS and name not in given):
            result[name] = tensor
            continue
        source = name if same else _dense_name(name)
        used.add(source)
        result[name] = given[source]
    return result, [name for name in given if name not in used]


_DENSE = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "out": "out_proj"}


def _dense_name(name: str) -> str:
    """The name in a dense encoder of what an ETC parameter is lifted from."""
    parts = name.split(".")
    if "linear" in parts:  # layers.0.self_attn.linear.k_l2g.weight
        place = parts.index("linear")
        parts[place : place + 2] = [_DENSE[parts[place + 1].split("_")[0]]]
    for norms, norm in (
        ("attention_norms", "self_attn_layer_norm"),
        ("final_norms", "final_layer_norm"),
        ("norms", "layer_norm"),
    ):
        if norms in parts:
            place = parts.index(norms)
            parts[place : place + 2] = [norm]
    return ".".join(parts)
