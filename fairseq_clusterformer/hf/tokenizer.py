"""Our codings of text as a tokenizer of ``transformers``: bytes, pieces, words, translation.

The code that prepared the data makes the tokens, from the data folder's files (dictionary, subword
model, recipe). So each text gets the tokens that the training had. ``tokenizer.json`` says the
same, as far as it can, to who does not have this package.
"""

import json
import shutil
from collections.abc import Iterator
from functools import cached_property
from itertools import groupby
from pathlib import Path

from fairseq.data import Dictionary
from transformers import AddedToken, PreTrainedTokenizer

from fairseq_clusterformer.corpora.classification.tokenise import split_words
from fairseq_clusterformer.data import RECORD, subwords
from fairseq_clusterformer.data.coding import SUBWORD_MODEL, TextCoding
from fairseq_clusterformer.data.subwords import GPT2_FILES
from fairseq_clusterformer.data.text import TARGETS_OWN, TextPipeline
from fairseq_clusterformer.data.unicode import FORM
from fairseq_clusterformer.errors import reading
from fairseq_clusterformer.use.perplexity import begin_of

from .fast import FORMS, fast

SPECIAL = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}


def has_titles(folder: Path) -> bool:
    """Whether the paragraphs of a reader's data are led by the title of their document."""
    if not (folder / RECORD).is_file():
        return False
    with reading(folder / RECORD, "what a prepare command wrote"):
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        return bool(record["recipe"].get("titles"))


