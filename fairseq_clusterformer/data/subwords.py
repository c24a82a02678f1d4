"""Text as subwords, each with the characters that it stands for; answers are spans of both.

A text is split by GPT-2's byte pair encoding, as RoBERTa reads it (``encoder.json`` and
``vocab.bpe``), or by a sentencepiece model. Offsets are characters of the Python string that was
given, whatever a model makes of it inside.
"""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fairseq_clusterformer.errors import reading

from .unicode import READ_FORM, form_of, with_places

if TYPE_CHECKING:
    from fairseq.data import Dictionary

BYTE_PIECE = re.compile("<0x([0-9A-F]{2})>")  # as sentencepiece writes a byte
GPT2_FILES = ("encoder.json", "vocab.bpe")
MODEL, TOKENIZER = "sentencepiece.model", "tokenizer.json"  # in a prepared folder


#: what stands for fairseq's special symbols: the first that a tokenizer has
ROLES = {
    "<s>": ("<s>", "[CLS]"),
    "<pad>": ("<pad>", "[PAD]"),
    "</s>": ("</s>", "[SEP]"),
    "<unk>": ("<unk>", "[UNK]"),
    "<mask>": ("<mask>", "[MASK]"),
}


@dataclass(frozen=True)
class Tokens:
    """The tokens of a text.

    A character that takes several tokens (of its bytes) is all of it in each of them. A token's
    span may hold a blank before its word, and be empty (sentencepiece's mark of the beginning).
    """

    ids: np.ndarray  # the model's, int32 [N]
    starts: np.ndarray  # the first character of each, int32 [N]; never decreasing
    ends: np.ndarray  # the one after its last, int32 [N]; never decreasing

    def __len__(self) -> int:
        return len(self.ids)

    def cover(self, start: int, end: int) -> tuple[int, int]:
        """Return the fewest tokens [first, last) that hold the characters [start, end); ValueError
        if none does, as of blanks that the model drops."""
        first = int(np.searchsorted(self.ends, start, side="right"))
        last = int(np.searchsorted(self.starts, end, side="left"))
        (held,) = np.nonzero(self.starts[first:last] < self.ends[first:last])
        if start >= end or not len(held):
            raise ValueError(f"characters [{start}, {end}) are in no token; allowed: 1 or more")
        return first + int(held[0]), first + int(held[-1]) + 1

    def text(self, text: str, first: int, last: int) -> str:
        """Return the text of tokens [first, last), without blanks around it."""
        if not 0 <= first < last <= len(self):
            allowed = "1 or more of them"
            raise ValueError(f"tokens [{first}, {last}) of {len(self)}; allowed: {allowed}")
        return text[self.starts[first] : self.ends[last - 1]].strip()


def load_sentencepiece(path: Path):
    """A sentencepiece model; raises UserError for a file that is missing or damaged."""
    from sentencepiece import SentencePieceProcessor

    with reading(path, "a sentencepiece model"):
        (model := SentencePieceProcessor()).LoadFromSerializedProto(path.read_bytes())
        return model


class Subwords(ABC):
    """A model of subwords, which reads texts in one form of Unicode."""

    symbols: Sequence[str]  # each id's symbol in a fairseq dictionary
    #: what each id stands for, led by a blank where a word begins; empty of a part of a letter
    texts: Sequence[str]
    form = "none"  # of Unicode; see :mod:`~fairseq_clusterformer.data.unicode`

    def encode(self, text: str) -> Tokens:
        """Return the tokens of a text; raises ValueError for what is not Unicode."""
        text.encode()  # the models do not say what is wrong
        formed = with_places(text, self.form)
        if formed is None:
            return self._encode(text)
        formed, first, last = formed
        tokens = self._encode(formed)
        first, last = np.append(first, len(text)), np.append(last, len(text))
        starts = first[tokens.starts]
        ends = np.where(tokens.ends > tokens.starts, last[tokens.ends - 1], starts)
        return Tokens(tokens.ids, starts.astype(np.int32), ends.astype(np.int32))

    @abstractmethod
    def _encode(self, text: str) -> Tokens:
        """The tokens of a text in the form."""


