"""Text files into the folder that fairseq's ``language_modeling`` task reads.

Bytes have one token each, in items of a fixed length without ``</s>``: only ``--sample-break-mode
none`` fits. Words and pieces have an item per line, ended by ``</s>``. Bits per byte are fairseq's
loss in base 2 times tokens / bytes, both in ``prepared.json``.
"""

import random
import re
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import sentencepiece
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import MMapIndexedDataset, best_fitting_int_dtype

from fairseq_clusterformer.data.bytes import byte_symbols
from fairseq_clusterformer.data.coding import FileItems, blocks_of_lines, split_lines
from fairseq_clusterformer.data.unicode import FORM, composed
from fairseq_clusterformer.errors import bad_option

from .parallel import parallel

MB = 1 << 20
_PIECE_OF_WORK = 8 * MB  # of text: what a worker does at a time, and what a run can lose


def write_dataset(
    texts: dict[str, Path],
    out: Path,
    dictionary: Dictionary,
    items: FileItems,
    *,
    workers: int | None = 1,
    kept: Path | None = None,
) -> dict[str, dict[str, int]]:
    """Write ``dict.txt``, and the .bin and .idx of each split from its text file; return the
    number of tokens and items of each split. `workers` and `kept` as `parallel` takes them."""
    dictionary.save(str(out / "dict.txt"))
    dtype, counts = best_fitting_int_dtype(len(dictionary)), {}
    code = partial(_coded, items.code)
    for split, text in texts.items():
        sizes = [np.zeros(0, np.int32)]
        with open(out / f"{split}.bin", "wb") as file:
            for numbers in _in_blocks(code, items.blocks, text, split, workers, kept):
                end = 1 + numbers[0]
                sizes.append(numbers[1:end].copy())
                numbers[end:].astype(dtype).tofile(file)
        counts[split] = _write_index(out / f"{split}.idx", np.concatenate(sizes), dtype)
    return counts


def _in_blocks(
    function: Callable,
    blocks: Callable[[Path], Iterator],
    text: Path,
    label: str,
    workers: int | None,
    kept: Path | None,
) -> Iterator:
    how = {"batch": _PIECE_OF_WORK, "size": len, "unit": "B", "total": text.stat().st_size}
    yield from parallel(function, blocks(text), workers, label, kept=kept and kept / label, **how)


def _coded(code: Callable, block: object) -> np.ndarray:
    """How many items a block has, the length of each, and the tokens of all, in int32."""
    items = [item.numpy() for item in code(block)]
    lengths = [len(item) for item in items]
    return np.concatenate([[len(items)], lengths, *items]).astype(np.int32)


def _counted(block: bytes, form: str) -> tuple[Counter, int]:
    text = composed(block.decode(), form)
    return Counter(text.split()), len(split_lines(text))


def _write_index(path: Path, sizes: np.ndarray, dtype: type) -> dict[str, int]:
    """Write an .idx as fairseq's builder does, which holds 50 bytes of an item where this holds
    12; count the tokens and items."""
    starts = np.cumsum(sizes, dtype=np.int64)
    tokens = int(starts[-1]) if len(starts) else 0
    starts -= sizes
    starts *= dtype().itemsize
    with MMapIndexedDataset.Index.writer(path, dtype) as index:
        for part in (struct.pack("<Q", len(sizes)), sizes, starts):
            index._file.write(part)
    return {"tokens": tokens, "items": len(sizes)}


def byte_dictionary() -> Dictionary:
    """Return the dictionary of the 256 bytes, the same for every byte-level data set."""
    return symbol_dictionary(byte_symbols())


def symbol_dictionary(symbols: Iterable[str]) -> Dictionary:
    """Return the dictionary of `symbols` in their order."""
    dictionary = Dictionary()
    for symbol in symbols:
        dictionary.add_symbol(symbol)
    return dictionary


def count_words(text: Path, form: str = FORM, **how) -> Counter:
    """Return how often each word occurs in a form of Unicode, and ``</s>`` once per line. What a
    text writes like a special symbol, such as ``<pad>``, counts as ``<unk>``; `how` as of
    `count_raw_words`."""
    counts, lines = count_raw_words(text, form, **how)
    for symbol in ("<s>", "<pad>", "</s>"):
        if written := counts.pop(symbol, 0):
            counts["<unk>"] += written
    counts["</s>"] = lines
    return counts


def count_raw_words(
    text: Path, form: str, *, workers: int | None = 1, kept: Path | None = None
) -> tuple[Counter, int]:
    """Return how often each word occurs as it is written, in the order in which they come, and the
    number of lines. `workers` and `kept` as `parallel` takes them."""
    counts, lines = Counter(), 0
    count = partial(_counted, form=form)
    for found, number in _in_blocks(count, blocks_of_lines, text, "words", workers, kept):
        counts.update(found)
        lines += number
    return counts, lines


def word_dictionary(
    counts: Counter, *, size: int = -1, min_count: int = -1, multiple: int = 8
) -> Dictionary:
    """Return the dictionary that ``fairseq-preprocess`` makes, the most frequent word first: of
    `size` entries at most, special symbols included, and words of `min_count` (-1: any). The size
    is padded to a `multiple`."""
    dictionary = Dictionary()
    special = dictionary.symbols[: dictionary.nspecial]
    for symbol in special:
        dictionary.add_symbol(symbol, counts[symbol])
    words = sorted(word for word in counts if word not in special)
    words.sort(key=counts.get, reverse=True)  # equal ones stay in their order
    most = len(words) if size <= 0 else max(0, size - len(special))
    for word in words[:most]:  # Dictionary.finalize does the same with three copies of all words
        if counts[word] < min_count:
            break
        dictionary.add_symbol(word, counts[word])
    dictionary.pad_to_multiple_(multiple)
    return dictionary


_PART = 1 << 14  # characters, of at most 4 bytes each
SAMPLE = 32  # MB of text that sentencepiece learns from, at about 20 times as much memory


def _sample(texts: Sequence[Path], form: str, most: int) -> Iterator[str]:
    """Yield the lines of all texts; if they have more bytes than `most`, about as many, drawn."""
    draw, size = random.Random(1).random, sum(text.stat().st_size for text in texts)
    share = most / max(1, size)
    if share < 1:
        print(
            f"subwords are learned from {most / MB:,.0f} MB of lines drawn from {size / MB:,.0f}"
        )
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
