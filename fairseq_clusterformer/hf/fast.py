"""Our codings of text as ``tokenizer.json``, which transformers reads without this package.

Token numbers are those of :class:`~fairseq_clusterformer.hf.tokenizer.ClusterformerTokenizer`.
What the file cannot say:

- Moses' tokeniser, two dictionaries, and titles of a reader's documents: there is no file then;
- the most words of a classifier's texts: ``truncation=True`` cuts instead;
- how sentencepiece rounds: pieces of equal scores may change places, such as - and -- in ---;
- how sentencepiece normalises, if the model does: transformers' way is almost the same;
- an empty text of bytes does not begin by ``</s>``;
- line ends (``</s>``) of other texts are skipped with the special symbols in decoding.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from fairseq_clusterformer.data.coding import SUBWORD_MODEL
from fairseq_clusterformer.data.subwords import GPT2_FILES
from fairseq_clusterformer.data.text import TARGETS_OWN
from fairseq_clusterformer.data.words import UNSPACED

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizer

_SPACE = r"\s\x1c-\x1f"  # white space as Python's str.split has it
_LETTER = rf"[\p{{L}}\p{{M}}\p{{N}}&&[^{UNSPACED}]]"  # of `words_of`, as Oniguruma writes it
_BLANK = "\u2581"  # how sentencepiece writes a blank
_FORMS = {"NFC": normalizers.NFC(), "NFKC": normalizers.NFKC()}
_UNIGRAM, _BPE = 1, 2  # sentencepiece's numbers of types of models
_NORMAL, _USER_DEFINED, _UNUSED, _BYTE = 1, 4, 5, 6  # and of types of pieces


class Form(NamedTuple):
    """What a kind of model reads, in the words of templates of `tokenizers`."""

    text: str  # what stands around one text ``$A``
    second: str  # what a pair has behind it
    #: the special symbol that the normaliser puts for a line end; None of bytes and GPT-2's byte
    #: pairs, of which it is one like any other
    line_end: str | None = None


FORMS = {
    "text": Form("$A", "$B:1", "</s>"),  # behind what `begin_of` says
    "masked": Form("<s> $A </s>", "$B:1 </s>:1", "</s>"),
    "sentence": Form("<s> $A </s>", "$B:1 </s>:1"),
    "translation": Form("$A </s>", "$B:1"),
    "reader": Form("<s> $A </s>", "<s>:1 $B:1", "<s>"),
}


def fast(slow: "PreTrainedTokenizer") -> Tokenizer | None:
    """What ``tokenizer.json`` holds; None: it would give other tokens. Raises ValueError for files
    that are no model of subwords."""
    symbols, folder, form = slow.target_symbols.symbols, slow.folder, slow.form
    line_end, steps = FORMS[form].line_end, []
    if _beyond_a_file(slow):
        return None
    if form == "reader":  # only lines that hold something
        around = r"(?:\A|(?<=<s>))\n+|\n+(?=\z|<s>)"
        steps = [_replace(around, ""), _replace(r"\n+", "\n")]
    if form == "translation":
        steps = [_replace(f"[{_SPACE}]+", " "), normalizers.Strip()]
        steps += _lower() if slow.pipeline.lowercase else []
    if form == "sentence":
        made = _sentence(symbols, slow.words["tokenised"])
    elif (folder / SUBWORD_MODEL).is_file():
        made = _pieces(symbols, folder / SUBWORD_MODEL, steps, line_end)
    elif form == "reader":
        made = _gpt2(symbols, folder, [*steps, normalizers.Replace("\n", line_end)])
    elif all((folder / name).is_file() for name in GPT2_FILES):
        made = _gpt2(symbols, folder, [])
    elif slow.coding.unit == "byte":
        made = _bytes(symbols[slow.target_symbols.nspecial :][:256], symbols)
    else:
        made = _words(symbols)
        made.normalizer = normalizers.Replace("\n", line_end)
    if made is None:
        return None
    if formed := _FORMS.get(slow.unicode):
        own = [made.normalizer] if made.normalizer else []
        made.normalizer = normalizers.Sequence([formed, *own])
    special = [token for token in slow.added_tokens_decoder.values() if token.special]
    made.add_special_tokens(special)
    made.post_processor = processors.TemplateProcessing(
        single=slow.frame(),
        pair=slow.frame(pair=True),
        special_tokens=[(symbol, symbols.index(symbol)) for symbol in ("<s>", "</s>")],
    )
    return made


def _beyond_a_file(slow: "PreTrainedTokenizer") -> bool:
    """Whether texts become tokens in a way that ``tokenizer.json`` cannot say."""
    if slow.form == "translation":
        pipeline = slow.pipeline
        return (
            slow.source_symbols.symbols != slow.target_symbols.symbols
            or pipeline.tokenizer != "none"
            or pipeline.normalize_punctuation
            or (slow.folder / TARGETS_OWN).exists()
            or not (slow.folder / SUBWORD_MODEL).is_file()
        )
    if slow.form == "sentence":
        return not (slow.folder / "data.json").is_file()
    return slow.form == "reader" and slow.titles


def _replace(pattern: str, content: str) -> normalizers.Replace:
    return normalizers.Replace(Regex(pattern), content)


def _lower() -> list[normalizers.Normalizer]:
    """As Python's ``str.lower``, which writes a sigma at a word's end in another way."""
    return [_replace(r"(?<=\p{L})\u03a3(?!\p{L})", "\u03c2"), normalizers.Lowercase()]


def _numbered(symbols: list[str]) -> dict[str, int]:
    return {symbol: number for number, symbol in enumerate(symbols)}


def _bytes(of_bytes: list[str], symbols: list[str]) -> Tokenizer:
    """One token per byte; transformers writes bytes as GPT-2 does."""
    from fairseq.data.encoders.gpt2_bpe_utils import bytes_to_unicode

    letters = dict(zip(of_bytes, map(bytes_to_unicode().get, range(256)), strict=True))
    vocabulary = {letters.get(symbol, symbol): i for i, symbol in enumerate(symbols)}
    return _byte_level(vocabulary, [], use_regex=False)


def _gpt2(symbols: list[str], folder: Path, steps: list) -> Tokenizer | None:
    """GPT-2's byte pairs, whose symbols are numbers of pieces."""
    pieces = json.loads((folder / GPT2_FILES[0]).read_text(encoding="utf-8"))
    _, merges = models.BPE.read_file(*(str(folder / name) for name in GPT2_FILES))
    piece_of = {str(number): piece for piece, number in pieces.items()}
    if not piece_of.keys() <= set(symbols):
        return None  # a piece that the dictionary lacks
    vocabulary = {piece_of.get(symbol, symbol): i for i, symbol in enumerate(symbols)}
    made = _byte_level(vocabulary, merges, use_regex=True)
    if steps:
        made.normalizer = normalizers.Sequence(steps)
    return made


