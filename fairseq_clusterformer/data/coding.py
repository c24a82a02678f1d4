"""Text to tokens and back, by bytes, subwords or words; and ``--bpe clusterformer``.

    coding = TextCoding.from_folder("data-bin/enwik8", dictionary)
    tokens = coding.encode("The cat")
    text = coding.decode(tokens)

A line end is ``</s>`` for pieces and words. Bytes need none: a line end is a byte; the same holds
for subwords that are made of bytes, as GPT-2's.
"""

import codecs
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple, Optional

import numpy as np
import torch
from fairseq import utils
from fairseq.data import Dictionary
from fairseq.data.data_utils import infer_language_pair
from fairseq.data.encoders import register_bpe
from fairseq.dataclass import FairseqDataclass
from omegaconf import II
from torch import Tensor

from fairseq_clusterformer.errors import UserError, reading

from .characters import FORM, byte_symbols, composed, form_of
from .subwords import Subwords, Words, has_subwords, load_prepared
from .text import TextPipeline

# TokenBlockDataset copies every item that a block touches, so one item of 90M bytes would cost
# 720 MB per block. Where a block starts with an item, it gives </s> for the token before. With a
# prime length that is as rare as can be: the first block and every 4093rd after it.
BYTES_PER_ITEM = 4093

_BLOCK = 1 << 20  # bytes of a file that are coded at a time

UNREADABLE = "\ufffd".encode()
_OF_TASK = "oc.select:task.{},null"


class FileItems(NamedTuple):
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


class TextCoding:
    """How a prepared folder of text codes its tokens: by the model of its subwords, or by words.

    Attributes:
        unit: what a token is: "byte", "piece" or "word".
        form: of Unicode, in which texts become tokens; bytes take texts as they are.
    """

    form = FORM

    def __init__(self, dictionary: Dictionary, model: Subwords | None = None) -> None:
        self.dictionary, self._model = dictionary, model or Words(dictionary)
        self.unit = "word" if self._model.is_of_words else "piece"
        self._lines = not self._model.keeps_lines  # each ends by </s>
        self._index_of = np.array([dictionary.index(symbol) for symbol in self._model.symbols])
        own = dictionary.symbols[: dictionary.nspecial]
        self._bytes = dict(zip(self._model.symbols, self._model.bytes, strict=True))
        self._bytes |= {s: f" {s}".encode() if self.unit == "word" else UNREADABLE for s in own}
        # some put a blank before a text
        self._leads = self._lines or self._model.texts[self._model.encode("a").ids[0]][:1] == " "

    @property
    def ends_texts(self) -> bool:
        """Whether ``</s>`` ends a text, as of subwords that keep line ends, or a line."""
        return self.unit != "byte" and not self._lines

    @staticmethod
    def is_of_bytes(dictionary: Dictionary) -> bool:
        """Whether a dictionary is of the 256 bytes; a masked language model adds its mask."""
        return dictionary.symbols[dictionary.nspecial :][:256] == byte_symbols()

    @staticmethod
    def from_folder(folder: Path | str, dictionary: Dictionary | None = None) -> "TextCoding":
        """Of a prepared folder or bundle, for a dictionary or its own; UserError: it has none."""
        folder = Path(folder)
        if dictionary is None:
            if not (folder / "dict.txt").is_file():
                raise UserError(f"{folder} has no dict.txt; allowed: a folder of prepared text")
            dictionary = Dictionary.load(str(folder / "dict.txt"))
        if TextCoding.is_of_bytes(dictionary):
            return ByteCoding(dictionary)
        with reading(folder, "a folder with a tokenizer.json"):
            model = load_prepared(folder) if has_subwords(folder) else None
            coding = TextCoding(dictionary, model)
        coding.form = form_of(folder)
        return coding

    def encode(self, text: str | bytes, name: str = "the text") -> Tensor:
        """Return the tokens of a text, int64 [N]; its first character begins a line. Raises
        UserError: if the text, which it calls ``name``, is not UTF-8. `ByteCoding` takes all."""
        data = _utf8(text)
        try:
            text = composed(data.decode(), self.form)
        except UnicodeDecodeError as error:
            byte = f"byte 0x{data[error.start]:02X}"
            raise UserError(f"{name}: {byte} is not UTF-8; allowed: UTF-8 text") from None
        first, *others = self._coded(text.split("\n") if self._lines else [text])
        for line in others:
            first += [self.dictionary.eos(), *line]
        return torch.tensor(first, dtype=torch.int64)

    def _coded(self, texts: list[str]) -> Iterator[list[int]]:
        """The tokens of each text in the form."""
        for ids in self._model.ids(texts):
            yield self._index_of[ids].tolist() if len(ids) else []

    @property
    def items(self) -> FileItems:
        """What yields the tokens of a text file, in the items that a prepared folder stores; those
        of lines have their ``</s>``, which the last has, too. Raises UnicodeDecodeError: if the
        text is not UTF-8. `ByteCoding` takes all."""
        return self.line_items if self._lines else FileItems(self._blocks, self._items_of)

    @property
    def line_items(self) -> FileItems:
        """The same, with each line an item that ends in ``</s>``, whatever the coding."""
        return FileItems(blocks_of_lines, self._items_of_lines)

    def _items_of_lines(self, block: bytes) -> Iterator[Tensor]:
        for line in self._coded(split_lines(composed(block.decode(), self.form))):
            yield torch.tensor([*line, self.dictionary.eos()])

    def _blocks(self, file: Path) -> Iterator:
        with open(file, encoding="utf-8", newline="") as opened:
            while lines := "".join(islice(opened, 1000)):
                yield lines

    def _items_of(self, block) -> Iterable[Tensor]:
        yield self.encode(block)

    def chunks(self, tokens: Iterable[int], after: int | None = None) -> Iterator[bytes]:
        """Yield what each token stands for, in UTF-8 that may be cut anywhere; ``after`` is the
        token before the first one, or None where that begins a line."""
        end = self.dictionary.eos()
        before = end if after is None else after
        for token in map(int, tokens):
            found = self._bytes.get(self.dictionary[token], UNREADABLE)
            if token == end:
                found = b"\n" if self._lines else b""  # of a text, which is no line
            yield found.removeprefix(b" ") if self._leads and before == end else found
            before = token

    def stream(self, tokens: Iterable[int], after: int | None = None) -> Iterator[str]:
        """Yield what each token adds to the text; a character that several tokens share comes with
        the last of them. What is no character becomes U+FFFD; at the end, by one more string."""
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        yield from map(decoder.decode, self.chunks(tokens, after))
        if rest := decoder.decode(b"", final=True):
            yield rest

    def decode(self, tokens: Iterable[int], after: int | None = None) -> str:
        """Return readable text. Words have single blanks between them."""
        return "".join(self.stream(tokens, after))


