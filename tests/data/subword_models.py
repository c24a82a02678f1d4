"""Small models of subwords, made here: no network, seconds."""

import io
from collections.abc import Iterable
from pathlib import Path

import sentencepiece

from fairseq_clusterformer.data.formats import GPT2_FILES
from tests.data.tokenizers import byte_pairs

TEXTS = [
    "The café opened in 1901, and the cakes were good.\tIt's a café of the old style.\r\n",
    "In the United States they'd bake cakes: $5 million, 2,000 of them each day! naïve über",
    "東京は日本の首都です。 Poznań, Kraków and Łódź are the towns 🍰🍰 of the cake 🍰",
] * 3


def write_gpt2(folder: Path, texts: Iterable[str] = TEXTS, merges: int = 120) -> Path:
    """Write encoder.json and vocab.bpe, learned from a few texts."""
    tokenizer = byte_pairs(texts, 256 + merges)
    folder.mkdir(parents=True, exist_ok=True)
    for file, name in zip(tokenizer.model.save(str(folder)), GPT2_FILES, strict=True):
        (folder / file).rename(folder / name)
    return folder


def write_sentencepiece(path: Path, texts: Iterable[str] = TEXTS, **options) -> Path:
    """Write a model of 400 pieces: "identity" as the scripts train them, or another."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=model,
        hard_vocab_limit=False,
        minloglevel=2,
        **({"vocab_size": 400} | options),
    )
    path.write_bytes(model.getvalue())
    return path


LOSSLESS = {
    "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False,
    "byte_fallback": True,
}
