"""Which subwords a corpus is prepared with: an existing model, or one that is trained."""

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fairseq_clusterformer.data import TOKENIZER
from fairseq_clusterformer.data.characters import FORM, READ_FORM
from fairseq_clusterformer.errors import bad_option, reading
from fairseq_clusterformer.outputs import digest


@dataclass(frozen=True)
class Vocabulary:
    #: a folder with GPT-2's files, a sentencepiece model or a ``tokenizer.json``
    model: Path | None = None
    train: int | None = None  # the pieces of a sentencepiece model to train on train
    at_most: bool = False  # train fewer pieces, if the text gives no more
    dictionary: Path | None = None  # of fairseq's format; None: all symbols of the model
    whole_words: bool = False  # each word is a piece: for languages of few words

    def recipe(self) -> dict:
        """What ``prepared.json`` says of it."""
        from fairseq_clusterformer.data.formats import GPT2_FILES

        files = [self.model] if self.model else []
        if self.model and self.model.is_dir():
            files = [self.model / name for name in GPT2_FILES if (self.model / name).is_file()]
        return {
            "subwords": self.train or {file.name: digest(file) for file in files},
            **({"at most": True} if self.at_most else {}),
            **({"whole words": True} if self.whole_words else {}),
            "dictionary": self.dictionary and {self.dictionary.name: digest(self.dictionary)},
        }

    def write(
        self, out: Path, text: Path, *, words: Iterable[str] = (), kind: str = "text"
    ) -> None:
        """Copy the model or train it on `text`, where each of `words` becomes a piece; write its
        ``tokenizer.json`` and ``dict.txt``. `kind` is as of `tokenizer_json.make`."""
        from fairseq.data import Dictionary

        from fairseq_clusterformer.data.formats import GPT2_FILES
        from fairseq_clusterformer.data.subwords import MODEL, load
        from fairseq_clusterformer.data.tokenizer_json import make

        from .binarize import symbol_dictionary, train_sentencepiece

        given, form = self.model or out / MODEL, READ_FORM if kind == "reader" else FORM
        if self.train:
            how = {"words": words, "at_most": self.at_most, "form": form}
            train_sentencepiece([text], self.train, given, **how)
        with reading(given, "a model of subwords"):
            model = load(given)
        dictionary = symbol_dictionary(model.symbols)
        if self.dictionary:
            with reading(self.dictionary, "a dictionary of fairseq's"):
                dictionary = Dictionary.load(str(self.dictionary))
        # a special token is in no text, and a dictionary may have it by another name
        needed = [symbol for symbol, text in zip(model.symbols, model.bytes, strict=True) if text]
        allowed = "the dictionary that belongs to the model of subwords"
        if missing := [symbol for symbol in needed if symbol not in dictionary]:
            problem = f"lacks {len(missing):,} of the model's symbols, {missing[0]!r} first"
            raise bad_option("--dict", self.dictionary, allowed, problem)
        dictionary.save(str(out / "dict.txt"))
        if given.is_dir():
            for name in GPT2_FILES:
                shutil.copy(given / name, out / name)
        elif given.suffix == ".json":
            shutil.copy(given, out / TOKENIZER)
        else:
            if given != out / MODEL:
                shutil.copy(given, out / MODEL)
            try:
                made = make(out, dictionary, kind, unicode=form)
            except ValueError as error:
                raise bad_option("--dict", self.dictionary, allowed, str(error)) from None
            (out / TOKENIZER).write_text(made.to_str(pretty=True), encoding="utf-8")
            (out / MODEL).unlink()
