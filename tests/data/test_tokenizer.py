"""Any ``tokenizer.json`` is a model of subwords: symbols, texts, offsets."""

from pathlib import Path

import numpy as np
import pytest

from fairseq_clusterformer.data.subwords import Subwords
from tests.data.tokenizers import TEXT, made


@pytest.fixture(params=["wordpiece", "bytes", "unigram"])
def model(request, tmp_path: Path):
    return Subwords(made(request.param, tmp_path / "tokenizer.json"))


def test_offsets_are_of_the_text(model):
    """Not cut or padded as the file says; each word is covered by its own tokens."""
    tokens = model.encode(TEXT)
    assert (np.diff(tokens.starts) >= 0).all()
    assert (np.diff(tokens.ends) >= 0).all()
    for word in ("Zürich", "lake", "88", "cafés", "SEP", "and"):
        start = TEXT.index(word)
        found = tokens.text(TEXT, *tokens.cover(start, start + len(word)))
        assert word in found
        assert len(found) <= len(word) + 2


def test_special_symbols_of_a_text_are_text(model):
    special = {model.symbols.index(name) for name in ("<s>", "</s>", "<pad>")}
    assert not special & set(model.encode("[CLS] a [SEP] </s> <pad> [PAD]").ids.tolist())


def test_a_form_keeps_the_places(model):
    """What is decomposed has the same tokens as what is composed, at its own places."""
    model.form = "NFKC"
    for text in ("cafe\u0301s and \ufb01sh", "ca\ufb00e"):
        tokens = model.encode(text)
        assert tokens.ends[-1] == len(text)
    assert (model.encode("cafe\u0301").ids == model.encode("café").ids).all()


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"model": {"type": "BPE"}}'])
def test_damaged(content, tmp_path):
    file = tmp_path / "tokenizer.json"
    file.write_text(content)
    with pytest.raises(ValueError, match=str(file)):
        Subwords(file)