class SentencePieceSubwords(Subwords):
    """A sentencepiece model, or UserError; its symbols are the pieces.

    A model that leaves the text as it is, as ``clusterformer prepare`` trains them, keeps every
    character in a token. One that normalises drops some blanks.
    """

    def __init__(self, model: Path) -> None:
        self._model = load_sentencepiece(model)
        ids = range(self._model.get_piece_size())
        self.symbols = [self._model.id_to_piece(id_) for id_ in ids]
        self.texts = list(map(self._text, ids))

    def _text(self, id_: int) -> str:
        symbol = self.symbols[id_]
        if self._model.is_byte(id_):  # such as <0x41>
            return bytes([int(symbol[1:-1], 16)]).decode(errors="ignore")
        hidden = self._model.is_control(id_) or self._model.is_unknown(id_)
        return "" if hidden else symbol.replace("▁", " ")

    def _encode(self, text: str) -> Tokens:
        mapping = self._model.encode(text, return_type="offset_mapping")
        spans = np.array(mapping["offsets"], np.int32).reshape(-1, 2)
        # All bytes of a character but the last have an empty span; so has the mark of the
        # beginning, which stands for nothing.
        for i in range(len(spans) - 2, -1, -1):
            (start, end), following = spans[i], spans[i + 1]
            if start == end == following[0] and mapping["pieces"][i] != "▁":
                spans[i] = following
        return Tokens(np.array(mapping["ids"], np.int32), spans[:, 0], spans[:, 1])


class TokenizerSubwords(Subwords):
    """A tokenizer's word pieces, byte pairs or unigrams, of its ``tokenizer.json``; raises
    ValueError for a file that is none.

    Its symbols are its tokens; those that stand for fairseq's special symbols have fairseq's
    names, and those with white space their numbers. What a text writes like a special token is
    text.

    Attributes:
        bytes: what each id stands for.
        first: the special token that it puts in front of a text; None: it puts none.
    """

    bytes: list[bytes]

    def __init__(self, file: Path) -> None:
        from tokenizers import Tokenizer

        try:
            self._tokenizer = Tokenizer.from_file(str(file))
            kinds = _kinds(json.loads(file.read_text(encoding="utf-8")))
        except Exception as error:  # the library raises nothing narrower
            raise ValueError(f"{file}: is no tokenizer.json: {error}") from None
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._tokenizer.encode_special_tokens = True
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        names = {
            next(name for name in known if name in vocabulary): ours
            for ours, known in ROLES.items()
            if any(name in vocabulary for name in known)
        }
        self.symbols: list[str] = [f"<missing-{i}>" for i in range(max(vocabulary.values()) + 1)]
        for token, number in vocabulary.items():
            self.symbols[number] = names.get(token, token)
        known = {symbol: i for i, symbol in enumerate(self.symbols) if symbol in ROLES}
        self._unknown = known.pop("<unk>", None)
        self._special = list(known.values())
        for number, symbol in enumerate(self.symbols):
            if symbol.split() != [symbol]:  # white space, which no dictionary holds
                self.symbols[number] = f"<token-{number}>"
        added = self._tokenizer.get_added_tokens_decoder()
        self.bytes = [b""] * len(self.symbols)
        for token, number in vocabulary.items():
            if number not in added:
                self.bytes[number] = _bytes(token, kinds)
            elif not added[number].special and self.symbols[number] not in ROLES:
                self.bytes[number] = token.encode()  # a text's own, such as <think>
        around = self._tokenizer.encode("").ids
        self.first = around[0] if around else None

    @cached_property
    def texts(self) -> list[str]:
        return [piece.decode(errors="ignore") for piece in self.bytes]

    @property
    def keeps_lines(self) -> bool:
        """Whether line ends are pieces like any others; else they are lost as blanks are."""
        found = b"".join(self.bytes[i] for i in self.encode("a\n\na").ids)
        return found.lstrip(b" ") == b"a\n\na"

    def _encode(self, text: str) -> Tokens:
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        spans = np.array(encoding.offsets, np.int32).reshape(-1, 2)
        ids = np.array(encoding.ids, np.int32)
        if self._unknown is not None:  # unigrams have pieces that are written like them
            ids[np.isin(ids, self._special)] = self._unknown
        return Tokens(ids, spans[:, 0], spans[:, 1])


