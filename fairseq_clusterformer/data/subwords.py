"""Text as subwords, each with the characters that it stands for; answers are spans of both.

A folder says its subwords in ``tokenizer.json``, as the library `tokenizers` writes it, or by
GPT-2's ``encoder.json`` and ``vocab.bpe``; an older one, by a sentencepiece model. Offsets are
characters of the Python string that was given, whatever a model makes of it inside.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from tokenizers import Tokenizer

from . import TOKENIZER, formats
from .characters import READ_FORM, byte_symbols, form_of, letters_of_bytes, with_places

if TYPE_CHECKING:
    from fairseq.data import Dictionary

#: what is made a ``tokenizer.json``; a folder of an older version has one of these instead
MODEL, CODES = "sentencepiece.model", "bpe.codes"
_BYTE_PIECE = re.compile("<0x([0-9A-F]{2})>")  # as sentencepiece writes a byte

#: what stands for fairseq's special symbols in a tokenizer that does not have them
ROLES = {"<s>": "[CLS]", "<pad>": "[PAD]", "</s>": "[SEP]", "<unk>": "[UNK]", "<mask>": "[MASK]"}


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


class Subwords:
    """A tokenizer of the library `tokenizers`, which reads texts in one form of Unicode.

    Its symbols are its tokens; those that stand for fairseq's special symbols have fairseq's
    names, and those with white space the codes of their letters. What a text writes like a
    special token is text.

    Args:
        tokenizer: as the library has it, or its file; ValueError for a file that is none.
        numbers: whether ids are symbols, as in RoBERTa's ``dict.txt``.

    Attributes:
        symbols: each id's symbol in a fairseq dictionary.
        bytes: what each id stands for, led by a blank where a word begins; empty of special ones.
        form: of Unicode; see :mod:`~fairseq_clusterformer.data.characters`.
        first: the special token that it puts in front of a text; None: it puts none.
        is_of_words: whether each token is a word as a text has it.
    """

    form = "none"

    def __init__(self, tokenizer: Tokenizer | Path, *, numbers: bool = False) -> None:
        try:
            is_file = isinstance(tokenizer, Path)
            text = tokenizer.read_text(encoding="utf-8") if is_file else tokenizer.to_str()
            self.content = json.loads(text)
            for token in self.content["added_tokens"]:
                token["special"] |= token["content"] in ROLES  # a line's end, too
            self.tokenizer = Tokenizer.from_str(json.dumps(self.content))
            self._model = model = self.content["model"]
            steps = [self.content.get(name) for name in ("pre_tokenizer", "decoder")]
            self.vocabulary = self.tokenizer.get_vocab(with_added_tokens=True)
            size = max(self.vocabulary.values()) + 1
            if size > 2 * len(self.vocabulary) + 100_000:
                raise ValueError(f"one of {len(self.vocabulary):,} tokens has number {size - 1:,}")
        except Exception as error:  # the library raises nothing narrower
            raise ValueError(f"{tokenizer}: is no tokenizer.json: {error}") from None
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()
        self.tokenizer.encode_special_tokens = True
        added = self.tokenizer.get_added_tokens_decoder()
        roles = {ours if ours in self.vocabulary else other: ours for ours, other in ROLES.items()}
        letters = letters_of_bytes() if '"ByteLevel"' in json.dumps(steps) else {}
        self.symbols, self.bytes = [f"<missing-{i}>" for i in range(size)], [b""] * size
        for token, number in self.vocabulary.items():
            if number not in added:
                symbol, content = _spelled(token, model, letters)
            else:  # a text's own, such as <think>, unless it is special
                symbol, content = token, b"" if added[number].special else token.encode()
            symbol = roles.get(token, symbol)
            if symbol.split() != [symbol]:  # white space is in no dictionary
                symbol = "".join(f"<U+{ord(letter):04X}>" for letter in symbol)
            self.symbols[number] = symbol
            self.bytes[number] = b"" if symbol in ROLES else content
        known = {symbol: i for i, symbol in enumerate(self.symbols) if symbol in ROLES}
        self._unknown = known.pop("<unk>", None)
        # unigrams have pieces that are written like them
        hidden = () if self._unknown is None else known.values()
        self._special = dict.fromkeys(hidden, self._unknown)
        if numbers:
            self.symbols = [str(number) for number in range(size)]
        self._bytes_of = dict(zip(self.symbols, self.bytes, strict=True))
        self._bytes_of.pop("<unk>", None)
        self.first = next(iter(self.tokenizer.encode("").ids), None)
        self.is_of_words = model["type"] == "WordLevel"

    @cached_property
    def texts(self) -> list[str]:
        """What each id stands for, without a letter that it has only a part of."""
        return [piece.decode(errors="ignore") for piece in self.bytes]

    @property
    def keeps_lines(self) -> bool:
        """Whether line ends are pieces like any others; else they are lost as blanks are."""
        found = b"".join(self.bytes[i] for i in self.encode("a\n\na").ids)
        return found.lstrip(b" ") == b"a\n\na"

    def encode(self, text: str) -> Tokens:
        """Return the tokens of a text; raises ValueError for what is not Unicode."""
        text.encode()  # the models do not say what is wrong
        formed, *places = with_places(text, self.form) or [text]
        encoding = self.tokenizer.encode(formed, add_special_tokens=False)
        spans = np.array(encoding.offsets, np.int32).reshape(-1, 2)
        # the bytes of several characters in a row have the span of one each
        done, pieces = 0, encoding.tokens  # which is a new list each time
        several = np.flatnonzero(spans[:, 1] - spans[:, 0] > 1).tolist()
        for first in several if self._model.get("byte_fallback") else ():
            if first < done or not _BYTE_PIECE.fullmatch(pieces[first]):
                continue
            done, (start, end) = first, spans[first].tolist()
            for place in range(start, end):
                size = len(formed[place].encode())
                spans[done : done + size] = place, place + 1
                done += size
        starts, ends = spans.T
        if places:  # those of the original
            first, last = (np.append(place, len(text)).astype(np.int32) for place in places)
            starts, ends = first[starts], np.where(ends > starts, last[ends - 1], first[starts])
        ids = [self._special.get(i, i) for i in encoding.ids]
        return Tokens(np.array(ids, np.int32), starts, ends)

    def ids(self, texts: list[str]) -> Iterable[Sequence[int]]:
        """The tokens of each text, which is in the form."""
        for found in self.tokenizer.encode_batch_fast(texts, add_special_tokens=False):
            yield [self._special.get(i, i) for i in found.ids] if self._special else found.ids

    def split(self, text: str) -> list[str]:
        """The symbols of a text; those of unknown characters are these characters."""
        tokens, suffix = self.encode(text), self._model.get("end_of_word_suffix")
        found = []
        for number, start, end in zip(tokens.ids, tokens.starts, tokens.ends, strict=True):
            symbol = self.symbols[number]
            if number == self._unknown:
                inside = suffix and text[end : end + 1].strip()
                symbol = text[start:end].strip() + ("@@" if inside else "")
            found += [*symbol] if symbol in ROLES else [symbol]  # a text has none of them
        return found

    def join(self, symbols: Iterable[str]) -> str:
        """The text of some symbols; what is no character becomes U+FFFD."""
        if self._model.get("end_of_word_suffix"):
            return join_codes(symbols)
        known, unknown = self._bytes_of, self._unknown is not None  # GPT-2 knows all
        found = (known.get(each, each.encode() if unknown else b"") for each in symbols)
        return b"".join(found).decode(errors="replace").strip(" ")


class Words(Subwords):
    """Words between blanks; what a dictionary lacks is ``<unk>``, and so is what a text writes
    like a special symbol."""

    first, is_of_words, keeps_lines = None, True, False

    def __init__(self, dictionary: "Dictionary") -> None:
        self.symbols, self._unknown = dictionary.symbols, dictionary.unk()
        self.bytes = [f" {symbol}".encode() for symbol in self.symbols]
        self._number = dict(list(dictionary.indices.items())[dictionary.nspecial :])

    def ids(self, texts: list[str]) -> Iterable[list[int]]:
        number, unknown = self._number, self._unknown
        return ([number.get(word, unknown) for word in text.split()] for text in texts)


def join_codes(symbols: Iterable[str]) -> str:
    """The words of subword-nmt's symbols, which no model is needed for."""
    return (" ".join(symbols) + " ").replace("@@ ", "").strip()


