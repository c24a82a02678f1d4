"""Text files into the folders that fairseq's tasks read. Bytes have one token each, in items of a
fixed length without ``</s>``: only ``--sample-break-mode none`` fits. Words and pieces have an
item per line, ended by ``</s>``."""

import random
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import sentencepiece
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import MMapIndexedDataset, best_fitting_int_dtype

from fairseq_clusterformer.data.characters import FORM, composed
from fairseq_clusterformer.data.coding import FileItems, blocks_of_lines, split_lines
from fairseq_clusterformer.errors import bad_option

from .parallel import parallel


def write_dataset(
    texts: dict[str, Path], out: Path, words: Dictionary, items: FileItems, workers: int | None = 1
) -> dict[str, dict[str, int]]:
    """Write ``dict.txt``, .bin and .idx of each split's text; return their tokens and items."""
    words.save(str(out / "dict.txt"))
    dtype, counts = best_fitting_int_dtype(len(words)), {}
    code = partial(_coded, items.code, dtype)
    for split, text in texts.items():
        found = [np.zeros(0, np.int32)]
        with open(out / f"{split}.bin", "wb") as file:
            for lengths, tokens in parallel(code, items.blocks(text), workers, split, batch=1):
                found.append(lengths)
                tokens.tofile(file)
        # fairseq's own builder holds 50 bytes of an item, this holds 12
        sizes = np.concatenate(found)
        starts = (np.cumsum(sizes, dtype=np.int64) - sizes) * dtype().itemsize
        with MMapIndexedDataset.Index.writer(out / f"{split}.idx", dtype) as index:
            for part in (struct.pack("<Q", len(sizes)), sizes, starts):
                index._file.write(part)
        counts[split] = {"tokens": int(sizes.sum()), "items": len(sizes)}
    return counts


def _coded(code: Callable, dtype: type, block: object) -> tuple[np.ndarray, np.ndarray]:
    """The lengths of a block's items, and the tokens of all."""
    items = [item.numpy() for item in code(block)]
    lengths = np.array([len(item) for item in items], np.int32)
    return lengths, np.concatenate(items).astype(dtype)


def symbol_dictionary(symbols: Iterable[str]) -> Dictionary:
    """Return the dictionary of `symbols` in their order."""
    dictionary = Dictionary()
    for symbol in symbols:
        dictionary.add_symbol(symbol)
    return dictionary


def count_words(texts: Iterable[Path], form: str = FORM, workers: int | None = 1) -> Counter:
    """Return how often each word occurs in a form of Unicode, in the order in which they come, and
    ``</s>`` once per line. Special symbols in the text, such as ``<pad>``, count as ``<unk>``."""
    counts, lines = Counter(), 0
    count, blocks = partial(_counted, form=form), chain.from_iterable(map(blocks_of_lines, texts))
    for found, number in parallel(count, blocks, workers, "words", batch=1):
        counts.update(found)
        lines += number
    for symbol in ("<s>", "<pad>", "</s>"):
        if written := counts.pop(symbol, 0):
            counts["<unk>"] += written
    counts["</s>"] = lines
    return counts


def _counted(block: bytes, form: str) -> tuple[Counter, int]:
    text = composed(block.decode(), form)
    return Counter(text.split()), len(split_lines(text))


def word_dictionary(
    counts: Counter, size: int = -1, multiple: int = 8, least: int = 1
) -> Dictionary:
    """Return the dictionary that ``fairseq-preprocess`` makes, the most frequent word first, if it
    is there `least` times: of `size` entries at most (-1: any), special symbols included, padded
    to a `multiple`."""
    dictionary = Dictionary()
    for word, count in counts.items():
        dictionary.add_symbol(word, count)
    dictionary.finalize(least, size, multiple)
    return dictionary


_PART = 1 << 14  # characters, of at most 4 bytes each
SAMPLE = 32 << 20  # bytes of text to learn from, at about 20 times as much memory


def _sample(texts: Sequence[Path], form: str) -> Iterator[str]:
    """Yield the lines of all texts, or so many of them, drawn, that they have `SAMPLE` bytes."""
    draw, size = random.Random(1).random, sum(text.stat().st_size for text in texts)
    if (share := SAMPLE / max(1, size)) < 1:
        print(f"subwords are learned from {SAMPLE:,} of {size:,} bytes, drawn by lines")
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
) -> None:
    """Train a unigram model of `vocab` pieces, which an `option` says, and write it to the file
    `model`. It is lossless, so that bits per byte can be computed: text in that form is not
    changed, blanks are kept, and what has no piece is spelled in bytes. Each of `words` becomes a
    piece, with the blank before it. Raises UserError if the text gives fewer, unless `at_most`."""
    sentencepiece.set_random_generator_seed(1)
    try:
        with open(model, "wb") as file:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=_sample(texts, form),
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
    except RuntimeError as error:  # which says the largest or the smallest number
        problem = str(error).splitlines()[-1].rpartition("] ")[2].rstrip(".")
        raise bad_option(option, vocab, "what this text is enough for", problem) from None
