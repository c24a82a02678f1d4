"""Text to the tokens of a language model and back, by bytes, sentencepiece pieces or words.

    coding = TextCoding.from_folder("data-bin/enwik8", dictionary)
    tokens = coding.encode("The cat")
    text = coding.decode(tokens)

A line end is ``</s>`` for pieces and words. Bytes need none: a line end is a byte; the same holds
for subwords that are made of bytes, as GPT-2's.
"""

import codecs
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fairseq_clusterformer.errors import UserError, reading

from . import bytes as byte_coding
from .subwords import (
    BYTE_PIECE,
    GPT2_FILES,
    TOKENIZER,
    GPT2Subwords,
    TokenizerSubwords,
    load_sentencepiece,
)
from .unicode import FORM, composed, form_of

SUBWORD_MODEL = "sentencepiece.model"

# TokenBlockDataset copies every item that a block touches, so one item of 90M bytes would cost
# 720 MB per block. Where a block starts with an item, it gives </s> for the token before. With a
# prime length that is as rare as can be: the first block and every 4093rd after it.
BYTES_PER_ITEM = 4093

_BLOCK = 1 << 20  # bytes of a file that are coded at a time

UNREADABLE = "\ufffd".encode()
_BLANK = "\u2581"  # how sentencepiece writes a blank


@dataclass(frozen=True)
class FileItems:
    """Makes the items of a file: calling it yields them, each int64 [N]."""

    blocks: Callable[[Path], Iterator]  # of the file; their items do not depend on each other
    code: Callable[..., Iterable[Tensor]]  # the items of a block

    def __call__(self, file: Path) -> Iterator[Tensor]:
        for block in self.blocks(file):
            yield from self.code(block)


def blocks_of_lines(file: Path) -> Iterator[bytes]:
    """Yield the text of a file in blocks of whole lines."""
    with open(file, "rb") as opened:
        while lines := opened.readlines(_BLOCK):
            yield b"".join(lines)


def split_lines(block: str) -> list[str]:
    """The lines of such a block, without their ends."""
    return block.removesuffix("\n").split("\n")


class TextCoding(ABC):
    """How a prepared folder of text codes its tokens.

    Args:
        dictionary: fairseq's, of the same folder.

    Attributes:
        unit: what a token is: "byte", "piece" or "word".
        form: of Unicode, in which texts become tokens; bytes take texts as they are.
    """

    unit: ClassVar[str]
    form = FORM

    def __init__(self, dictionary) -> None:
        self.dictionary = dictionary

    @staticmethod
    def from_folder(folder: Path | str, dictionary=None) -> "TextCoding":
        """The coding of a prepared folder, or of a bundle, for a dictionary or the folder's own;
        raises UserError if there is none."""
        folder = Path(folder)
        if dictionary is None:
            from fairseq.data import Dictionary

            if not (folder / "dict.txt").is_file():
                raise UserError(f"{folder} has no dict.txt; allowed: a folder of prepared text")
            dictionary = Dictionary.load(str(folder / "dict.txt"))
        symbols = byte_coding.byte_symbols()  # a masked language model adds its mask behind them
        if dictionary.symbols[dictionary.nspecial :][: len(symbols)] == symbols:
            return ByteCoding(dictionary)
        if (folder / SUBWORD_MODEL).is_file():
            coding: TextCoding = PieceCoding(dictionary, folder / SUBWORD_MODEL)
        elif (folder / TOKENIZER).is_file():
            with reading(folder / TOKENIZER, "a tokenizer.json"):
                model = TokenizerSubwords(folder / TOKENIZER)
            coding = (ByteSubwords if model.keeps_lines else LineSubwords)(dictionary, model)
        elif all((folder / name).is_file() for name in GPT2_FILES):
            coding = ByteSubwords(dictionary, GPT2Subwords(folder))
        else:
            coding = WordCoding(dictionary)
        coding.form = form_of(folder)
        return coding

    def encode(self, text: str | bytes, name: str = "the text") -> Tensor:
        """Return the tokens of a text, int64 [N]; its first character begins a line. Raises
        UserError: if the text, which it calls ``name``, is not UTF-8. `ByteCoding` takes all."""
        data = _utf8(text)
        try:
            tokens = self._encode(composed(data.decode(), self.form))
        except UnicodeDecodeError as error:
            byte = f"byte 0x{data[error.start]:02X}"
            raise UserError(f"{name}: {byte} is not UTF-8; allowed: UTF-8 text") from None
        return torch.tensor(tokens, dtype=torch.int64)

    def _encode(self, text: str) -> list[int]:
        """The tokens of a text in the form."""
        raise NotImplementedError

    @property
    @abstractmethod
    def items(self) -> FileItems:
        """What yields the tokens of a text file, in the items that a prepared folder stores; those
        of pieces and words are lines with their ``</s>``, which the last has, too. Raises
        UnicodeDecodeError: if the text is not UTF-8. `ByteCoding` takes all."""

    @property
    def line_items(self) -> FileItems:
        """The same, with each line an item that ends in ``</s>``, whatever the coding."""
        return FileItems(blocks_of_lines, self._items_of_lines)

    def _items_of_lines(self, block: bytes) -> Iterator[Tensor]:
        end = torch.tensor([self.dictionary.eos()])
        for line in split_lines(block.decode()):
            yield torch.cat([self.encode(line), end])

    @abstractmethod
    def chunks(self, tokens: Iterable[int], after: int | None = None) -> Iterator[bytes]:
        """Yield what each token stands for, in UTF-8 that may be cut anywhere; ``after`` is the
        token before the first one, or None where that begins a line."""

    def stream(self, tokens: Iterable[int], after: int | None = None) -> Iterator[str]:
        """Yield what each token adds to the text; joined, it is `decode`.

        A character that several tokens share comes with the last of them. What is no character
        becomes the replacement character. What is left open at the end comes as one more string.
        """
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        for chunk in self.chunks(tokens, after):
            yield decoder.decode(chunk)
        if rest := decoder.decode(b"", final=True):
            yield rest

    def decode(self, tokens: Iterable[int], after: int | None = None) -> str:
        """Return readable text. Words have single blanks between them."""
        return "".join(self.stream(tokens, after))


