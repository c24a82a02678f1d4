"""The text of other libraries' dense models: their files as those of a fairseq data folder.

Each function takes the folder of a model, a new data folder and the configuration of the model.
It returns the number that the model has for each of our symbols, -1 where it has none.
"""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fairseq_clusterformer.checkpoints.bundle import CHAT_FILES
from fairseq_clusterformer.corpora.binarize import symbol_dictionary
from fairseq_clusterformer.data import RECORD, TOKENIZER, formats
from fairseq_clusterformer.data.subwords import Subwords
from fairseq_clusterformer.data.text import TARGETS_OWN, TextPipeline
from fairseq_clusterformer.errors import read_json

_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")


def tokenizer_text(folder: Path, data: Path, config: Any) -> list[int]:
    """The text of a ``tokenizer.json``. Our texts begin by ``</s>``, which is here the token that
    the tokenizer puts in front, or the model's end of a text."""
    subwords, end = _tokenizer(folder, data, config), config.eos_token_id
    symbols = subwords.symbols
    begin = end[0] if isinstance(end, list) and end else end
    begin = begin if subwords.first is None else subwords.first
    if not isinstance(begin, int):
        raise ValueError(f"its eos_token_id is {end}, not a number")
    named = [symbols.index(name) if name in symbols else -1 for name in _SPECIAL]
    special = [-1 if number == begin else number for number in named]
    special[2] = begin
    others = [number for number in range(len(symbols)) if number not in special]
    names = (f"<token-{i}>" if symbols[i] in _SPECIAL else symbols[i] for i in others)
    _write_dictionary(data, names)
    for name in CHAT_FILES:
        if (folder / name).is_file():
            shutil.copyfile(folder / name, data / name)
    return [*special, *others]


def bert_text(folder: Path, data: Path, config: Any) -> list[int]:
    """The text of a ``tokenizer.json``, symbol by symbol, whose mask is ours."""
    symbols = _tokenizer(folder, data, config).symbols
    words = symbol_dictionary(symbols)
    words.save(str(data / "dict.txt"))
    words.add_symbol("<mask>")  # as fairseq's task does
    if missing := [symbol for symbol in words.symbols if symbol not in symbols]:
        raise ValueError(f"its tokenizer lacks {missing[0]}")
    return [symbols.index(symbol) for symbol in words.symbols]


def bart_text(folder: Path, data: Path, config: Any) -> list[int]:
    """The same, of both languages."""
    numbers = bert_text(folder, data, config)
    _write_recipe(folder, data, bpe="gpt2")
    return numbers


def marian_text(folder: Path, data: Path, config: Any) -> list[int]:
    """A sentencepiece model for each language, and one list of pieces."""
    pieces = read_json(folder / "vocab.json")
    _check_size(max(pieces.values(), default=0), config)
    special = [config.pad_token_id, config.eos_token_id, pieces["<unk>"]]
    in_order = sorted((number, piece) for piece, number in pieces.items() if number not in special)
    _write_dictionary(data, (piece for _, piece in in_order))
    for name, own in (("source.spm", TOKENIZER), ("target.spm", TARGETS_OWN)):
        formats.pieces(folder / name).save(str(data / own))
    _write_recipe(folder, data, bpe="sentencepiece", normalize_punctuation=True)
    return [-1, *special, *(number for number, _ in in_order)]


def languages(folder: Path) -> tuple[str, str]:
    """Source and target, as Marian's tokenizer names them; "source" and "target" otherwise."""
    file = folder / "tokenizer_config.json"
    found = read_json(file) if file.is_file() else {}
    first, second = found.get("source_lang"), found.get("target_lang")
    return (first, second) if first and second and first != second else ("source", "target")


def _tokenizer(folder: Path, data: Path, config: Any) -> Subwords:
    """Write ``tokenizer.json``, also of a folder that has GPT-2's files instead, and read it."""
    if (folder / TOKENIZER).is_file() or not (folder / "vocab.json").is_file():
        shutil.copyfile(folder / TOKENIZER, data / TOKENIZER)
    else:
        pieces = read_json(folder / "vocab.json")
        lines = (folder / "merges.txt").read_text(encoding="utf-8").splitlines()
        merges = [tuple(line.split()) for line in lines if line and line[:8] != "#version"]
        made = formats.byte_level(pieces, merges)
        special = [name for name in (*_SPECIAL, "<mask>", "<|endoftext|>") if name in pieces]
        made.add_special_tokens(special)
        made.save(str(data / TOKENIZER))
    found = Subwords(data / TOKENIZER)
    _check_size(len(found.symbols) - 1, config)
    return found


def _check_size(most: int, config: Any) -> None:
    if most >= config.vocab_size:
        raise ValueError(f"its tokenizer has number {most}, and the model {config.vocab_size}")


def _write_dictionary(data: Path, symbols: Iterable[str]) -> None:
    text = "".join(f"{symbol} 1\n" for symbol in symbols)
    (data / "dict.txt").write_text(text, encoding="utf-8")


def _write_recipe(folder: Path, data: Path, **how: object) -> None:
    """Name the dictionary of each language, and say how texts become subwords."""
    pipeline = TextPipeline(languages=languages(folder), tokenizer="none", **how)
    recipe = {"recipe": pipeline.recipe()}
    (data / RECORD).write_text(json.dumps(recipe), encoding="utf-8")
    for language in pipeline.languages:
        shutil.copyfile(data / "dict.txt", data / f"dict.{language}.txt")
    (data / "dict.txt").unlink()


#: by what a family says, see `fairseq_clusterformer.families`
TEXTS = {
    "bert": bert_text,
    "tokenizer": tokenizer_text,
    "bart": bart_text,
    "marian": marian_text,
}
