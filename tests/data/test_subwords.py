"""Subwords and characters: what a span of one is in the other, whatever the text."""

import json
import random

import numpy as np
import pytest
from fairseq.data.encoders.gpt2_bpe_utils import get_encoder

from fairseq_clusterformer.corpora.binarize import symbol_dictionary
from fairseq_clusterformer.data import subwords
from fairseq_clusterformer.data.characters import words_of
from fairseq_clusterformer.data.subwords import Subwords, Tokens
from fairseq_clusterformer.errors import UserError
from tests.data.subword_models import LOSSLESS, write_gpt2, write_sentencepiece
from tests.data.tokenizers import TEXT, made

# ASCII, white space of all kinds, marks that combine, letters of one to four bytes, emoji that
# are several characters, what normalisation makes longer or shorter, and controls.
CHARACTERS = (
    [*"aA1.'$ the cake ", "  ", "\t", "\n", "\r\n", "\u00a0", "\u2003", "\u3000"]
    + ["e\u0301", "n\u0303\u0323", "\u0301", "é", "ß", "東京", "हिन्दी", "ﬁ", "½", "㍿", "İ", "▁"]
    + ["🍰", "👩‍👩‍👧", "🇵🇱", "𝔘", "\u200b", "\ufeff", "\u202e", "\x00", "\x7f", "<0xC3>", "\ufffd"]
)


@pytest.fixture(scope="module", params=["gpt2", "sentencepiece"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subwords:
    folder = tmp_path_factory.mktemp("model")
    if request.param == "gpt2":
        return subwords.load(write_gpt2(folder))
    return subwords.load(write_sentencepiece(folder / "model", **LOSSLESS))


def random_text() -> str:
    return "".join(random.choices(CHARACTERS, k=random.randint(1, 40)))


def assert_sound(tokens: Tokens, text: str) -> None:
    assert (np.diff(tokens.starts) >= 0).all()
    assert (np.diff(tokens.ends) >= 0).all()
    assert (tokens.starts <= tokens.ends).all()
    if len(tokens):
        assert tokens.starts[0] >= 0
        assert tokens.ends[-1] <= len(text)


def test_any_span_of_any_text(model):
    """It is in its tokens; the first and the last hold some of it, and none beyond does."""
    for _ in range(400):
        text = random_text()
        tokens = model.encode(text)
        assert_sound(tokens, text)
        start, end = sorted(random.sample(range(len(text) + 1), 2))
        first, last = tokens.cover(start, end)
        shared = np.minimum(tokens.ends, end) - np.maximum(tokens.starts, start)
        assert shared[first] > 0 < shared[last - 1]
        assert (shared[:first] <= 0).all()
        assert (shared[last:] <= 0).all()
        assert text[start:end] in text[tokens.starts[first] : tokens.ends[last - 1]]


def test_gpt2_is_roberta_s(tmp_path):
    """Ids are those of fairseq's own encoder, and each token's bytes are its characters."""
    model = subwords.load(write_gpt2(tmp_path))
    bpe = get_encoder(*(str(tmp_path / name) for name in subwords.formats.GPT2_FILES))
    for _ in range(100):
        text = random_text()
        tokens = model.encode(text)
        assert tokens.ids.tolist() == bpe.encode(text)
        for i, id_ in enumerate(tokens.ids.tolist()):
            assert model.symbols[id_] == str(id_)
            token_bytes = bytes(bpe.byte_decoder[c] for c in bpe.decoder[id_])
            characters = text[tokens.starts[i] : tokens.ends[i]].encode()
            assert token_bytes in characters
            # no more than the one character at each end is not whole
            assert len(characters) - len(token_bytes) <= 6


def test_empty_tokens_are_in_no_cover():
    starts, ends = np.array([0, 1, 3, 3, 5, 5]), np.array([1, 1, 3, 5, 5, 7])
    tokens = Tokens(np.arange(6), starts, ends)
    assert tokens.cover(1, 4) == (3, 4)
    assert tokens.cover(2, 6) == (3, 6)
    assert tokens.cover(4, 5) == (3, 4)
    with pytest.raises(ValueError, match=r"\[1, 3\) are in no token"):
        tokens.cover(1, 3)


@pytest.mark.parametrize("name", ["vocab.bpe", "encoder.json", "x.model", "bpe.codes"])
def test_refuses_other_files(name, tmp_path):
    file = write_gpt2(tmp_path, merges=3) / name
    file.write_text("{ x")
    path = file if name in ("x.model", "bpe.codes") else tmp_path
    with pytest.raises(UserError, match=f"{path}: cannot be read .*; allowed: a "):
        subwords.load(path)


@pytest.mark.parametrize("piece", [{}, {"A": 0}, {"A": 4_000_000_000}])
def test_a_byte_without_a_number_of_its_own_is_refused(piece, tmp_path):
    """Or texts would lose it."""
    file = write_gpt2(tmp_path, merges=0) / "encoder.json"
    pieces = json.loads(file.read_text())
    del pieces["A"]
    file.write_text(json.dumps(pieces | piece))
    with pytest.raises(UserError, match="its pieces are not all bytes"):
        subwords.load(tmp_path)


@pytest.mark.parametrize("kind", ["wordpiece", "bytes", "unigram"])
def test_any_tokenizer(kind, tmp_path):
    """Its text is not cut or padded as the file says, and each word is covered by its own tokens;
    special symbols of a text are text."""
    model = Subwords(made(kind, tmp_path / "tokenizer.json"))
    tokens = model.encode(TEXT)
    assert_sound(tokens, TEXT)
    for word in ("Zürich", "lake", "88", "cafés", "SEP", "and"):
        start = TEXT.index(word)
        first, last = tokens.cover(start, start + len(word))
        found = TEXT[tokens.starts[first] : tokens.ends[last - 1]].strip()
        assert word in found
        assert len(found) <= len(word) + 2
    special = {model.symbols.index(name) for name in ("<s>", "</s>", "<pad>")}
    assert not special & set(model.encode("[CLS] a [SEP] </s> <pad> [PAD]").ids.tolist())
    assert not {"<s>", "</s>", "<pad>", "<unk>"} & {*model.split("a </s> <s> <pad> <unk>")}


def test_what_symbols_stand_for(tmp_path):
    """A dictionary alone has words; a byte may be a letter, a part of a letter has no text."""
    assert subwords.texts_of(tmp_path, symbol_dictionary(["word"])) == ["", "", "", "", " word"]
    model = subwords.load(write_sentencepiece(tmp_path / subwords.MODEL, **LOSSLESS))
    texts = dict(zip(model.symbols, model.texts, strict=True))
    assert (texts["<0x57>"], texts["<0xC3>"], texts["<unk>"]) == ("W", "", "")


def test_words():
    assert words_of("Don't (re-)use 1950s cafe\u0301, x_y") == (
        ["Don", "'", "t", "(", "re", "-", ")", "use", "1950s", "cafe\u0301", ",", "x", "_", "y"]
    )
    assert words_of(" \u6771\u4eac a\n") == ["\u6771", "\u4eac", "a"]
