"""Small models of subwords, made here: no network, seconds."""

import io
import json
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import regex
import sentencepiece
from fairseq.data.encoders.gpt2_bpe_utils import bytes_to_unicode

TEXTS = [
    "The café opened in 1901, and the cakes were good.\tIt's a café of the old style.\r\n",
    "In the United States they'd bake cakes: $5 million, 2,000 of them each day! naïve über",
    "東京は日本の首都です。 Poznań, Kraków and Łódź are the towns 🍰🍰 of the cake 🍰",
] * 3


def write_gpt2(folder: Path, texts: Iterable[str] = TEXTS, merges: int = 120) -> Path:
    """Write encoder.json and vocab.bpe, learned from a few texts."""
    symbols = bytes_to_unicode()
    split = regex.compile(r" ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+")
    words = Counter(
        tuple(symbols[b] for b in word.encode()) for text in texts for word in split.findall(text)
    )
    learned = []
    for _ in range(merges):
        pairs = Counter()
        for word, count in words.items():
            for pair in pairwise(word):
                pairs[pair] += count
        best = max(sorted(pairs), key=pairs.get)
        learned.append(best)
        words = Counter({merge(word, best): count for word, count in words.items()})
    pieces = [*symbols.values(), *map("".join, learned)]
    folder.mkdir(parents=True, exist_ok=True)
    encoder = {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}
    (folder / "encoder.json").write_text(json.dumps(encoder))
    lines = ["#version: 0.2", *map(" ".join, learned)]
    (folder / "vocab.bpe").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def merge(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    merged = []
    for symbol in word:
        if merged and (merged[-1], symbol) == pair:
            merged[-1] += symbol
        else:
            merged.append(symbol)
    return tuple(merged)


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
