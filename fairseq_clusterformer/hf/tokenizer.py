"""Texts of our models for transformers: ``tokenizer.json``, or Python where that cannot say it."""

import json
import shutil
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from itertools import groupby
from pathlib import Path

from fairseq.data import Dictionary
from transformers import PreTrainedTokenizer

from fairseq_clusterformer.data import RECORD, TOKENIZER
from fairseq_clusterformer.data.formats import GPT2_FILES
from fairseq_clusterformer.data.subwords import CODES, MODEL, Subwords, load_prepared
from fairseq_clusterformer.data.text import TARGETS_OWN, TextPipeline
from fairseq_clusterformer.data.tokenizer_json import make
from fairseq_clusterformer.errors import read_json, reading

#: of ``tokenizer_config.json`` of another library's model, what holds with other numbers, too
_KEPT = ("chat_template", "clean_up_tokenization_spaces", "additional_special_tokens")
_KEPT += tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "cls", "mask"))
_CONFIG = "tokenizer_config.json"


def has_titles(folder: Path) -> bool:
    """Whether the paragraphs of a reader's data are led by the title of their document."""
    with reading(folder / RECORD, "what a prepare command wrote"):
        has_record = (folder / RECORD).is_file()
        return has_record and bool(read_json(folder / RECORD)["recipe"].get("titles"))


