"""What models of ETC's encoder share: options, sizes, and the start from a dense model's weights
(Ainslie et al. 2020, section 3.4: "lifting")."""

import copy
import re
from pathlib import Path

import torch
from fairseq.models import register_model

from fairseq_clusterformer.models.checkpoints import check_words, read_checkpoint, renamed, unfit
from fairseq_clusterformer.models.encoder_only import EncoderOnlyModel, fingerprint, set_epsilon
from fairseq_clusterformer.models.options import register_sizes
from fairseq_clusterformer.models.pretrained import folder_tensors, start_from

from .encoder import SIZES, ETCEncoder, ETCOptions

_FITTING = "an encoder of the same sizes and words, with a norm of its embeddings"
_WORDS, _TYPES = "embed_tokens.weight", "embed_types.weight"
#: parts of other models that have no place in the encoder
_LEFT_OUT = ("embed_positions.", "lm_head.", "classification_heads.", "contrast.", "version")
#: of an ETC parameter's name, what a dense encoder has in its place; such as
#: layers.0.self_attn.linear.k_l2g.weight, attention_norms.1.bias
_DENSE = {
    r"\blinear\.(q|k|v|out)_\w+": r"\1_proj",
    r"\battention_norms\.\d": "self_attn_layer_norm",
    r"\bfinal_norms\.\d": "final_layer_norm",
    r"^norms\.\d": "layer_norm",
}


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
        """Start from the dense model, or the other ETC encoder, that ``--lift`` names; raises
        CheckpointError for one that cannot be read, or that does not fit.

        Queries, keys and values go to every copy of theirs, norms to both streams. Positions have
        no place, and labels and types start anew: where these are 0 and the radius covers the
        text, the encoder is the dense one. Centroids start anew where another ETC encoder has
        none.
        """
        option, path, words, cfg = "--lift", self.args.lift, self.encoder.dictionary, {}
        if not path:
            return
        if Path(path).is_dir():  # its first type is added to each word
            given, _ = folder_tensors(path, option, words, self.args)
            given = {name: t for name, t in given.items() if name.startswith("encoder.")}
            given[f"encoder.{_WORDS}"] += given.pop(f"encoder.{_TYPES}")[0]
        else:
            state = read_checkpoint(option, path)
            given, cfg = state["model"], state.get("cfg") or {}
            if "vocabulary" not in given:
                check_words(option, path, words)
        found, own = renamed(given), fingerprint(words)
        with_mask = copy.deepcopy(words)  # tasks of masked words add one that is in no dict.txt
        with_mask.add_symbol("<mask>")
        if _WORDS in found and len(found[_WORDS]) == len(with_mask):
            found[_WORDS] = found[_WORDS][: len(words)]
        theirs = found.pop("vocabulary", own)
        is_ours = torch.equal(theirs.cpu(), fingerprint(with_mask))
        is_etc = _TYPES in found
        # the numbers of labels depend on k, the sizes of their tables do not
        if is_etc and cfg and (most := cfg["model"].max_distance) != self.args.max_distance:
            allowed = f"{self.args.max_distance}, as here"
            raise unfit(option, path, f"its --max-distance is {most}", allowed)
        loaded, used = {"vocabulary": own if is_ours else theirs}, set()
        for name in self.encoder.state_dict():
            source = name
            for pattern, dense in () if is_etc else _DENSE.items():
                source = re.sub(pattern, dense, source)
            if source in found:
                loaded[f"encoder.{name}"] = found[source]
                used.add(source)
        for name in found.keys() - used:
            if not name.startswith(_LEFT_OUT):  # which is refused
                loaded[f"encoder.{name}"] = found[name]
        new = ("encoder.centroids",) if is_etc else ("encoder.centroids", f"encoder.{_TYPES}")
        anew = [
            name
            for name in self.state_dict()
            if not name.startswith("encoder.") or name in new or ("label_" in name and not is_etc)
        ]
        start_from(self, option, path, loaded, anew, _FITTING)
