"""Small tokenizers of the library's kinds."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

TEXT = "Zürich's lake: 88 km², naïve cafés [SEP] </s> and ﬁsh."


def byte_pairs(texts: Iterable[str], size: int, special: Sequence[str] = ()) -> Tokenizer:
    """A byte-level BPE of so many pieces."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    how = {"special_tokens": list(special), "show_progress": False, "vocab_size": size}
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(initial_alphabet=alphabet, **how)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def made(kind: str, file: Path) -> Path:
    """A tokenizer of one of the library's models, trained on a sentence or two."""
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    if kind == "wordpiece":
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(vocab_size=90, special_tokens=tokens)
    elif kind != "bytes":
        tokens = ["<s>", "<pad>", "</s>", "<unk>"]
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=90, special_tokens=tokens, unk_token="<unk>", show_progress=False
        )
    texts = [TEXT, "A lake and a fish, cafés and a café."]
    if kind == "bytes":
        tokenizer = byte_pairs(texts, 300, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    else:
        trainer.show_progress = False
        tokenizer.train_from_iterator(texts, trainer)
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=64)
    tokenizer.save(str(file))
    return file