def write_tokenizer(
    data: Path, out: Path, dictionary: Dictionary, form: str, config: dict, **how: object
) -> None:
    """Write ``tokenizer.json`` of a data folder to `out`, as `make` has it, with what transformers
    is to know of it: `config` is more of this, special tokens as `dictionary` has them. Raises
    ValueError for what the file cannot say."""
    made = make(data, dictionary, form, **how)
    names = {number: token for token, number in made.get_vocab().items()}
    given = read_json(data / _CONFIG) if (data / _CONFIG).is_file() else {}
    found = {"bos_token": names.get(0), "unk_token": names.get(3)}
    if made.get_added_tokens_decoder()[2].special:  # else a line's end, which decoding shows
        found["eos_token"] = names[2]
    for name in _KEPT:
        if (value := given.get(name)) is not None:
            found[name] = value["content"] if isinstance(value, dict) else value
    for name, symbol in config.items():
        is_token = name.endswith("_token") and symbol in dictionary
        found[name] = names[dictionary.index(symbol)] if is_token else symbol
    if form in ("reader", "sentence"):  # what stands in a text is text, where no line end is <s>
        steps = json.loads(made.to_str())["normalizer"]
        found["split_special_tokens"] = '"<s>"' not in json.dumps(steps)
    # the class that transformers 4 and 5 both know
    found |= {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": names[1]}
    found = {name: value for name, value in found.items() if value is not None}
    (out / _CONFIG).write_text(json.dumps(found, indent=1, ensure_ascii=False), encoding="utf-8")
    (out / TOKENIZER).write_text(made.to_str(pretty=True), encoding="utf-8")
    if (data / "chat_template.jinja").is_file():
        shutil.copyfile(data / "chat_template.jinja", out / "chat_template.jinja")


class ClusterformerTokenizer(PreTrainedTokenizer):
    """The text of a translation model, or of a reader whose paragraphs begin with titles: the code
    that prepared the data makes the tokens, from the data folder's files.

    Args:
        dictionary: fairseq's ``dict.txt``; of a translation model, the target's. The other files
            of ``vocab_files_names`` are found in its folder; UserError for what is missing.
        source_dictionary: of a translation model.
        languages: source and target of a translation model; None: it is of a reader. Of the pair
            of a reader, the first line is the document's title; each other line is a paragraph,
            which begins with ``<s>`` and the title.
    """

    vocab_files_names = {
        "dictionary": "dict.txt",
        "source_dictionary": "dict.source.txt",
        "recipe": RECORD,  # what was done to the text
        "own": "subwords.json",  # the data folder's ``tokenizer.json``, by its own numbers
        "target_own": TARGETS_OWN,
        "pieces": MODEL,  # of a data folder of an older version, as the next
        "codes": CODES,
        "encoder": GPT2_FILES[0],
        "merges": GPT2_FILES[1],
    }
    model_input_names = ["input_ids", "attention_mask"]

    def __init__(
        self,
        dictionary: str,
        source_dictionary: str | None = None,
        languages: list[str] | None = None,
        **kwargs,
    ):
        self.folder, self.languages = Path(dictionary).parent, languages
        self.target_symbols = self.source_symbols = Dictionary.load(dictionary)
        if source_dictionary is not None:
            self.source_symbols = Dictionary.load(source_dictionary)
        if languages is None:
            kwargs["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
        self._switch_to_input_mode()
        special = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>"}
        kwargs = special | {"unk_token": "<unk>", "padding_side": "right"} | kwargs
        super().__init__(languages=languages, **kwargs)

    @cached_property
    def pipeline(self) -> TextPipeline:
        """Of the two languages."""
        found, own = TextPipeline.from_folder(self.folder), self.folder / "subwords.json"
        return replace(found, model=own) if own.is_file() else found

    @cached_property
    def subwords(self) -> Subwords:
        """Of a reader."""
        return load_prepared(self.folder, "subwords.json")

    @property
    def vocab_size(self) -> int:
        return len(self.symbols)

    def get_vocab(self) -> dict[str, int]:
        return {**self.symbols.indices, **self._added_tokens_encoder}

    def _switch_to_input_mode(self) -> None:
        self.symbols, self._of_target = self.source_symbols, False  # of what is read now

    def _switch_to_target_mode(self) -> None:  # within ``text_target``
        self.symbols, self._of_target = self.target_symbols, True

    def _tokenize(self, text: str, **kwargs) -> list[str]:
        if self.languages is not None:
            return self.pipeline.encode(text, self.languages[self._of_target]).split()
        first, *lines = text.split("\n")
        title, lines = (first, lines) if lines else ("", [first])
        found = []
        for line in filter(None, lines):
            found += [self.bos_token] if found else []
            found += [*self.subwords.split(title), *self.subwords.split(line)]
        return found

    def _convert_token_to_id(self, token: str) -> int:
        return self.symbols.index(token)

    def _convert_id_to_token(self, index: int) -> str:
        return self.symbols[index]

    def build_inputs_with_special_tokens(
        self, token_ids_0: list[int], token_ids_1: list[int] | None = None
    ) -> list[int]:
        begin = [] if self.languages else [self.bos_token_id]
        second = [] if token_ids_1 is None else [*begin, *token_ids_1]
        return [*begin, *token_ids_0, self.eos_token_id, *second]

    def get_special_tokens_mask(
        self, token_ids_0: list[int], token_ids_1=None, already_has_special_tokens=False
    ) -> list[int]:
        if not already_has_special_tokens:
            token_ids_0 = self.build_inputs_with_special_tokens(token_ids_0, token_ids_1)
        return [int(token in self.all_special_ids) for token in token_ids_0]

    def _decode(
        self, token_ids: int | list[int], skip_special_tokens: bool = False, **kwargs
    ) -> str:
        ids = [token_ids] if isinstance(token_ids, int) else list(token_ids)
        skipped = self.all_special_ids if skip_special_tokens else []
        found = [self.target_symbols[token] for token in ids if token not in skipped]
        return self.convert_tokens_to_string(found)

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        """Readable text of symbols, as of a whole text, between the special ones."""
        parts = []
        for is_special, run in groupby(tokens, self.all_special_tokens.__contains__):
            symbols = [*run]
            if is_special:
                parts += symbols
            elif self.languages is not None:
                parts.append(self.pipeline.decode(" ".join(symbols), self.languages[1]))
            else:
                parts.append(self.subwords.join(symbols))
        return " ".join(parts)

    def save_vocabulary(self, save_directory: str, filename_prefix: str | None = None) -> tuple:
        made = []
        for name in self.vocab_files_names.values():
            target = Path(save_directory, f"{filename_prefix}-{name}" if filename_prefix else name)
            source = self.folder / name
            if source.is_file():
                with suppress(shutil.SameFileError):
                    shutil.copyfile(source, target)
                made.append(str(target))
        return tuple(made)