class ByteCoding(TextCoding):
    """One token per byte; see `fairseq_clusterformer.data.characters`."""

    unit, form = "byte", "none"
    _lines, _leads = False, False
    _BLOCK = BYTES_PER_ITEM * 256

    def __init__(self, dictionary: Dictionary) -> None:
        self.dictionary = dictionary
        self._index_of = np.array([dictionary.index(symbol) for symbol in byte_symbols()])
        self._bytes = {symbol: bytes([value]) for value, symbol in enumerate(byte_symbols())}

    def encode(self, text: str | bytes, name: str = "the text") -> Tensor:
        return torch.from_numpy(self._index_of[np.frombuffer(_utf8(text), np.uint8)])

    def _coded(self, texts: list[str]) -> Iterator[list[int]]:
        return (self.encode(text).tolist() for text in texts)

    def _items_of(self, block: bytes) -> Iterable[Tensor]:
        return self.encode(block).split(BYTES_PER_ITEM)

    def _blocks(self, file: Path) -> Iterator[bytes]:
        with open(file, "rb") as opened:
            while block := opened.read(self._BLOCK):
                yield block


def _utf8(text: str | bytes) -> bytes:
    """The text's bytes; those that the command line could not read come back as given."""
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")


@dataclass
class ClusterformerTextConfig(FairseqDataclass):
    """Options of ``--bpe clusterformer``."""

    clusterformer_data: Optional[str] = field(  # noqa: UP045 (what fairseq reads)
        default=None,
        metadata={"help": "prepared folder whose text coding is used (default: the data folder)"},
    )
    # Not on the command line, since they have no help: fairseq takes them from the task.
    task_data: Optional[str] = II("task.data")  # noqa: UP045
    task_source_lang: Optional[str] = II(_OF_TASK.format("source_lang"))  # noqa: UP045
    task_target_lang: Optional[str] = II(_OF_TASK.format("target_lang"))  # noqa: UP045


@register_bpe("clusterformer", dataclass=ClusterformerTextConfig)
def text_of_folder(cfg: ClusterformerTextConfig) -> SimpleNamespace:
    """``--bpe clusterformer``: fairseq's commands read and write plain text, without a
    ``--tokenizer``; fairseq-interactive removes blanks at both ends of a prompt.

    ``encode`` makes symbols with blanks between them, and ``decode`` readable text of these, in
    lower case if the data is, and U+FFFD of what is no character. Raises UserError: another
    folder, or text that is not UTF-8.
    """
    folder = Path(utils.split_paths(cfg.clusterformer_data or cfg.task_data)[0])
    if (folder / "dict.txt").is_file():
        coding = TextCoding.from_folder(folder)
        words = coding.dictionary
        return SimpleNamespace(
            encode=lambda text: " ".join(words[i] for i in coding.encode(text)),
            decode=lambda symbols: coding.decode(map(words.index, symbols.split())),
        )
    pipeline = TextPipeline.from_folder(folder)
    source, target = cfg.task_source_lang, cfg.task_target_lang
    if source is None or target is None:  # fairseq's task does the same
        source, target = infer_language_pair(str(folder))
    return SimpleNamespace(
        encode=partial(pipeline.encode, lang=source), decode=partial(pipeline.decode, lang=target)
    )