class ClusterformerTokenizer(PreTrainedTokenizer):
    """Text to fairseq's numbers of symbols, and back.

    Args:
        dictionary: fairseq's ``dict.txt``; of a translation model, the target's.
        source_dictionary: of a translation model.
        form: what the model reads, of `fairseq_clusterformer.hf.fast.FORMS`. Of the pair of a
            "reader", each line of the document, a paragraph, begins with ``<s>``. If the training
            had titles, the first line of several is the document's title, which stands behind
            each ``<s>``; it may be empty.
        languages: source and target of a translation model.
        begins_by_bos: a "text" begins by ``<s>``, as in a training with ``--add-bos-token``.
        kwargs: see `transformers.PreTrainedTokenizer`; and the other files of
            ``vocab_files_names``, which are found in the dictionary's folder; UserError for what
            is missing or something else.
    """

    vocab_files_names = {
        "dictionary": "dict.txt",
        "source_dictionary": "dict.source.txt",
        "recipe": RECORD,  # what was done to the text
        "pieces": SUBWORD_MODEL,
        "target_pieces": TARGETS_OWN,
        "codes": "bpe.codes",  # of subword-nmt
        "texts": "data.json",  # how a classifier's texts become words
        "encoder": GPT2_FILES[0],
        "merges": GPT2_FILES[1],
    }
    model_input_names = ["input_ids", "attention_mask"]

    def __init__(
        self,
        dictionary: str,
        source_dictionary: str | None = None,
        form: str = "text",
        languages: list[str] | None = None,
        begins_by_bos: bool = False,
        **kwargs,
    ):
        if form not in FORMS:
            raise ValueError(f"form is {form}; allowed: {', '.join(FORMS)}")
        self.folder = Path(dictionary).parent
        self.form, self.languages, self.begins_by_bos = form, languages, begins_by_bos
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
        super().__init__(form=form, languages=languages, begins_by_bos=begins_by_bos, **kwargs)
        if line_end := FORMS[form].line_end:  # for `fast`
            ending = AddedToken(line_end, normalized=True, special=True)
            self._added_tokens_decoder[self.target_symbols.index(line_end)] = ending

    @property
    def symbols(self) -> Dictionary:
        """The dictionary of what is read now: the source's, or within ``text_target`` the
        target's."""
        return self.target_symbols if self._of_target else self.source_symbols

    # how texts become tokens, by form

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
        """See `has_titles`."""
        return has_titles(self.folder)

    @cached_property
    def words(self) -> dict:
        """Of a classifier: the arguments of `split_words`."""
        with reading(self.folder / "data.json", "what a prepare command wrote"):
            record = json.loads((self.folder / "data.json").read_text(encoding="utf-8"))
            most = record["settings"]["max_length"]
            return {"tokenised": record["tokenised"], "max_length": most}

    @property
    def unicode(self) -> str:
        """The form of Unicode in which a text becomes tokens."""
        if self.form == "sentence":
            return FORM
        if self.form == "translation":
            return self.pipeline.unicode
        return (self.subwords if self.form == "reader" else self.coding).form

    @property
    def vocab_size(self) -> int:
        """Symbols of the dictionary, the special ones included."""
        return len(self.symbols)

    def get_vocab(self) -> dict[str, int]:
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
            return self._tokenize_paragraphs(text.split("\n"))
        return [self.coding.dictionary[i] for i in self.coding.encode(text).tolist()]

    def _tokenize_paragraphs(self, lines: list[str]) -> list[str]:
        title, found = "", []
        if self.titles and len(lines) > 1:
            title, *lines = lines
        for line in filter(None, lines):
            found += [self.bos_token] if found else []
            ids = [*self.subwords.encode(title).ids, *self.subwords.encode(line).ids]
            found += [self.subwords.symbols[i] for i in ids]
        return found

    def _convert_token_to_id(self, token: str) -> int:
        return self.symbols.index(token)

    def _convert_id_to_token(self, index: int) -> str:
        return self.symbols[index]

    # what stands around texts

    def _begin(self, empty: bool = False) -> list[int]:
        """What a "text" begins by."""
        if self.form != "text":
            return []
        return begin_of({"add_bos_token": self.begins_by_bos}, self.coding, empty=empty).tolist()

    def frame(self, pair: bool = False, empty: bool = False) -> str:
        """What stands around a text ``$A`` (without a token if `empty`), or a pair, in the words
        of templates of `tokenizers`."""
        begin = [self.target_symbols[i] for i in self._begin(empty)]
        around = FORMS[self.form]
        return " ".join([*begin, around.text, *([around.second] if pair else [])])

    def _framed(self, first: list[int], second: list[int] | None) -> Iterator[tuple[int, int]]:
        """Yield tokens and their types."""
        around = {"<s>": [self.bos_token_id], "</s>": [self.eos_token_id]}
        tokens = {"$A": first, "$B": second} | around
        for part in self.frame(pair=second is not None, empty=not first).split():
            name, _, kind = part.partition(":")
            for token in tokens[name]:
                yield token, int(kind or 0)

    def build_inputs_with_special_tokens(
        self, token_ids_0: list[int], token_ids_1: list[int] | None = None
    ) -> list[int]:
        return [token for token, _ in self._framed(token_ids_0, token_ids_1)]

    def create_token_type_ids_from_sequences(
        self, token_ids_0: list[int], token_ids_1: list[int] | None = None
    ) -> list[int]:
        """0 at the first text and what frames it, 1 at the second."""
        return [kind for _, kind in self._framed(token_ids_0, token_ids_1)]

    def get_special_tokens_mask(
        self,
        token_ids_0: list[int],
        token_ids_1: list[int] | None = None,
        already_has_special_tokens: bool = False,
    ) -> list[int]:
        """1 at special symbols, 0 at other tokens."""
        given = token_ids_0
        if not already_has_special_tokens:
            given = self.build_inputs_with_special_tokens(token_ids_0, token_ids_1)
        return [int(token in self.all_special_ids) for token in given]

    # tokens to text

    def _decode(
        self, token_ids: int | list[int], skip_special_tokens: bool = False, **kwargs
    ) -> str:
        """Readable text; tokens that begin no text keep the blank before the first word."""
        ids = [token_ids] if isinstance(token_ids, int) else list(token_ids)
        special, begin = set(self.all_special_ids), self._begin()
        after = self.unk_token_id if self.form == "text" else None
        padding = next((i for i, token in enumerate(ids) if token != self.pad_token_id), len(ids))
        if ids[padding:][: len(begin)] == begin:
            padding, after = padding + len(begin), None if begin else after
        first, rest = ids[:padding], ids[padding:]
        special -= {self.eos_token_id} & set(begin)  # a line's end
        if skip_special_tokens:
            return self._readable([i for i in rest if i not in special], after)
        found = [self.target_symbols[i] for i in first]
        own = self.form in ("text", "masked") and self.coding.unit != "word"
        for is_special, run in groupby(rest, key=special.__contains__):
            run = list(run)
            texts = [self.target_symbols[i] for i in run]
            found += texts if is_special else [self._readable(run, after)]
            framed = run[-1] in (self.bos_token_id, self.eos_token_id)
            after = run[-1] if own and not framed else None
        return ("" if own else " ").join(found)

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
        ids, begin = list(self.convert_tokens_to_ids(tokens)), self._begin()
        begun = ids[: len(begin)] == begin
        return self._decode(ids if begun else [*begin, *ids], skip_special_tokens=True)

    def save_vocabulary(
        self, save_directory: str, filename_prefix: str | None = None
    ) -> tuple[str, ...]:
        """Copy the files of the data folder, and write ``tokenizer.json`` where there can be one
        (see `fairseq_clusterformer.hf.fast`); return their names."""
        prefix = f"{filename_prefix}-" if filename_prefix else ""
        made, path = [], Path(save_directory, f"{prefix}tokenizer.json")
        path.unlink(missing_ok=True)
        if (same := fast(self)) is not None:
            same.save(str(path))
            made.append(str(path))
        for name in self.vocab_files_names.values():
            source, target = self.folder / name, Path(save_directory, prefix + name)
            if source.is_file():
                if not (target.exists() and target.samefile(source)):
                    shutil.copyfile(source, target)
                made.append(str(target))
        return tuple(made)
