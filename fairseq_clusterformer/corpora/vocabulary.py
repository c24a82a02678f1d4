"""Which subwords a corpus is prepared with: an existing model, or one that is trained."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from fairseq_clusterformer.corpora.download import digest
from fairseq_clusterformer.errors import UserError, bad_option


@dataclass(frozen=True)
class Vocabulary:
    """Which subwords: an existing model, or the size of one to train on the training split.

    Args:
        model: a folder with GPT-2's files, a sentencepiece model or a ``tokenizer.json``.
        train: the number of pieces of a sentencepiece model.
        at_most: train fewer pieces, if the text gives no more.
        dictionary: in fairseq's format, as RoBERTa's ``dict.txt``; None: all symbols of the model.
        whole_words: each word that is trained on becomes a piece: for languages of few words.
    """

    model: Path | None = None
    train: int | None = None
    at_most: bool = False
    dictionary: Path | None = None
    whole_words: bool = False

    def recipe(self) -> dict:
        """What ``prepared.json`` says of it."""
        return {
            "subwords": self.train or _digests(self.model),
            **({"at most": True} if self.at_most else {}),
            **({"whole words": True} if self.whole_words else {}),
            "dictionary": self.dictionary and _digests(self.dictionary),
        }


def _digests(path: Path) -> dict[str, str]:
    """Return the sha256 of a file, or of GPT-2's files in a folder."""
    from fairseq_clusterformer.data.subwords import GPT2_FILES

    files = [path / name for name in GPT2_FILES] if path.is_dir() else [path]
    return {file.name: digest(file) for file in files if file.is_file()}


def copy_model(vocabulary: Vocabulary, out: Path) -> None:
    """Copy the model and write ``dict.txt``, its own or all its symbols."""
    from fairseq.data import Dictionary

    from fairseq_clusterformer.data import subwords

    given = vocabulary.model
    try:
        symbols = subwords.load(given or out / subwords.MODEL).symbols
        if vocabulary.dictionary:
            dictionary = Dictionary.load(str(vocabulary.dictionary))
        else:
            dictionary = Dictionary()
            for symbol in symbols:
                dictionary.add_symbol(symbol)
    except ValueError as error:
        raise UserError(str(error)) from None
    if missing := [symbol for symbol in symbols if symbol not in dictionary]:
        raise bad_option(
            "--dict",
            vocabulary.dictionary,
            "the dictionary that belongs to the model of subwords",
            f"lacks {len(missing):,} of its {len(symbols):,} symbols, {missing[0]!r} first",
        )
    dictionary.save(str(out / "dict.txt"))
    if given and given.is_dir():
        for name in subwords.GPT2_FILES:
            shutil.copy(given / name, out)
    elif given:
        json = given.suffix == ".json"
        shutil.copy(given, out / (subwords.TOKENIZER if json else subwords.MODEL))
