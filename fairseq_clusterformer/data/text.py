"""Text to subwords and back, exactly as a folder of translation data was prepared.

text = TextPipeline.from_folder("data-bin/multi30k")
text.encode("Zwei Männer.", "de")    # 'zwei männer .': what the model reads
text.decode("two m@@ en .", "en")    # 'two men.': what a person reads
"""

from dataclasses import dataclass, fields
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_clusterformer.errors import UserError, bad_option, read_json

from . import RECORD, TOKENIZER
from .characters import FORM, composed

if TYPE_CHECKING:
    from .subwords import Subwords

TOKENIZERS = ("moses", "none")
VOCABULARIES = ("subword_nmt", "sentencepiece", "gpt2")  # how subwords are made
TARGETS_OWN = "tokenizer.target.json"  # where the target's pieces are others, as Marian's


@dataclass(frozen=True)
class TextPipeline:
    """What is done to a line of text before a model reads it, and how it is undone."""

    languages: tuple[str, str] = ("de", "en")  # their codes
    tokenizer: str = "moses"  # or "none", which only makes every run of white space one blank
    normalize_punctuation: bool = False  # with Moses' rules, before tokenising
    dash_splits: bool = False  # tokenise "a-b" as "a @-@ b"
    escape: bool = False  # write special characters as Moses does: ``&apos;`` for ``'``
    lowercase: bool = False  # after tokenising
    #: or "sentencepiece", or "gpt2" as BART has it: each text begins by ``<s>``
    bpe: str = "subword_nmt"
    #: ``tokenizer.json``; None until it is learned. The second language has one of its own if
    #: there is :data:`TARGETS_OWN` in the same folder.
    model: Path | None = None
    unicode: str = FORM  # of every line, see :mod:`~fairseq_clusterformer.data.characters`

    def __post_init__(self) -> None:
        for name, allowed in (("tokenizer", TOKENIZERS), ("bpe", VOCABULARIES)):
            if (value := getattr(self, name)) not in allowed:
                raise bad_option(name, value, " or ".join(allowed))

    @classmethod
    def from_folder(cls, folder: Path | str) -> "TextPipeline":
        """The pipeline of a folder of translation data; raises UserError for another one."""
        folder = Path(folder)
        try:
            recipe = {"unicode": FORM} | read_json(folder / RECORD)["recipe"]
            values = {f.name: recipe[f.name] for f in fields(cls) if f.name != "model"}
            values["languages"] = languages = tuple(values["languages"])
            kinds = {name: type(getattr(cls, name)) for name in values}
            wrong = [name for name, value in values.items() if type(value) is not kinds[name]]
            if wrong or [*map(type, languages)] != [str] * 2:
                raise ValueError(f"{wrong or ['languages']} of other types")
            # "bpe_model" names the file of a folder that an older version made
            return cls(model=folder / Path(recipe.get("bpe_model", TOKENIZER)).name, **values)
        except (OSError, ValueError, LookupError, TypeError, UserError) as error:
            allowed = "a folder that `clusterformer prepare translation` made"
            problem = f"no text pipeline in its {RECORD} ({type(error).__name__}: {error})"
            raise bad_option("the data folder", folder, allowed, problem) from None

    def recipe(self) -> dict:
        """Return the pipeline as ``prepared.json`` stores it; `from_folder` reads it."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "model"}

    def tokens(self, line: str, lang: str) -> str:
        """Return the line's tokens joined by blanks, before they are split into subwords."""
        self._check(lang)
        line = composed(line, self.unicode)
        if self.normalize_punctuation:
            line = _moses("MosesPunctNormalizer", lang).normalize(line).strip()
        if self.tokenizer == "moses":
            line = _moses("MosesTokenizer", lang).tokenize(
                line, aggressive_dash_splits=self.dash_splits, escape=self.escape, return_str=True
            )
        line = " ".join(composed(line, self.unicode).split())
        return line.lower() if self.lowercase else line

    def subwords(self, tokens: str, lang: str | None = None) -> str:
        """Return the subwords of `tokens` in language `lang`, joined by blanks."""
        code, end, rest = tokens.partition("<<")
        begin = ["<s>"] if self.bpe == "gpt2" else []
        # by which a text asks a Marian of several languages for one of them, such as >>fra<<
        if self._models[0] is not self._models[1] and code.startswith(">>") and end:
            begin, tokens = [code + end], rest
        model = self._models[lang == self.languages[1]]
        return " ".join([*begin, *model.split(tokens)])

    def words(self, subwords: str, lang: str | None = None) -> str:
        """Return the tokens in language `lang` that `subwords` were made from."""
        from .subwords import join_codes

        if self.bpe == "subword_nmt":
            return join_codes(subwords.split())
        return self._models[lang == self.languages[1]].join(subwords.split())

    def encode(self, line: str, lang: str) -> str:
        """Return the subwords of a raw line in language `lang`, joined by blanks."""
        return self.subwords(self.tokens(line, lang), lang)

    def decode(self, subwords: str, lang: str) -> str:
        """Return readable text in language `lang`. Lower case stays lower case."""
        self._check(lang)
        words = self.words(subwords, lang)
        if self.tokenizer == "none":
            return words
        return _moses("MosesDetokenizer", lang).detokenize(words.split(), unescape=self.escape)

    def _check(self, lang: str) -> None:
        if lang not in self.languages:
            raise bad_option("the language", lang, " or ".join(self.languages))

    @cached_property  # a process may need none
    def _models(self) -> "list[Subwords]":
        """Of the first language and of the second."""
        from .formats import codes
        from .subwords import CODES, Subwords, load

        if self.model is None or not self.model.is_file():
            allowed = f"the {TOKENIZER} of a prepared folder"
            raise bad_option("the subword model", self.model, allowed, "no such file")
        own = self.model.with_name(TARGETS_OWN)
        is_older = self.model.name == CODES
        first = Subwords(codes(self.model)) if is_older else load(self.model)
        return [first, load(own) if own.is_file() else first]


@cache
def _moses(tool: str, lang: str):
    """One of sacremoses' classes for a language, made when first used."""
    import sacremoses

    return getattr(sacremoses, tool)(lang=lang)
