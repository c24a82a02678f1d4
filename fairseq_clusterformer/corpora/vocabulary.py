"""Which subwords a corpus is prepared with: an existing model, or one that is trained."""

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_clusterformer.data import TOKENIZER
from fairseq_clusterformer.data.unicode import FORM
from fairseq_clusterformer.errors import UserError, bad_option
from fairseq_clusterformer.outputs import digest

if TYPE_CHECKING:
    from fairseq.data import Dictionary

    from fairseq_clusterformer.data.subwords import Subwords


@dataclass(frozen=True)
class Vocabulary:
    """Which subwords: an existing model, or the size of one to train on the training split."""

    #: a folder with GPT-2's files, a sentencepiece model or a ``tokenizer.json``
    model: Path | None = None
    train: int | None = None  # the number of pieces of a sentencepiece model
    at_most: bool = False  # train fewer pieces, if the text gives no more
    dictionary: Path | None = None  # of fairseq's format; None: all symbols of the model
    whole_words: bool = False  # each word is a piece: for languages of few words

    def recipe(self) -> dict:
        """What ``prepared.json`` says of it."""
        return {
            "subwords": self.train or _digests(self.model),
            **({"at most": True} if self.at_most else {}),
            **({"whole words": True} if self.whole_words else {}),
            "dictionary": self.dictionary and _digests(self.dictionary),
        }

    def train_model(
        self, text: Path, out: Path, *, words: Iterable[str] = (), form: str = FORM
    ) -> None:
        """Train the model on a file of text; see `binarize.train_sentencepiece`."""
        from fairseq_clusterformer.data.subwords import MODEL

        from .binarize import train_sentencepiece

        how = {"words": words, "at_most": self.at_most, "form": form}
        train_sentencepiece([text], self.train, out / MODEL, **how)


def _digests(model: Path) -> dict[str, str]:
    from fairseq_clusterformer.data.formats import GPT2_FILES

    files = [model / name for name in GPT2_FILES] if model.is_dir() else [model]
    return {file.name: digest(file) for file in files if file.is_file()}


def load_model(path: Path) -> "Subwords":
    """A model of subwords, see `subwords.load`; raises UserError for a file that is none."""
    from fairseq_clusterformer.data import subwords

    try:
        return subwords.load(path)
    except ValueError as error:
        raise UserError(str(error)) from None


def copy_model(vocabulary: Vocabulary, out: Path, *, kind: str = "text", form: str = FORM) -> None:
    """Write ``dict.txt``, given or of all symbols, and ``tokenizer.json``, or copy GPT-2's files.

    Args:
        kind: what the model that learns from the data reads, see `write_tokenizer`.
        form: of Unicode.
    """
    from fairseq.data import Dictionary

    from fairseq_clusterformer.data.subwords import MODEL

    from .binarize import symbol_dictionary

    given = vocabulary.model or out / MODEL
    model = load_model(given)
    dictionary = symbol_dictionary(model.symbols)
    if vocabulary.dictionary:
        try:
            dictionary = Dictionary.load(str(vocabulary.dictionary))
        except ValueError as error:
            raise UserError(str(error)) from None
    # a special token is in no text, and a dictionary may have it by another name
    needed = [symbol for symbol, text in zip(model.symbols, model.bytes, strict=True) if text]
    allowed = "the dictionary that belongs to the model of subwords"
    if missing := [symbol for symbol in needed if symbol not in dictionary]:
        problem = f"lacks {len(missing):,} of the model's symbols, {missing[0]!r} first"
        raise bad_option("--dict", vocabulary.dictionary, allowed, problem)
    dictionary.save(str(out / "dict.txt"))
    if given.is_dir():
        for name in _digests(given):
            shutil.copy(given / name, out / name)
    elif given.suffix == ".json":
        shutil.copy(given, out / TOKENIZER)
    else:
        if given != out / MODEL:
            shutil.copy(given, out / MODEL)
        try:
            write_tokenizer(out, dictionary, kind, form)
        except ValueError as error:
            raise bad_option("--dict", vocabulary.dictionary, allowed, str(error)) from None
        (out / MODEL).unlink()


def write_tokenizer(
    out: Path, dictionary: "Dictionary", kind: str = "text", form: str = FORM
) -> None:
    """Write ``tokenizer.json`` of bytes, of words, or of a sentencepiece model.

    Args:
        kind: as of :func:`fairseq_clusterformer.data.tokenizer_json.make`.
        form: of Unicode.
    """
    from fairseq_clusterformer.data.tokenizer_json import make

    made = make(out, dictionary, kind, unicode=form)
    (out / TOKENIZER).write_text(made.to_str(pretty=True), encoding="utf-8")
