"""Dense models of transformers with a tokenizer of byte pairs."""

from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedModel, PreTrainedTokenizerFast

SENTENCES = [
    "The cat sat on the mat.",
    "A dog, it was told, ran é away from the small cat.",
    "The ball is red.",
]
TEXT = "\n".join([*SENTENCES, ""]) * 40


def save_byte_pairs(folder: Path, model: PreTrainedModel, special: list[str]) -> None:
    """Save a model with a byte-level BPE of as many pieces; with <unk>, <mask> comes last."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=model.config.vocab_size - ("<unk>" in special),
        special_tokens=special,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    if "<unk>" in special:
        tokenizer.add_special_tokens(["<mask>"])
    assert tokenizer.get_vocab_size() == model.config.vocab_size
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    model.save_pretrained(folder)
