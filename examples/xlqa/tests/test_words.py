"""Words of subwords, against a loop over strings; vectors of words, and how they are learned."""

import gzip
import random
from pathlib import Path

import pytest
import torch
from torch.nn.functional import normalize

from fairseq_clusterformer.corpora.binarize import symbol_dictionary
from fairseq_clusterformer.data import subwords
from fairseq_clusterformer.data.characters import joins, words_of
from fairseq_clusterformer.models.pretrained import read_word_vectors
from tests.data.subword_models import TEXTS, write_gpt2, write_sentencepiece
from tests.pages import blocks
from xlqa.tests.test_readers import make_task
from xlqa.word_reader import Speller, VectorTable, spelling_code

README = Path(__file__).parents[1] / "README.md"


def by_hand(row: list[int], texts: list[str], mask: list[bool]) -> list[list[int]]:
    """The tokens of each word."""
    words: list[list[int]] = []
    for place, token in enumerate(row):
        before, text = texts[row[place - 1]] if place else "", texts[token]
        joined = (not text or joins(text[0])) and (not before.strip() or joins(before[-1]))
        joined = (joined or before == " ") and not text.startswith(" ")
        if place and joined and mask[place] == mask[place - 1] and min(row[place - 1 :][:2]) >= 4:
            words[-1].append(place)
        else:
            words.append([place])
    return words


@pytest.mark.parametrize("masked", [False, True])
def test_words_of_tokens(masked):
    task = make_task()
    speller, texts = Speller(task.source_dictionary, task.symbol_texts), task.symbol_texts
    draw = random.Random(3)
    rows = [draw.choices([0, 3, *range(4, len(texts))], k=length) for length in (1, 30, 17, 0, 8)]
    tokens = torch.full((5, 30), 1)
    mask = torch.rand(5, 30) < 0.7 if masked else torch.ones(5, 30, dtype=torch.bool)
    for row, given in zip(tokens, rows, strict=True):
        row[: len(given)] = torch.tensor(given)
    found, alphabet = speller(tokens, mask if masked else None), {}
    for i, row in enumerate(rows):
        words = by_hand(row, texts, mask[i].tolist())
        number = len(words)
        assert found.padding[i].tolist() == [k >= number for k in range(len(found.padding[i]))]
        assert found.first[i, :number].tolist() == [word[0] for word in words]
        assert found.last[i, :number].tolist() == [word[-1] for word in words]
        of_token = [k for k, word in enumerate(words) for _ in word]
        assert found.of_token[i, : len(row)].tolist() == of_token
        for k, word in enumerate(words):
            spelt = "".join(texts[row[place]] for place in word[:8]).strip()
            codes = [spelling_code(spelt), spelling_code(spelt.lower())]
            assert found.codes[i, k].tolist() == codes, spelt
            own = found.letters[i, k]
            assert own.ne(0).tolist() == [place < len(spelt) for place in range(16)]
            for letter, number in zip(spelt, own.tolist(), strict=False):
                assert alphabet.setdefault(letter, number) == number
            pieces = [row[place] for place in word[:8]]
            assert found.pieces[i, k].tolist()[: len(pieces)] == pieces
            assert set(found.pieces[i, k].tolist()[len(pieces) :]) <= {1}
    assert len({*alphabet.values()}) == len(alphabet) > 10


@pytest.mark.parametrize("form", ["gpt2", "sentencepiece"])
def test_words_are_those_that_have_vectors(form, tmp_path):
    """Of real models of subwords: what `words_of` says, by which vectors are learned."""
    if form == "gpt2":
        write_gpt2(tmp_path)
    else:
        write_sentencepiece(tmp_path / subwords.MODEL)
    model = subwords.load_prepared(tmp_path)
    dictionary = symbol_dictionary(model.symbols)
    texts = subwords.texts_of(tmp_path, dictionary)
    assert len(texts) == len(dictionary)
    speller = Speller(dictionary, texts)
    for text in (TEXTS[0].split("\t")[0], TEXTS[1].replace("'", " ").strip()):
        ids = [dictionary.index(model.symbols[id_]) for id_ in model.encode(text).ids]
        codes = speller(torch.tensor([ids])).codes[0, :, 0].tolist()
        assert codes == [spelling_code(word) for word in words_of(text)]


def test_vectors_are_found_as_spelt_or_in_lower_case():
    """A checkpoint brings its words."""
    table, other = VectorTable(3).double(), VectorTable(3).double()
    vectors = torch.randn(3, 3).double()
    table.set(["The", "the", "un"], vectors)
    other.upgrade_state_dict_named({f"v.{n}": t for n, t in table.state_dict().items()}, "v")
    other.load_state_dict(table.state_dict())
    words = ["The", "the", "THE", "UN", "Un", "none", ""]
    codes = [[spelling_code(word), spelling_code(word.lower())] for word in words]
    for each in (table, other):
        found = each(torch.tensor([codes]))[0]
        for row, place in enumerate([0, 1, 1, 2, 2, None, None]):
            assert torch.equal(found[row], each.unknown if place is None else vectors[place])
    assert not VectorTable(3)(torch.tensor([codes])).ne(0).all(-1).logical_not().any()


def test_words_of_like_places_come_close(tmp_path, monkeypatch):
    """By the Python in the README. A word of one class stands in the same places as another."""
    pytest.importorskip("gensim")
    classes = [[f"{letter}{number}" for number in range(6)] for letter in "abcd"]
    draw, folder = random.Random(1), tmp_path / "my-texts"
    folder.mkdir()
    for pack, name in ((bytes, "0.txt"), (gzip.compress, "1.txt.gz")):
        lines = (" ".join(map(draw.choice, classes)) + ".\n" for _ in range(7000))
        (folder / name).write_bytes(pack("".join(lines).encode()))
    monkeypatch.chdir(tmp_path)
    (code,) = (block for block in blocks(README, "python") if "Word2Vec" in block)
    exec(code, {})
    words, found = read_word_vectors("vectors.txt", 100, "--word-dim", known=sum(classes, []))
    assert len(words) == 24
    likeness = normalize(found, dim=-1) @ normalize(found, dim=-1).T
    nearest = likeness.fill_diagonal_(-1).argmax(1).tolist()
    right = [word[0] == words[near][0] for word, near in zip(words, nearest, strict=True)]
    assert sum(right) > 21
