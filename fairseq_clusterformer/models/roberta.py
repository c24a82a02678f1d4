"""Starting an encoder from fairseq's RoBERTa (Liu et al., 2019)."""

from pathlib import Path

from fairseq.data import Dictionary

from .checkpoints import CheckpointError, read_checkpoint
from .encoder_only import EncoderOnlyModel, tell

_OPTION = "--roberta-checkpoint"
_HEADS = ("lm_head.", "classification_heads.")


def load_roberta(model: EncoderOnlyModel, path: str) -> None:
    """Start a model's encoder, of RoBERTa's names and sizes, from a checkpoint. What RoBERTa does
    not have starts anew.

    Raises:
        CheckpointError: a file that cannot be read, or that does not fit; or, where its
            ``dict.txt`` is in the same folder, has other words.
    """
    given = read_checkpoint(_OPTION, path)["model"]
    loaded, left = {}, []
    for name, tensor in given.items():
        # as fairseq renamed them in time: decoder. to encoder., emb_layer_norm to this
        short = name.removeprefix("decoder.").removeprefix("encoder.")
        if short.startswith("sentence_encoder."):
            short = short.removeprefix("sentence_encoder.")
            short = short.replace("emb_layer_norm.", "layernorm_embedding.")
            loaded[f"encoder.{short}"] = tensor
        elif short.startswith(_HEADS):
            left.append(name)
        else:
            raise CheckpointError(f"{_OPTION} is {path}: it is no RoBERTa, it has {name}")
    words = model.encoder.dictionary
    check_words(_OPTION, path, words)
    embeddings = loaded.get("encoder.embed_tokens.weight")
    if embeddings is not None and len(embeddings) == len(words) + 1:
        # its task's last word, <mask>, stands in no dict.txt
        loaded["encoder.embed_tokens.weight"] = embeddings[:-1]

    # what no RoBERTa has: clusters, heads of a reader, and the mark of its version
    anew = [
        name
        for name in model.state_dict()
        if not name.startswith("encoder.") or ".routers." in name or name == "encoder.version"
    ]
    names = list(loaded)
    allowed = "a RoBERTa of the same sizes, positions and words"
    model.start_from(_OPTION, path, loaded, [n for n in anew if n not in loaded], allowed)
    tell(path, model.state_dict(), names, left)


def check_words(option: str, path: str, words: Dictionary) -> None:
    """Raise CheckpointError where the folder of a checkpoint has a dictionary of other words."""
    beside = Path(path).parent / "dict.txt"
    if not beside.is_file():
        return
    theirs: list[str] = Dictionary.load(str(beside)).symbols
    own = words.symbols[: -1 if words.symbols[-1] == "<mask>" else None]  # a task's own word
    if theirs != own:
        pairs = zip(theirs, own, strict=False)
        first = next((n for n, (a, b) in enumerate(pairs) if a != b), None)
        what = f"{len(theirs)} words, here {len(own)}"
        if first is not None:
            what = f"word {first} is {theirs[first]!r}, here {own[first]!r}"
        raise CheckpointError(
            f"{option} is {path}: {beside} is another dictionary ({what}); allowed: data "
            "prepared with that dict.txt"
        )
