"""``tokenizer.json`` by the numbers of a dictionary: a prepared folder has it, and transformers
reads it as it is. Besides what `formats` says of sentencepiece, the file cannot say Moses'
tokeniser, titles of a reader's documents, and the most words of a classifier's texts:
``truncation=True`` cuts instead.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from fairseq.data import Dictionary
from tokenizers import Tokenizer, processors

from . import TOKENIZER, formats
from .characters import letters_of_bytes
from .coding import TextCoding
from .subwords import MODEL, Subwords

#: what a kind of model reads, in the words of templates of `tokenizers`: what stands around one
#: text ``$A``; what a pair has behind it; and the special symbol for a line end, which bytes and
#: GPT-2's byte pairs have no need of
FORMS: dict[str, tuple[str, str, str | None]] = {
    "text": ("</s> $A", "$B:1", "</s>"),
    "masked": ("<s> $A </s>", "$B:1 </s>:1", "</s>"),
    "sentence": ("<s> $A </s>", "$B:1 </s>:1", None),
    "reader": ("<s> $A </s>", "<s>:1 $B:1", "<s>"),
}


def make(
    folder: Path,
    dictionary: Dictionary,
    form: str = "text",
    *,
    unicode: str = "none",
    begin: Sequence[str] | None = None,
    tokenised: bool | None = None,
) -> Tokenizer:
    """What ``tokenizer.json`` holds for a folder of prepared text, of which the model reads a
    `form` of `FORMS`. A text first gets a form of Unicode: "NFC", "NFKC", or "none". Of the form
    "text", symbols stand before it, `begin` (None: as it is usual); a "sentence" that is
    `tokenised` is words between blanks (None: it is subwords). Raises ValueError for what the file
    cannot say; the message says why."""
    (single, second, line_end), special = FORMS[form], dictionary.nspecial
    is_of_bytes, ends = TextCoding.is_of_bytes(dictionary), form != "sentence"
    model, words = None, dictionary.indices
    if is_of_bytes:
        letters = formats.byte_level(letters_of_bytes(), [], use_regex=False)
        model, ends = Subwords(letters), False
    elif (folder / TOKENIZER).is_file():
        model, ends = Subwords(folder / TOKENIZER), False
    elif (folder / MODEL).is_file():
        model = Subwords(formats.pieces(folder / MODEL, line_end))
    elif (folder / formats.GPT2_FILES[0]).is_file():
        ends = form == "reader"
        model = Subwords(formats.gpt2(folder, line_end if ends else None), numbers=True)
    elif ends:
        words = {s if i < special or s == "<mask>" else f" {s}": i for s, i in words.items()}
        made = formats.words(words, line_end)
    else:
        made = formats.classified_words(words, tokenised=tokenised)
    content = numbered(model, dictionary) if model else json.loads(made.to_str())
    if unicode != "none" and f'"{unicode}"' not in json.dumps(content["normalizer"]):
        steps = [{"type": unicode}, *filter(None, [content["normalizer"]])]
        content["normalizer"] = {"type": "Sequence", "normalizers": steps}
    named = {token["id"]: token for token in content["added_tokens"]}
    vocabulary = content["model"]["vocab"]
    is_list = isinstance(vocabulary, list)
    given = {symbol: i for i, (symbol, _) in enumerate(vocabulary)} if is_list else vocabulary
    given = given | {token["content"]: number for number, token in named.items()}
    names = {number: token for token, number in given.items()}
    for symbol in (*dictionary.symbols[:special], "<mask>"):
        number = dictionary.indices.get(symbol)
        if number not in named:
            is_other = names.get(number, symbol) != symbol or given.get(symbol, number) != number
            if number is None or is_other:  # which has its number, or its name
                continue
            flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
            named[number] = {"id": number, "content": symbol, **flags}
            names[number] = symbol
            if not is_list:
                vocabulary[symbol] = number
        is_end = symbol == line_end
        shown = form == "text" and is_end and (ends or named[number]["normalized"])
        named[number]["special"] = not shown  # decoding shows a line's end
        named[number]["normalized"] |= ends and is_end  # which the normaliser puts
    content["added_tokens"] = [named[number] for number in sorted(named)]
    if form == "text" and (begin is not None or is_of_bytes):
        single = " ".join([*(begin or []), "$A"])
    template = f"{single} {second}"
    around = {dictionary.bos(), dictionary.eos(), *map(dictionary.index, begin or ())}
    around = [i for i in sorted(around) if dictionary[i] in template]
    for number in around:
        symbol, name = dictionary[number], names[number]
        single, template = single.replace(symbol, name), template.replace(symbol, name)
    unused = dict.fromkeys(("post_processor", "truncation", "padding"))
    made = Tokenizer.from_str(json.dumps(content | unused))
    special = [(names[number], number) for number in around]
    made.post_processor = processors.TemplateProcessing(single, template, special)
    return made


def numbered(model: Subwords, dictionary: Dictionary) -> dict:
    """What ``tokenizer.json`` holds of a model by the numbers of a dictionary; ValueError where
    that lacks a token. Where texts begin by one of the model's, it is ``</s>``."""
    content, end = model.content, dictionary.eos()
    numbers: dict[int, int] = {}
    for theirs in sorted(model.vocabulary.values()):
        names = (f"<token-{theirs}>", model.symbols[theirs])
        if known := [name for name in names if name in dictionary]:
            numbers[theirs] = dictionary.index(known[0])
    unnamed = [i for i in model.vocabulary.values() if i not in numbers]
    if end not in numbers.values():  # as `conversion.dense.tokenizer_text` chose it
        if len(unnamed) == 1:
            numbers[unnamed[0]] = end
        elif model.first is not None:
            numbers[model.first] = end
    if lost := [token for token, i in model.vocabulary.items() if i not in numbers]:
        raise ValueError(f"its dictionary lacks {len(lost):,} tokens, such as {lost[0]}")
    for token in content["added_tokens"]:
        token["id"] = numbers[token["id"]]
    vocabulary = content["model"]["vocab"]
    if isinstance(vocabulary, dict):
        # of added tokens, too: the library gives those that are not there numbers of its own
        found = {token: numbers[number] for token, number in model.vocabulary.items()}
        content["model"]["vocab"] = dict(sorted(found.items(), key=lambda item: item[1]))
        return content
    pieces = {numbers[i]: p for i, p in enumerate(vocabulary) if numbers[i] >= dictionary.nspecial}
    lowest = 10 * min(score for _, score in pieces.values()) - 100  # letters of it are likelier
    found = [pieces.get(i, [symbol, lowest]) for i, symbol in enumerate(dictionary.symbols)]
    content["model"] |= {"vocab": found, "unk_id": dictionary.unk()}
    return content