class GPT2Subwords(TokenizerSubwords):
    """GPT-2's byte pair encoding, of a folder's ``encoder.json`` and ``vocab.bpe``, or ValueError.
    Its symbols are the ids as text, as in RoBERTa's ``dict.txt``."""

    _unknown = None

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers

        files = [folder / name for name in GPT2_FILES]
        try:
            vocabulary, merges = models.BPE.read_file(*map(str, files))
        except Exception as error:  # the library raises nothing narrower
            problem = f"no encoder.json and vocab.bpe of GPT-2: {error}"
            raise ValueError(f"{folder}: {problem}") from None
        pieces = [*pre_tokenizers.ByteLevel.alphabet(), *map("".join, merges)]
        if missing := [piece for piece in pieces if piece not in vocabulary]:
            problem = f"lacks {len(missing):,} pieces, {missing[0]!r} first"
            allowed = f"all 256 bytes and what {files[1].name} merges"
            raise ValueError(f"{files[0]}: {problem}; allowed: {allowed}")
        ids = sorted(vocabulary.values())
        if ids != list(range(len(ids))):
            raise ValueError(f"{files[0]}: its ids are not 0 to {len(ids) - 1:,}, each once")
        self.symbols = [str(id_) for id_ in ids]
        # 0xFF is in no UTF-8
        letters = _letters()
        self.bytes = [
            bytes(letters.get(letter, 0xFF) for letter in piece)
            for piece in sorted(vocabulary, key=vocabulary.get)
        ]
        self._tokenizer = Tokenizer(models.BPE(vocabulary, merges))
        self._tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(
            add_prefix_space=False, trim_offsets=False
        )
        self._tokenizer.decoder = decoders.ByteLevel()

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of some ids; bytes that are no character become U+FFFD."""
        return self._tokenizer.decode(list(ids))


def _kinds(content: dict) -> tuple[str, str]:
    """How a tokenizer writes its tokens: the kind of its model, or "bytes" for letters that stand
    for bytes; and what marks the continuation of a word."""
    model, steps = content["model"], [content.get("pre_tokenizer"), content.get("decoder")]
    kind = "bytes" if '"ByteLevel"' in json.dumps(steps) else model["type"]
    return kind, model.get("continuing_subword_prefix") or ""


def _bytes(token: str, kinds: tuple[str, str]) -> bytes:
    """What a token stands for, led by a blank where a word begins."""
    kind, prefix = kinds
    if kind in ("WordPiece", "WordLevel"):
        rest = token.removeprefix(prefix) if prefix else token
        return (rest if rest != token else f" {token}").encode()
    letters = _letters()
    if kind == "bytes" and letters.keys() >= set(token):
        return bytes(letters[letter] for letter in token)
    if found := BYTE_PIECE.fullmatch(token):
        return bytes.fromhex(found[1])
    return token.replace("\u2581", " ").encode()


@cache
def _letters() -> dict[str, int]:
    """The byte of each letter that stands for one, in byte-level models."""
    from fairseq.data.encoders.gpt2_bpe_utils import bytes_to_unicode

    return {letter: byte for byte, letter in bytes_to_unicode().items()}


def load(path: Path) -> Subwords:
    """The model of a folder (GPT-2's files) or a file (``tokenizer.json``, sentencepiece);
    ValueError or UserError: neither."""
    if path.suffix == ".json":
        return TokenizerSubwords(path)
    return GPT2Subwords(path) if path.is_dir() else SentencePieceSubwords(path)


def load_prepared(folder: Path) -> Subwords:
    """The model of a folder that ``clusterformer prepare qa`` made, in the form of its texts."""
    models = (folder / name for name in (MODEL, TOKENIZER))
    found = load(next((model for model in models if model.exists()), folder))
    found.form = form_of(folder, READ_FORM)
    return found


def texts_of(folder: Path, dictionary: "Dictionary") -> list[str]:
    """What each symbol of a prepared folder's dictionary stands for, see `Subwords`; empty of
    fairseq's own. In a folder without a model of subwords, each symbol is a word."""
    has_model = any((folder / name).exists() for name in (MODEL, TOKENIZER, GPT2_FILES[0]))
    own = dictionary.symbols[dictionary.nspecial :]
    if has_model:
        pieces = load_prepared(folder)
        known = dict(zip(pieces.symbols, pieces.texts, strict=True))
        return [""] * dictionary.nspecial + [known.get(symbol, "") for symbol in own]
    return [""] * dictionary.nspecial + [f" {symbol}" for symbol in own]
