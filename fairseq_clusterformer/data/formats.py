"""Subwords and words of other files as tokenizers of the library `tokenizers`. What its
``tokenizer.json`` cannot say of a sentencepiece model: another kind than unigrams; how
sentencepiece rounds (pieces of equal scores may change places, such as - and -- in ---); and how
it normalises, if the model does: the library's way is almost the same."""

from collections.abc import Mapping
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from fairseq_clusterformer.errors import reading

from .characters import UNSPACED, letters_of_bytes

GPT2_FILES = ("encoder.json", "vocab.bpe")
END = "</w>"  # of a word, in codes of subword-nmt

_SPACE = r"\s\x1c-\x1f"  # white space as Python's str.split has it
_LETTER = rf"[\p{{L}}\p{{M}}\p{{N}}&&[^{UNSPACED}]]"  # of `words_of`, as Oniguruma writes it
_BLANK = "\u2581"  # how sentencepiece writes a blank
_END = "\ufdd0"  # of a line, which is in no text
_UNIGRAM = 1  # sentencepiece's number of a type of models
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = range(1, 6)  # and of types of pieces


def byte_level(vocabulary: dict[str, int], merges: list, *, use_regex: bool = True) -> Tokenizer:
    """Byte pairs as GPT-2 has them, whose letters stand for bytes."""
    made = Tokenizer(models.BPE(vocabulary, merges))
    steps = {"add_prefix_space": False, "trim_offsets": False, "use_regex": use_regex}
    made.pre_tokenizer = pre_tokenizers.ByteLevel(**steps)
    made.decoder = decoders.ByteLevel()
    return made


def gpt2(folder: Path, line_end: str | None = None) -> Tokenizer:
    """GPT-2's byte pairs of a folder's ``encoder.json`` and ``vocab.bpe``, or UserError; between
    lines that hold something stands the symbol, or None: lines are as they are."""
    with reading(folder, f"a folder with GPT-2's {' and '.join(GPT2_FILES)}"):
        vocabulary, merges = models.BPE.read_file(*(str(folder / name) for name in GPT2_FILES))
        numbers = set(range(len(vocabulary)))
        if letters_of_bytes().keys() - vocabulary.keys() or {*vocabulary.values()} != numbers:
            raise ValueError("its pieces are not all bytes and more, each with a number")
        made = byte_level(vocabulary, merges)
    if line_end is not None:
        steps = [*_paragraphs(), normalizers.Replace("\n", line_end)]
        made.normalizer = normalizers.Sequence(steps)
    return made


def codes(file: Path) -> Tokenizer:
    """Byte pairs of subword-nmt's codes, or UserError; a token at a word's end has their mark."""
    with reading(file, "codes of subword-nmt"):
        version, *lines = file.read_text(encoding="utf-8").rstrip("\n").split("\n")
        if version != "#version: 0.2":
            raise ValueError(f"its first line is {version!r}")
        merges = list(dict.fromkeys(tuple(line.split(" ")) for line in lines))
        letters = set()
        for part in (part for pair in merges for part in pair):
            whole = part.removesuffix(END)
            letters |= {*whole[:-1], whole[-1:] + part[len(whole) :]}
        pieces = dict.fromkeys(["<unk>", *sorted(letters), *map("".join, merges)])
        vocabulary = {piece: number for number, piece in enumerate(pieces)}
        made = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", end_of_word_suffix=END))
    made.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
    return made


def pieces(model: Path, line_end: str = "</s>") -> Tokenizer:
    """A sentencepiece model by its own numbers; ValueError for what the file cannot say."""
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto()
    with reading(model, "a sentencepiece model"):
        proto.ParseFromString(model.read_bytes())
    kind, own = proto.trainer_spec, proto.normalizer_spec
    unsaid = kind.treat_whitespace_as_suffix or any(p.type == _UNUSED for p in proto.pieces)
    if unsaid or not own.escape_whitespaces or kind.model_type != _UNIGRAM:
        problem = "tokenizer.json cannot say such a model of sentencepiece"
        raise ValueError(f"{model}: {problem}; allowed: unigrams")
    lowest = min(piece.score for piece in proto.pieces if piece.type == _NORMAL)
    highest = max(0.0, *(piece.score for piece in proto.pieces if piece.type == _NORMAL))
    vocabulary = []
    for piece in proto.pieces:
        score = piece.score if piece.type == _NORMAL else lowest
        if piece.type in (_UNKNOWN, _CONTROL):  # letters of it are likelier
            score = 10 * lowest - 100
        if piece.type == _USER_DEFINED:  # as sentencepiece prefers them
            score = len(piece.piece.encode()) * highest - 0.1
        vocabulary.append((piece.piece, score))
    made = Tokenizer(models.Unigram(vocabulary, kind.unk_id, kind.byte_fallback))
    charsmap, steps = own.precompiled_charsmap, _paragraphs() if line_end == "<s>" else []
    normal = [normalizers.Precompiled(charsmap)] if charsmap else []
    how = {"strip": own.remove_extra_whitespaces, "prefix": own.add_dummy_prefix}
    steps += [_lines(line_end, " ", *normal, **how), normalizers.Replace(" ", _BLANK)]
    made.normalizer = normalizers.Sequence(steps)
    # "<0x41>" in a text is six letters, and no byte
    made.pre_tokenizer = pre_tokenizers.Split(Regex("<(?=0x[0-9A-F]{2}>)"), "merged_with_previous")
    first = [decoders.Replace(_BLANK, " "), decoders.ByteFallback()]
    made.decoder = _decoder(first, prefix=own.add_dummy_prefix)
    return made


def words(numbers: Mapping[str, int], line_end: str) -> Tokenizer:
    """Words between blanks, each led by one but those symbols that text has not."""
    made = Tokenizer(models.WordLevel(dict(numbers), unk_token="<unk>"))
    made.normalizer = _lines(line_end, f"[{_SPACE}]", strip=True, prefix=True)
    made.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_next")
    made.decoder = _decoder([], prefix=True)
    return made


def classified_words(numbers: Mapping[str, int], *, tokenised: bool | None) -> Tokenizer:
    """Words of a classifier's texts, as `split_words` has them."""
    made = Tokenizer(models.WordLevel(dict(numbers), unk_token="<unk>"))
    # as Python's str.lower, which writes a sigma at a word's end in another way
    sigma = _replace(r"(?<=\p{L})\u03a3(?!\p{L})", "\u03c2")
    made.normalizer = normalizers.Sequence([sigma, normalizers.Lowercase()])
    word = Regex(f"[^{_SPACE}]+" if tokenised else f"{_LETTER}+|[^{_SPACE}]")
    made.pre_tokenizer = pre_tokenizers.Split(word, "removed", invert=True)
    return made


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
    end = "</s> ?" if prefix else "</s>"
    first = [*first, decoders.Fuse(), decoders.Replace(Regex(rf"\A{end}"), "")]
    return decoders.Sequence([*first, decoders.Replace(Regex(end), "\n")])
