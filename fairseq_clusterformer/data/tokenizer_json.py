"""``tokenizer.json`` by the numbers of a dictionary: a prepared folder has it, and transformers
reads it as it is. It is made of an older folder's files, too. What the file cannot say:

- Moses' tokeniser, and titles of a reader's documents;
- the most words of a classifier's texts: ``truncation=True`` cuts instead;
- sentencepiece's models but unigrams;
- how sentencepiece rounds: pieces of equal scores may change places, such as - and -- in ---;
- how sentencepiece normalises, if the model does: the library's way is almost the same.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from .coding import TextCoding
from .subwords import (
    GPT2_FILES,
    MODEL,
    TOKENIZER,
    Subwords,
    byte_level,
    gpt2,
    letters_of_bytes,
)
from .words import UNSPACED

if TYPE_CHECKING:
    from fairseq.data import Dictionary

_SPACE = r"\s\x1c-\x1f"  # white space as Python's str.split has it
_LETTER = rf"[\p{{L}}\p{{M}}\p{{N}}&&[^{UNSPACED}]]"  # of `words_of`, as Oniguruma writes it
_BLANK = "\u2581"  # how sentencepiece writes a blank
_END = "\ufdd0"  # of a line, which is in no text
_UNIGRAM = 1  # sentencepiece's number of a type of models
_NORMAL, _USER_DEFINED, _UNUSED = 1, 4, 5  # and of types of pieces
_UNUSED_PARTS = ("post_processor", "truncation", "padding")  # of a file that is given


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
    dictionary: "Dictionary",
    form: str = "text",
    *,
    unicode: str = "none",
    begin: Sequence[str] | None = None,
    tokenised: bool | None = None,
) -> Tokenizer:
    """What ``tokenizer.json`` holds for a folder of prepared text. Raises ValueError for what the
    file cannot say; the message says why.

    Args:
        form: what the model reads, of `FORMS`.
        unicode: the form of Unicode that a text gets first: "NFC", "NFKC", or "none".
        begin: the symbols before a text of the form "text"; None: as it is usual.
        tokenised: a "sentence" is words between blanks; None: it is subwords.
    """
    (single, second, line_end), given, ends = FORMS[form], folder / TOKENIZER, False
    is_of_bytes = TextCoding.is_of_bytes(dictionary)
    if is_of_bytes:
        model = Subwords(byte_level(letters_of_bytes(), [], use_regex=False))
    elif given.is_file():
        model = Subwords(given)
    elif (folder / MODEL).is_file():
        model, ends = Subwords(pieces_tokenizer(folder / MODEL, form)), True
    elif (folder / GPT2_FILES[0]).is_file():
        model, ends = gpt2(folder), form == "reader"
    else:
        model, ends = None, form != "sentence"
    if model:
        content = numbered(model, dictionary)
    else:
        content = json.loads(_words(dictionary, form, tokenised).to_str())
    if ends and (folder / GPT2_FILES[0]).is_file():
        made = Tokenizer(models.WordLevel({}, ""))
        steps = [*_paragraphs(), normalizers.Replace("\n", line_end)]
        made.normalizer = normalizers.Sequence(steps)
        content["normalizer"] = json.loads(made.to_str())["normalizer"]
    if unicode != "none" and f'"{unicode}"' not in json.dumps(content["normalizer"]):
        steps = [{"type": unicode}, *filter(None, [content["normalizer"]])]
        content["normalizer"] = {"type": "Sequence", "normalizers": steps}
    named = {token["id"]: token for token in content["added_tokens"]}
    vocabulary = content["model"]["vocab"]
    own = vocabulary if isinstance(vocabulary, dict) else [symbol for symbol, _ in vocabulary]
    given = own if isinstance(own, dict) else {symbol: i for i, symbol in enumerate(own)}
    given = given | {token["content"]: number for number, token in named.items()}
    names = {number: token for token, number in given.items()}
    for symbol in [*dictionary.symbols[: dictionary.nspecial], "<mask>"]:
        number = dictionary.indices.get(symbol)
        if number not in named:
            if number is None or names.get(number, symbol) != symbol:
                continue
            if given.get(symbol, number) != number:  # another token has the name
                continue
            flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
            named[number] = {"id": number, "content": symbol, **flags}
            names[number] = symbol
            if isinstance(vocabulary, dict):
                vocabulary[symbol] = number
        shown = form == "text" and symbol == line_end and (ends or named[number]["normalized"])
        named[number]["special"] = not shown  # decoding shows a line's end
        named[number]["normalized"] |= ends and symbol == line_end  # which the normaliser puts
    content["added_tokens"] = [named[number] for number in sorted(named)]
    if form == "text" and (begin is not None or is_of_bytes):
        single = " ".join([*(begin or []), "$A"])
    template = f"{single} {second}"
    around = [i for i in (dictionary.bos(), dictionary.eos()) if dictionary[i] in template]
    for number in around:
        symbol, name = dictionary[number], names[number]
        single, template = single.replace(symbol, name), template.replace(symbol, name)
    made = Tokenizer.from_str(json.dumps(content | dict.fromkeys(_UNUSED_PARTS)))
    special = [(names[number], number) for number in around]
    how = {"single": single, "pair": template, "special_tokens": special}
    made.post_processor = processors.TemplateProcessing(**how)
    return made


def numbered(model: Subwords, dictionary: "Dictionary") -> dict:
    """What ``tokenizer.json`` holds of a model by the numbers of a dictionary; ValueError where
    that lacks a token. Where texts begin by one of the model's, it is ``</s>``."""
    content, end = model.content, dictionary.eos()
    numbers: dict[int, int] = {}
    for theirs in sorted(model.vocabulary.values()):
        names = (f"<token-{theirs}>", model.symbols[theirs])
        if known := [name for name in names if name in dictionary]:
            numbers[theirs] = dictionary.index(known[0])
    unnamed = [i for i in model.vocabulary.values() if i not in numbers]
    if end not in numbers.values():  # as `conversion.texts.tokenizer_text` chose it
        if model.first is not None:
            numbers[model.first] = end
        elif len(unnamed) == 1:
            numbers[unnamed[0]] = end
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
    pieces = {numbers[theirs]: piece for theirs, piece in enumerate(vocabulary)}
    pieces = {number: pieces[number] for number in pieces if number >= dictionary.nspecial}
    lowest = 10 * min(score for _, score in pieces.values()) - 100  # letters of it are likelier
    found = [pieces.get(i, [symbol, lowest]) for i, symbol in enumerate(dictionary.symbols)]
    content["model"] |= {"vocab": found, "unk_id": dictionary.unk()}
    return content


