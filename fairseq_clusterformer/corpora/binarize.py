"""Text files into the folder that fairseq's ``language_modeling`` task reads.

Bytes have one token each, in items of a fixed length without ``</s>``: only ``--sample-break-mode
none`` fits. Words and pieces have an item per line, ended by ``</s>``. Bits per byte are fairseq's
loss in base 2 times tokens / bytes, both in ``prepared.json``.
"""

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import sentencepiece
import torch
from fairseq.data import Dictionary, indexed_dataset
from tqdm import tqdm

from fairseq_clusterformer.data.bytes import byte_symbols
from fairseq_clusterformer.data.unicode import FORM, composed
from fairseq_clusterformer.errors import bad_option

Items = Callable[[Path], Iterable[torch.Tensor]]


def write_dataset(
    texts: dict[str, Path], out: Path, dictionary: Dictionary, items: Items
) -> dict[str, dict[str, int]]:
    """Write ``dict.txt``, and the .bin and .idx of each split from its text file; return the
    number of tokens and items of each split."""
    dictionary.save(str(out / "dict.txt"))
    counts = {}
    for split, text in texts.items():
        builder = indexed_dataset.make_builder(
            str(out / f"{split}.bin"), impl="mmap", vocab_size=len(dictionary)
        )
        tokens = number = 0
        for item in _progress(items(text), f"{split} items"):
            builder.add_item(item)
            tokens += len(item)
            number += 1
        builder.finalize(str(out / f"{split}.idx"))
        counts[split] = {"tokens": tokens, "items": number}
    return counts


def byte_dictionary() -> Dictionary:
    """Return the dictionary of the 256 bytes, the same for every byte-level data set."""
    return symbol_dictionary(byte_symbols())


def symbol_dictionary(symbols: Iterable[str]) -> Dictionary:
    """Return the dictionary of `symbols` in their order."""
    dictionary = Dictionary()
    for symbol in symbols:
        dictionary.add_symbol(symbol)
    return dictionary


def count_words(text: Path, form: str = FORM) -> Counter:
    """Return how often each word occurs in a form of Unicode, and ``</s>`` once per line. What a
    text writes like a special symbol, such as ``<pad>``, counts as ``<unk>``."""
    counts, lines = Counter(), 0
    with open(text, encoding="utf-8", newline="\n") as file:
        for lines, line in enumerate(_progress(file, "counting words"), 1):  # noqa: B007
            counts.update(composed(line, form).split())
    for symbol in ("<s>", "<pad>", "</s>"):
        if written := counts.pop(symbol, 0):
            counts["<unk>"] += written
    counts["</s>"] = lines
    return counts


def word_dictionary(
    counts: Counter, *, size: int = -1, min_count: int = -1, multiple: int = 8
) -> Dictionary:
    """Return the dictionary that ``fairseq-preprocess`` makes, the most frequent word first: of
    `size` entries at most, special symbols included, and words of `min_count` (-1: any). The size
    is padded to a `multiple`."""
    dictionary = Dictionary()
    for word, count in sorted(counts.items()):
        dictionary.add_symbol(word, count)
    dictionary.finalize(threshold=min_count, nwords=size, padding_factor=multiple)
    return dictionary


_PART = 1 << 14  # characters, of at most 4 bytes each
MB = 1 << 20
SAMPLE = 32  # MB of text that sentencepiece learns from, at about 20 times as much memory


def _sample(texts: Sequence[Path], form: str, most: int) -> Iterator[str]:
    """Yield the lines of all texts; if they have more bytes than `most`, about as many, drawn."""
    draw = random.Random(1).random
    share = most / max(1, sum(text.stat().st_size for text in texts))
    for text in texts:
        with open(text, encoding="utf-8", newline="\n") as file:
            for line in file:
                line = composed(line.rstrip("\n"), form)
                # in parts, since sentencepiece would drop a line that is too long
                for start in range(0, len(line) or 1, _PART):
                    if share >= 1 or draw() < share:
                        yield line[start : start + _PART]


def train_sentencepiece(
    texts: Sequence[Path],
    vocab: int,
    model: Path,
    option: str = "--sentencepiece",
    words: Iterable[str] = (),
    at_most: bool = False,
    form: str = FORM,
    sample: int = SAMPLE,
) -> None:
    """Train a unigram model of `vocab` pieces and write it to the file `model`. It is lossless, so
    that bits per byte can be computed: text in that form is not changed, blanks are kept, and what
    has no piece is spelled in bytes.

    Args:
        option: the user's option that `vocab` comes from.
        words: each becomes a piece, with the blank before it.
        at_most: a text that gives fewer pieces gets fewer; else that is a UserError.
        sample: MB of the texts to learn from; of more, lines are drawn, always the same.
    """
    sentencepiece.set_random_generator_seed(1)
    try:
        with open(model, "wb") as file:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=_sample(texts, form, sample * MB),
                model_writer=file,
                vocab_size=vocab,
                normalization_rule_name="identity",
                remove_extra_whitespaces=False,
                byte_fallback=True,
                # a model keeps what was said of its training
                **({"hard_vocab_limit": False} if at_most else {}),
                user_defined_symbols=["\u2581" + word for word in words],
                input_sentence_size=1_000_000,
                max_sentence_length=4 * _PART,
                minloglevel=2,
            )
    except RuntimeError as error:
        allowed, reason = "what sentencepiece can train", str(error).splitlines()[-1]
        if found := re.search(r"value <= (\d+)", str(error)):
            allowed, reason = f"at most {found[1]} for this text", ""
        elif found := re.search(r"required_chars\. \d+ vs (\d+)", str(error)):
            allowed, reason = f"{found[1]} or more for this text", ""
        raise bad_option(option, vocab, allowed, reason) from None


def piece_dictionary(model: Path) -> Dictionary:
    """Return the dictionary of a sentencepiece model's pieces, in its order."""
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(model))
    ids = range(pieces.get_piece_size())
    return symbol_dictionary(
        pieces.id_to_piece(i) for i in ids if not pieces.is_control(i) and not pieces.is_unknown(i)
    )


def _progress(items: Iterable, label: str) -> Iterable:
    return tqdm(items, desc=label, disable=None, leave=False)
