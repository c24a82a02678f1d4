"""Which subwords a corpus is prepared with: an existing model, or one that is trained."""

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_clusterformer.data.unicode import FORM
from fairseq_clusterformer.errors import UserError, bad_option
from fairseq_clusterformer.outputs import digest

if TYPE_CHECKING:
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


def _digests(path: Path) -> dict[str, str]:
    """Return the sha256 of a file, or of GPT-2's files in a folder."""
    from fairseq_clusterformer.data.subwords import GPT2_FILES

    files = [path / name for name in GPT2_FILES] if path.is_dir() else [path]
    return {file.name: digest(file) for file in files if file.is_file()}


def load_model(path: Path) -> "Subwords":
    """A model of subwords, see `subwords.load`; raises UserError for a file that is none."""
    from fairseq_clusterformer.data import subwords

    try:
        return subwords.load(path)
    except ValueError as error:
        raise UserError(str(error)) from None


def copy_model(vocabulary: Vocabulary, out: Path) -> None:
    """Copy the model and write ``dict.txt``, its own or all its symbols."""
    from fairseq.data import Dictionary

    from fairseq_clusterformer.data import subwords

    from .binarize import symbol_dictionary

    given = vocabulary.model
    model = load_model(given or out / subwords.MODEL)
    symbols = model.symbols
    try:
        if vocabulary.dictionary:
            dictionary = Dictionary.load(str(vocabulary.dictionary))
        else:
            dictionary = symbol_dictionary(symbols)
    except ValueError as error:
        raise UserError(str(error)) from None
    # a special token is in no text, and a dictionary may have it by another name
    contents = getattr(model, "bytes", symbols)
    needed = (symbol for symbol, content in zip(symbols, contents, strict=True) if content)
    if missing := [symbol for symbol in needed if symbol not in dictionary]:
        problem = f"lacks {len(missing):,} of its {len(symbols):,} symbols, {missing[0]!r} first"
        allowed = "the dictionary that belongs to the model of subwords"
        raise bad_option("--dict", vocabulary.dictionary, allowed, problem)
    dictionary.save(str(out / "dict.txt"))
    if given and given.is_dir():
        for name in subwords.GPT2_FILES:
            shutil.copy(given / name, out)
    elif given:
        is_tokenizer = given.suffix == ".json"
        shutil.copy(given, out / (subwords.TOKENIZER if is_tokenizer else subwords.MODEL))
