"""Any ``tokenizer.json`` of the library ``tokenizers`` as a model of subwords."""

import json
from pathlib import Path

import numpy as np

from .subwords import Subwords, Tokens

#: what stands for fairseq's special symbols: the first that a tokenizer has
ROLES = {
    "<s>": ("<s>", "[CLS]"),
    "<pad>": ("<pad>", "[PAD]"),
    "</s>": ("</s>", "[SEP]"),
    "<unk>": ("<unk>", "[UNK]"),
    "<mask>": ("<mask>", "[MASK]"),
}


class TokenizerSubwords(Subwords):
    """A tokenizer's word pieces, byte pairs or unigrams.

    Its symbols are its tokens; those that stand for fairseq's special symbols have fairseq's
    names. What a text writes like a special token is text.

    Args:
        file: its ``tokenizer.json``.

    Raises:
        ValueError: a file that is no tokenizer, or has a token that a dictionary cannot hold.
    """

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
        if odd := next((s for s in self.symbols if not s or s.split() != [s]), None):
            raise ValueError(f"{file}: has the token {odd!r}; allowed: none with white space")
        special = {token.content for token in self._tokenizer.get_added_tokens_decoder().values()}
        numbers = sorted(vocabulary.items(), key=lambda item: item[1])
        self.texts = [""] * len(self.symbols)
        for token, number in numbers:
            if token not in special:
                self.texts[number] = _text(token, kinds)

    def _encode(self, text: str) -> Tokens:
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        spans = np.array(encoding.offsets, np.int32).reshape(-1, 2)
        ids = np.array(encoding.ids, np.int32)
        if self._unknown is not None:  # unigrams have pieces that are written like them
            ids[np.isin(ids, self._special)] = self._unknown
        return Tokens(ids, spans[:, 0], spans[:, 1])


def _kinds(content: dict) -> tuple[str, str]:
    """The kind of a tokenizer's model, and what marks the continuation of a word."""
    return content["model"]["type"], content["model"].get("continuing_subword_prefix") or ""


def _text(token: str, kinds: tuple[str, str]) -> str:
    """What a token stands for, led by a blank where a word begins."""
    kind, prefix = kinds
    if kind in ("WordPiece", "WordLevel"):
        rest = token.removeprefix(prefix) if prefix else token
        return rest if rest != token else f" {token}"
    letters = _letters()
    if kind == "BPE" and letters.keys() >= set(token):
        return bytes(letters[letter] for letter in token).decode(errors="ignore")
    return token.replace("\u2581", " ")


def _letters() -> dict[str, int]:
    """The byte of each letter that stands for one, in byte-level models."""
    from fairseq.data.encoders.gpt2_bpe_utils import bytes_to_unicode

    return {letter: byte for byte, letter in bytes_to_unicode().items()}