def _spelled(token: str, model: dict, letters: dict[str, int]) -> tuple[str, bytes]:
    """The symbol of a token, and what it stands for, led by a blank where a word begins."""
    if model.get("end_of_word_suffix") == formats.END:  # codes of subword-nmt
        whole = token.removesuffix(formats.END)
        return (whole, f"{whole} ".encode()) if whole != token else (f"{token}@@", token.encode())
    if model["type"] in ("WordPiece", "WordLevel"):
        rest = token.removeprefix(model.get("continuing_subword_prefix") or "")
        return token.removeprefix(" "), (f" {token.strip()}" if rest == token else rest).encode()
    if letters and letters.keys() >= set(token):
        content = bytes(letters[letter] for letter in token)
        return token if model["merges"] else byte_symbols()[content[0]], content
    if found := _BYTE_PIECE.fullmatch(token):
        return token, bytes.fromhex(found[1])
    return token, token.replace("\u2581", " ").encode()


def load(path: Path) -> Subwords:
    """The model of a folder of GPT-2's files or of a file; ValueError or UserError: it is none."""
    if path.is_dir():
        return Subwords(formats.gpt2(path), numbers=True)
    return Subwords(path if path.suffix == ".json" else formats.pieces(path))


def has_subwords(folder: Path) -> bool:
    """Whether a prepared folder says how texts become tokens; else each symbol is a word."""
    return any((folder / name).is_file() for name in (TOKENIZER, MODEL, formats.GPT2_FILES[0]))


def load_prepared(folder: Path, name: str = TOKENIZER) -> Subwords:
    """The model of a folder that ``clusterformer prepare qa`` made, in the form of its texts."""
    models = (folder / name for name in (name, MODEL))
    found = load(next((model for model in models if model.exists()), folder))
    found.form = form_of(folder, READ_FORM)
    return found


def texts_of(folder: Path, dictionary: "Dictionary") -> list[str]:
    """What each symbol of a prepared folder's dictionary stands for, see `Subwords`; empty of
    fairseq's own. In a folder without a model of subwords, each symbol is a word."""
    pieces = load_prepared(folder) if has_subwords(folder) else Words(dictionary)
    known, own = dict(zip(pieces.symbols, pieces.texts, strict=True)), dictionary.nspecial
    return [""] * own + [known.get(symbol, "") for symbol in dictionary.symbols[own:]]