class ByteCoding(TextCoding):
    """One token per byte; see `fairseq_clusterformer.data.bytes`."""

    unit, form = "byte", "none"
    _BLOCK = BYTES_PER_ITEM * 256

    def __init__(self, dictionary) -> None:
        super().__init__(dictionary)
        symbols = byte_coding.byte_symbols()
        self._index_of = np.array([dictionary.index(symbol) for symbol in symbols])
        values = dict(zip(self._index_of.tolist(), range(256), strict=True))
        found = (values.get(i) for i in range(len(dictionary)))
        self._bytes = [UNREADABLE if value is None else bytes([value]) for value in found]

    def _tokens(self, data: bytes) -> Tensor:
        return torch.from_numpy(self._index_of[np.frombuffer(data, np.uint8)])

    def encode(self, text: str | bytes, name: str = "the text") -> Tensor:
        return self._tokens(_utf8(text))

    @property
    def items(self) -> FileItems:
        return FileItems(self._blocks, self._items_of)

    def _items_of(self, block: bytes) -> Iterable[Tensor]:
        return self._tokens(block).split(BYTES_PER_ITEM)

    def _blocks(self, file: Path) -> Iterator[bytes]:
        with open(file, "rb") as opened:
            while block := opened.read(self._BLOCK):
                yield block

    def chunks(self, tokens: Iterable[int], after: int | None = None) -> Iterator[bytes]:
        for token in tokens:
            yield self._bytes[int(token)]


class _Subwords(TextCoding):
    """Subwords of a model that knows the bytes of each."""

    unit = "piece"

    def __init__(self, dictionary, model: TokenizerSubwords) -> None:
        super().__init__(dictionary)
        self._model = model
        self._index_of = np.array([dictionary.index(symbol) for symbol in model.symbols])
        own = dictionary.symbols[: dictionary.nspecial]
        self._bytes = dict(zip(model.symbols, model.bytes, strict=True))
        self._bytes |= dict.fromkeys(own, UNREADABLE)

    def _encode(self, text: str) -> list[int]:
        return self._index_of[self._model.encode(text).ids].tolist()