def _byte_level(vocabulary: dict[str, int], merges: list, *, use_regex: bool) -> Tokenizer:
    made = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
    made.decoder = decoders.ByteLevel()
    return made


def _words(symbols: list[str]) -> Tokenizer:
    made = Tokenizer(models.WordLevel(_numbered(symbols), unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(f"[{_SPACE}]+"), "removed")
    return made


def _sentence(symbols: list[str], tokenised: bool) -> Tokenizer:
    """The words of a classifier's text; see `split_words`."""
    made = _words(symbols)
    made.normalizer = normalizers.Sequence(_lower())
    if not tokenised:
        word = Regex(f"{_LETTER}+|[^{_SPACE}]")
        made.pre_tokenizer = pre_tokenizers.Split(word, "removed", invert=True)
    return made


def _pieces(
    symbols: list[str], model: Path, steps: list, line_end: str | None
) -> Tokenizer | None:
    """A sentencepiece model; ``steps`` of normalising come before its own."""
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(model.read_bytes())
    kind, own = proto.trainer_spec, proto.normalizer_spec
    pieces = [piece for piece in proto.pieces if piece.type in (_NORMAL, _USER_DEFINED, _BYTE)]
    known = {piece.piece for piece in pieces}
    unsaid = kind.treat_whitespace_as_suffix or any(p.type == _UNUSED for p in proto.pieces)
    if not known <= set(symbols) or not own.escape_whitespaces or unsaid:
        return None
    steps = [*steps, *([normalizers.Replace("\n", line_end)] if line_end else [])]
    if own.precompiled_charsmap:
        steps.append(normalizers.Precompiled(own.precompiled_charsmap))
    begins, ends, something = r"\A", r"\z", "(?=.)"
    if line_end is not None:
        begins, ends = rf"(?:\A|(?<={line_end}))", rf"(?=\z|{line_end})"
        something += f"(?!{line_end})"
    if own.remove_extra_whitespaces:
        steps += [_replace(f"{begins} +| +{ends}", ""), _replace(" {2,}", " ")]
    if own.add_dummy_prefix:  # before each line that holds something
        steps.append(_replace(begins + something, " "))
    make = {_UNIGRAM: _unigram, _BPE: _bpe}.get(kind.model_type)
    if not make or (made := make(symbols, pieces, kind.byte_fallback)) is None:
        return None
    made.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", _BLANK)])
    # "<0x41>" in a text is six letters, and no byte
    made.pre_tokenizer = pre_tokenizers.Split(Regex("<(?=0x[0-9A-F]{2}>)"), "merged_with_previous")
    strip = [decoders.Strip(" ", 1, 0)] if own.add_dummy_prefix else []
    made.decoder = decoders.Sequence(
        [decoders.Replace(_BLANK, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return made


def _unigram(symbols: list[str], pieces: list, byte_fallback: bool) -> Tokenizer:
    normal = [piece.score for piece in pieces if piece.type == _NORMAL]
    scores = {}
    for piece in pieces:
        scores[piece.piece] = piece.score if piece.type == _NORMAL else min(normal)
        if piece.type == _USER_DEFINED:  # as sentencepiece prefers them
            scores[piece.piece] = len(piece.piece.encode()) * max(0.0, *normal) - 0.1
    vocabulary = [(symbol, scores.get(symbol, min(normal))) for symbol in symbols]
    unknown = symbols.index("<unk>")
    return Tokenizer(models.Unigram(vocabulary, unk_id=unknown, byte_fallback=byte_fallback))


def _bpe(symbols: list[str], pieces: list, byte_fallback: bool) -> Tokenizer | None:
    if any(piece.type == _USER_DEFINED for piece in pieces):
        return None
    normal = {piece.piece: piece.score for piece in pieces if piece.type == _NORMAL}
    merges = [
        (-score, number, piece[:i], piece[i:])
        for number, (piece, score) in enumerate(normal.items())
        for i in range(1, len(piece))
        if piece[:i] in normal and piece[i:] in normal
    ]
    merges = [tuple(pair) for _, _, *pair in sorted(merges)]
    how = {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": byte_fallback}
    return Tokenizer(models.BPE(_numbered(symbols), merges, **how))