def _replace(pattern: str, content: str) -> normalizers.Replace:
    return normalizers.Replace(Regex(pattern), content)


def _paragraphs() -> list[normalizers.Normalizer]:
    """Only lines that hold something."""
    around = r"(?:\A|(?<=<s>))\n+|\n+(?=\z|<s>)"
    return [_replace(around, ""), _replace(r"\n+", "\n")]


def _lines(line_end: str, blanks: str, *own, strip: bool, prefix: bool) -> normalizers.Sequence:
    """Steps by which each line gets a model's `own` normalising and loses blanks, and one stands
    in front if it holds something; its end becomes a symbol, which the library puts through them,
    too, and which gets none."""
    begins, ends = rf"(?:\A|(?<={_END}))", rf"(?=\z|{_END})"
    steps = [normalizers.Replace("\n", _END), *own]
    if strip:
        steps += [_replace(f"{begins}{blanks}+|{blanks}+{ends}", ""), _replace(f"{blanks}+", " ")]
    if prefix:
        steps.append(_replace(rf"{begins}(?=[^{_END}])(?!{line_end}\z)", " "))
    return normalizers.Sequence([*steps, normalizers.Replace(_END, line_end)])


def _decoder(first: list, *, prefix: bool) -> decoders.Decoder:
    """What writes tokens as a text, and ``</s>`` as a line's end unless it begins the text."""
    blank = " ?" if prefix else ""
    ends = [
        decoders.Replace(Regex(f"{at}</s>{blank}"), to) for at, to in ((r"\A", ""), ("", "\n"))
    ]
    return decoders.Sequence([*first, decoders.Fuse(), *ends])


def _words(dictionary: "Dictionary", form: str, tokenised: bool | None) -> Tokenizer:
    """Words between blanks, each led by one; of a classifier's texts, see `split_words`."""
    end, special = FORMS[form][2], dictionary.nspecial
    own = dictionary.indices
    if form != "sentence":
        own = {s if i < special or s == "<mask>" else f" {s}": i for s, i in own.items()}
    made = Tokenizer(models.WordLevel(own, unk_token="<unk>"))
    if form == "sentence":
        # as Python's str.lower, which writes a sigma at a word's end in another way
        sigma = _replace(r"(?<=\p{L})\u03a3(?!\p{L})", "\u03c2")
        made.normalizer = normalizers.Sequence([sigma, normalizers.Lowercase()])
        word = Regex(f"[^{_SPACE}]+" if tokenised else f"{_LETTER}+|[^{_SPACE}]")
        made.pre_tokenizer = pre_tokenizers.Split(word, "removed", invert=True)
        return made
    made.normalizer = _lines(end, f"[{_SPACE}]", strip=True, prefix=True)
    made.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_next")
    made.decoder = _decoder([], prefix=True)
    return made


def pieces_tokenizer(model: Path, form: str = "text") -> Tokenizer:
    """A sentencepiece model by its own numbers; ValueError for what the file cannot say."""
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(model.read_bytes())
    kind, own, line_end = proto.trainer_spec, proto.normalizer_spec, FORMS[form][2]
    unsaid = kind.treat_whitespace_as_suffix or any(p.type == _UNUSED for p in proto.pieces)
    if unsaid or not own.escape_whitespaces or kind.model_type != _UNIGRAM:
        raise ValueError(f"{model.name} is of a kind that {TOKENIZER} cannot say")
    charsmap, steps = own.precompiled_charsmap, _paragraphs() if form == "reader" else []
    how = {"strip": own.remove_extra_whitespaces, "prefix": own.add_dummy_prefix}
    normal = [normalizers.Precompiled(charsmap)] if charsmap else []
    steps += [_lines(line_end, " ", *normal, **how), normalizers.Replace(" ", _BLANK)]
    made = Tokenizer(_unigram(proto.pieces, kind))
    made.normalizer = normalizers.Sequence(steps)
    # "<0x41>" in a text is six letters, and no byte
    made.pre_tokenizer = pre_tokenizers.Split(Regex("<(?=0x[0-9A-F]{2}>)"), "merged_with_previous")
    first = [decoders.Replace(_BLANK, " "), decoders.ByteFallback()]
    made.decoder = _decoder(first, prefix=own.add_dummy_prefix)
    return made


def _unigram(pieces: Sequence, kind: object) -> models.Model:
    normal = [piece.score for piece in pieces if piece.type == _NORMAL]
    vocabulary = []
    for piece in pieces:
        score = piece.score if piece.type == _NORMAL else min(normal)
        if piece.type == _USER_DEFINED:  # as sentencepiece prefers them
            score = len(piece.piece.encode()) * max(0.0, *normal) - 0.1
        vocabulary.append((piece.piece, score))
    return models.Unigram(vocabulary, unk_id=kind.unk_id, byte_fallback=kind.byte_fallback)