class ByteSubwords(_Subwords):
    """Subwords of bytes, line ends too: GPT-2's files, or a ``tokenizer.json``."""

    def __init__(self, dictionary, model: TokenizerSubwords) -> None:
        super().__init__(dictionary, model)
        # Some put a blank before a text.
        first = model.encode("a").ids[:1]
        self._leads = bool(len(first)) and model.bytes[first[0]].startswith(b" ")

    @property
    def items(self) -> FileItems:
        return FileItems(self._blocks, self._items_of)

    def _items_of(self, block: str) -> Iterable[Tensor]:
        yield self.encode(block)

    def _blocks(self, file: Path) -> Iterator[str]:
        with open(file, encoding="utf-8", newline="") as opened:
            while lines := "".join(islice(opened, 1000)):
                yield lines

    def chunks(self, tokens: Iterable[int], after: int | None = None) -> Iterator[bytes]:
        end = self.dictionary.eos()
        before = end if after is None else after
        for token in map(int, tokens):
            found = self._bytes.get(self.dictionary[token], UNREADABLE)
            if token == end:  # of a text, which is no line
                found = b""
            yield found.removeprefix(b" ") if self._leads and before == end else found
            before = token


class _LineCoding(TextCoding):
    """Codes one line at a time, each ended by ``</s>``."""

    @abstractmethod
    def _lines(self, lines: list[str]) -> list[list[int]]:
        """The tokens of each line, without its end."""

    @abstractmethod
    def _chunk(self, symbol: str, begins_line: bool) -> bytes:
        """What a symbol stands for, with the blank before it."""

    def _encode(self, text: str) -> list[int]:
        first, *others = self._lines(text.split("\n"))
        for line in others:
            first += [self.dictionary.eos(), *line]
        return first

    @property
    def items(self) -> FileItems:
        return self.line_items

    def _items_of_lines(self, block: bytes) -> Iterator[Tensor]:
        for line in self._lines(split_lines(composed(block.decode(), self.form))):
            yield torch.tensor([*line, self.dictionary.eos()])

    def chunks(self, tokens: Iterable[int], after: int | None = None) -> Iterator[bytes]:
        end = self.dictionary.eos()
        before = end if after is None else after
        for token in map(int, tokens):
            yield b"\n" if token == end else self._chunk(self.dictionary[token], before == end)
            before = token


class PieceCoding(_LineCoding):
    """The pieces of a sentencepiece model, a file, that `train_sentencepiece` made."""

    unit = "piece"

    def __init__(self, dictionary, model: Path) -> None:
        super().__init__(dictionary)
        self._model = load_sentencepiece(model)
        ids = range(self._model.get_piece_size())
        self._index_of = np.array([dictionary.index(self._model.id_to_piece(i)) for i in ids])

    def _lines(self, lines: list[str]) -> list[list[int]]:
        found = self._model.encode(lines, num_threads=1)  # whoever wants more has workers
        return [self._index_of[ids].tolist() if ids else [] for ids in found]

    def _chunk(self, symbol: str, begins_line: bool) -> bytes:
        if found := BYTE_PIECE.fullmatch(symbol):
            return bytes.fromhex(found[1])
        if symbol in self.dictionary.symbols[: self.dictionary.nspecial]:
            return UNREADABLE
        if begins_line:  # sentencepiece puts a blank before each line
            symbol = symbol.removeprefix(_BLANK)
        return symbol.replace(_BLANK, " ").encode()


class LineSubwords(_LineCoding, _Subwords):
    """Subwords of a ``tokenizer.json`` that reads line ends as blanks, such as word pieces."""

    def _lines(self, lines: list[str]) -> list[list[int]]:
        return [_Subwords._encode(self, line) for line in lines]

    def _chunk(self, symbol: str, begins_line: bool) -> bytes:
        piece = self._bytes.get(symbol, UNREADABLE)
        return piece.removeprefix(b" ") if begins_line else piece


class WordCoding(_LineCoding):
    """Words with white space between them; what the dictionary lacks is ``<unk>``, and so is what
    a text writes like one of its special symbols, such as ``</s>``."""

    unit = "word"

    def _lines(self, lines: list[str]) -> list[list[int]]:
        indices, unknown = self.dictionary.indices, self.dictionary.unk()
        first = self.dictionary.nspecial
        found = ([indices.get(word, unknown) for word in line.split()] for line in lines)
        return [[i if i >= first else unknown for i in line] for line in found]

    def _chunk(self, symbol: str, begins_line: bool) -> bytes:
        return symbol.encode() if begins_line else b" " + symbol.encode()


def _utf8(text: str | bytes) -> bytes:
    """The text's bytes; those that the command line could not read come back as given."""
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
