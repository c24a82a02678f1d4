"""Our codings of text as a tokenizer of ``transformers``: bytes, pieces, words, translation.

It holds no second implementation: a folder that ``clusterformer export`` made has the files of the
data folder (dictionary, subword model, recipe), and the code that prepared the data reads them.
So each text gets the tokens that the training had. ``tokenizer.json`` says the same, as far as it
can, to who does not have this package.
"""

import json
import shutil
from functools import cached_property
from itertools import groupby
from pathlib import Path

from fairseq.data import Dictionary
from transformers import AddedToken, PreTrainedTokenizer

from fairseq_clusterformer.corpora.classification.tokenise import split_words
from fairseq_clusterformer.data import RECORD, subwords
from fairseq_clusterformer.data.coding import TextCoding
from fairseq_clusterformer.data.subwords import GPT2_FILES
from fairseq_clusterformer.data.text import TARGETS_OWN, TextPipeline
from fairseq_clusterformer.errors import reading

from .fast import LINE_ENDS, fast

#: what texts become, and what stands around them
FORMS = ("text", "masked", "sentence", "translation", "reader")
SPECIAL = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}


class ClusterformerTokenizer(PreTrainedTokenizer):
    """Text to fairseq's numbers of symbols, and back.

    Args:
        dictionary: fairseq's ``dict.txt``; of a translation model, the target's.
        source_dictionary: of a translation model.
        recipe: ``prepared.json``, what was done to the text.
        pieces: of sentencepiece; with ``target_pieces``, those of the source alone.
        codes: of subword-nmt.
        encoder, merges: of GPT-2's byte pairs.
        texts: ``data.json``, how a classifier's texts become words.
        form: of :data:`FORMS`. A "text" begins with ``</s>`` (unless it is bytes), "masked" and
            "sentence" are framed by ``<s>`` and ``</s>``, "translation" ends in ``</s>``; of the
            pair of a "reader", the question is framed, and each line of the document, a
            paragraph, begins with ``<s>``. If the training had titles, the first line of several
            is the document's title, which stands behind each ``<s>``; it may be empty.
        languages: source and target of a translation model.
        kwargs: see `transformers.PreTrainedTokenizer`.

    Raises:
        UserError: files that are missing or something else.
    """

    vocab_files_names = {
        "dictionary": "dict.txt",
        "source_dictionary": "dict.source.txt",
        "recipe": RECORD,
        "pieces": "sentencepiece.model",
        "target_pieces": TARGETS_OWN,
        "codes": "bpe.codes",
        "texts": "data.json",
        "encoder": GPT2_FILES[0],
        "merges": GPT2_FILES[1],
    }
    model_input_names = ["input_ids", "attention_mask"]

    def __init__(
        self,
        dictionary: str,
        source_dictionary: str | None = None,
        recipe: str | None = None,
        pieces: str | None = None,
        target_pieces: str | None = None,
        codes: str | None = None,
        texts: str | None = None,
        encoder: str | None = None,
        merges: str | None = None,
        form: str = "text",
        languages: list[str] | None = None,
        **kwargs,
    ):
        if form not in FORMS:
            raise ValueError(f"form is {form}; allowed: {', '.join(FORMS)}")
        self.folder = Path(dictionary).parent
        self.form, self.languages = form, languages
        self.target_symbols = Dictionary.load(dictionary)
        self.source_symbols = self.target_symbols
        if source_dictionary is not None:
            self.source_symbols = Dictionary.load(source_dictionary)
        if form in ("masked", "sentence"):
            self.target_symbols.add_symbol("<mask>")  # as fairseq's tasks do
            kwargs.setdefault("mask_token", "<mask>")
        if form == "reader":
            kwargs["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
        self._of_target = False
        kwargs = {**SPECIAL, "padding_side": "left" if form == "text" else "right", **kwargs}
        super().__init__(form=form, languages=languages, **kwargs)
        if form in LINE_ENDS:  # for `fast`
            ending = AddedToken(LINE_ENDS[form], normalized=True, special=True)
            self._added_tokens_decoder[self.target_symbols.index(ending.content)] = ending

    @property
    def symbols(self) -> Dictionary:
        """The dictionary of what is read now: the source's, or within ``text_target`` the
        target's."""
        return self.target_symbols if self._of_target else self.source_symbols

    @cached_property
    def coding(self) -> TextCoding:
        """Of a text that is neither translated nor classified."""
        return TextCoding.from_folder(self.folder, self.target_symbols)

    @cached_property
    def pipeline(self) -> TextPipeline:
        """Of the two languages."""
        return TextPipeline.from_folder(self.folder)

    @cached_property
    def subwords(self) -> subwords.Subwords:
        """Of a reader."""
        return subwords.load_prepared(self.folder)

    @cached_property
    def titles(self) -> bool:
        """Whether a reader's paragraphs are led by the title of their document."""
        if not (self.folder / RECORD).is_file():
            return False
        with reading(self.folder / RECORD, "what a prepare command wrote"):
            record = json.loads((self.folder / RECORD).read_text(encoding="utf-8"))
            return bool(record["recipe"].get("titles"))

    @cached_property
    def words(self) -> dict:
        """How the texts of a classifier become words: the arguments of `split_words`."""
        with reading(self.folder / "data.json", "what a prepare command wrote"):
            record = json.loads((self.folder / "data.json").read_text(encoding="utf-8"))
            return {
                "tokenised": record["tokenised"],
                "max_length": record["settings"]["max_length"],
            }

    @property
    def vocab_size(self) -> int:
        """Symbols of the dictionary, the special ones included."""
        return len(self.symbols)

    def get_vocab(self) -> dict[str, int]:
        """Each symbol's number."""
        return {**self.symbols.indices, **self._added_tokens_encoder}

    def _switch_to_input_mode(self) -> None:
        self._of_target = False

    def _switch_to_target_mode(self) -> None:
        self._of_target = True

    def _tokenize(self, text: str, **kwargs) -> list[str]:
        if self.form == "translation":
            return self.pipeline.encode(text, self.languages[self._of_target]).split()
        if self.form == "sentence":
            return split_words(text, **self.words)[0]
        if self.form == "reader":
            title, lines = "", text.split("\n")
            if self.titles and len(lines) > 1:
                title, *lines = lines
            found = []
            for line in filter(None, lines):
                found += [self.bos_token] if found else []
                ids = [*self.subwords.encode(title).ids, *self.subwords.encode(line).ids]
                found += [self.subwords.symbols[i] for i in ids]
            return found
        return [self.coding.dictionary[i] for i in self.coding.encode(text).tolist()]

    def _convert_token_to_id(self, token: str) -> int:
        return self.symbols.index(token)

    def _convert_id_to_token(self, index: int) -> str:
        return self.symbols[index]

    def build_inputs_with_special_tokens(
        self, token_ids_0: list[int], token_ids_1: list[int] | None = None
    ) -> list[int]:
        """Tokens with what stands around them; of a pair, both with ``</s>`` behind each."""
        first, last = [self.bos_token_id], [self.eos_token_id]
        if self.form == "text":
            bare = self.coding.unit == "byte" and token_ids_0
            return [*([] if bare else last), *token_ids_0, *(token_ids_1 or [])]
        if self.form == "translation":
            return [*token_ids_0, *last]
        if self.form == "reader":
            return [*first, *token_ids_0, *last, *([*first, *token_ids_1] if token_ids_1 else [])]
        second = [] if token_ids_1 is None else [*token_ids_1, *last]
        return [*first, *token_ids_0, *last, *second]

    def create_token_type_ids_from_sequences(
        self, token_ids_0: list[int], token_ids_1: list[int] | None = None
    ) -> list[int]:
        """0 at the first text and what frames it, 1 at the second."""
        both = len(self.build_inputs_with_special_tokens(token_ids_0, token_ids_1))
        one = len(self.build_inputs_with_special_tokens(token_ids_0))
        return [0] * one + [1] * (both - one)

    def get_special_tokens_mask(
        self,
        token_ids_0: list[int],
        token_ids_1: list[int] | None = None,
        already_has_special_tokens: bool = False,
    ) -> list[int]:
        """1 at what stands around texts, 0 at their tokens."""
        given = token_ids_0
        if not already_has_special_tokens:
            given = self.build_inputs_with_special_tokens(token_ids_0, token_ids_1)
        return [int(token in self.all_special_ids) for token in given]

    def _decode(
        self, token_ids: int | list[int], skip_special_tokens: bool = False, **kwargs
    ) -> str:
        """Readable text. Tokens that do not begin a text, such as what was generated, keep the
        blank before the first word."""
        ids = [token_ids] if isinstance(token_ids, int) else list(token_ids)
        special, begin = set(self.all_special_ids), self._begin
        after = self.unk_token_id if self.form == "text" else None
        if skip_special_tokens:
            ids = [i for i in ids if i in begin or i not in special]
            if ids[: len(begin)] == begin:
                ids, after = ids[len(begin) :], None
            return self._readable(ids, after)
        own = self.form in ("text", "masked") and self.coding.unit != "word"
        found = []
        for is_special, run in groupby(ids, key=special.__contains__):
            run = list(run)
            texts = [self.target_symbols[i] for i in run]
            found += texts if is_special else [self._readable(run, after)]
            framed = run[-1] in (self.bos_token_id, self.eos_token_id)
            after = run[-1] if own and not framed else None
        return ("" if own else " ").join(found)

    @property
    def _begin(self) -> list[int]:
        """What a text begins by, which is also a line's end."""
        return [self.eos_token_id] if self.form == "text" and self.coding.unit != "byte" else []

    def _readable(self, ids: list[int], after: int | None) -> str:
        """The text of tokens; see `TextCoding.decode`."""
        if self.form in ("text", "masked"):
            return self.coding.decode(ids, after)
        symbols = [self.target_symbols[i] for i in ids]
        if self.form == "translation":
            return self.pipeline.decode(" ".join(symbols), self.languages[1])
        if self.form == "sentence":
            return " ".join(symbols)
        texts = dict(zip(self.subwords.symbols, self.subwords.texts, strict=True))
        return "".join(texts.get(symbol, "") for symbol in symbols).strip()

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        """Readable text of symbols, as of a whole text."""
        ids = list(self.convert_tokens_to_ids(tokens))
        begin = [] if ids[:1] == self._begin else self._begin
        return self._decode([*begin, *ids], skip_special_tokens=True)

    def save_vocabulary(
        self, save_directory: str, filename_prefix: str | None = None
    ) -> tuple[str, ...]:
        """Copy the files of the data folder, and write ``tokenizer.json`` where there can be one
        (see `fairseq_clusterformer.hf.fast`); return their names."""
        made = []
        path = Path(save_directory, "-".join(filter(None, (filename_prefix, "tokenizer.json"))))
        path.unlink(missing_ok=True)
        if (same := fast(self)) is not None:
            same.save(str(path))
            made.append(str(path))
        for name in self.vocab_files_names.values():
            source = self.folder / name
            target = Path(save_directory, "-".join(filter(None, (filename_prefix, name))))
            if source.is_file():
                if not (target.exists() and target.samefile(source)):
                    shutil.copyfile(source, target)
                made.append(str(target))
        return tuple(made)
