"""Words of subwords, against a loop over strings."""

import random

import pytest
import torch
from fairseq.data import Dictionary

from fairseq_clusterformer.data import subwords
from fairseq_clusterformer.data.words import joins, words_of
from tests.data.subword_models import LOSSLESS, TEXTS, write_gpt2, write_sentencepiece
from xlqa.tests.word_readers import PIECES, make_task
from xlqa.words import Speller, VectorTable, spelling_code


def by_hand(row: list[int], texts: list[str], mask: list[bool]) -> list[list[int]]:
    """The tokens of each word."""
    words: list[list[int]] = []
    for place, token in enumerate(row):
        before = texts[row[place - 1]] if place else ""
        joined = (
            place > 0
            and mask[place] == mask[place - 1]
            and min(token, row[place - 1]) >= 4
            and not texts[token].startswith(" ")
            and (
                before == " "
                or (not texts[token] or joins(texts[token][0]))
                and (not before.strip() or joins(before[-1]))
            )
        )
        if joined:
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
    found = speller(tokens, mask if masked else None)
    for i, row in enumerate(rows):
        words = by_hand(row, texts, mask[i].tolist())
        number = len(words)
        assert (~found.padding[i]).sum() == number
        assert not found.padding[i, :number].any()
        assert found.first[i, :number].tolist() == [word[0] for word in words]
        assert found.last[i, :number].tolist() == [word[-1] for word in words]
        of_token = [k for k, word in enumerate(words) for _ in word]
        assert found.of_token[i, : len(row)].tolist() == of_token
        for k, word in enumerate(words):
            spelt = "".join(texts[row[place]] for place in word[:8]).strip()
            codes = [spelling_code(spelt), spelling_code(spelt.lower())]
            assert found.codes[i, k].tolist() == codes, spelt
            own = found.letters[i, k]
            assert own.ne(0).sum() == min(len(spelt), 16)
            assert not own[len(spelt) :].any()
            pieces = [row[place] for place in word[:8]]
            assert found.pieces[i, k].tolist()[: len(pieces)] == pieces
            assert set(found.pieces[i, k].tolist()[len(pieces) :]) <= {1}


def test_letters_are_told_apart():
    """The same letters by other subwords are the same word, other letters are not."""
    task = make_task()
    speller = Speller(task.source_dictionary, task.symbol_texts)
    index = {text: 4 + i for i, text in enumerate(PIECES)}
    ways = [[" x", "re"], [" ", "re"], [" x", "yz"], [" ", ".", "s"]]
    rows = torch.tensor([[index[t] for t in way] + [1] * (3 - len(way)) for way in ways])
    words = speller(rows)
    letters = words.letters[:, 0]
    assert letters[0, 1:3].equal(letters[1, :2])  # x|re and re
    assert letters[0, 0] == letters[2, 0]
    assert not letters[0, 1:3].equal(letters[2, 1:3])
    assert (~words.padding).sum(1).tolist() == [1, 1, 1, 2]


@pytest.mark.parametrize("form", ["gpt2", "sentencepiece"])
def test_words_are_those_that_have_vectors(form, tmp_path):
    """Of real models of subwords: what `words_of` says, which `vectors.py` learns."""
    if form == "gpt2":
        write_gpt2(tmp_path)
    else:
        write_sentencepiece(tmp_path / subwords.MODEL)
    model = subwords.load_prepared(tmp_path)
    dictionary = Dictionary()
    for symbol in model.symbols:
        dictionary.add_symbol(symbol)
    texts = subwords.texts_of(tmp_path, dictionary)
    assert len(texts) == len(dictionary)
    speller = Speller(dictionary, texts)
    for text in (TEXTS[0].split("\t")[0], TEXTS[1].replace("'", " ").strip()):
        ids = [dictionary.index(model.symbols[id_]) for id_ in model.encode(text).ids]
        words = speller(torch.tensor([ids]))
        codes = words.codes[0, :, 0].tolist()
        assert codes == [spelling_code(word) for word in words_of(text)]


def test_a_folder_with_a_dictionary_alone(tmp_path):
    dictionary = Dictionary()
    dictionary.add_symbol("word")
    assert subwords.texts_of(tmp_path, dictionary) == ["", "", "", "", " word"]


def test_vectors_are_found_as_spelt_or_in_lower_case():
    table = VectorTable(3).double()
    vectors = torch.randn(3, 3).double()
    table.set(["The", "the", "un"], vectors)
    words = ["The", "the", "THE", "UN", "Un", "none", ""]
    codes = [[spelling_code(word), spelling_code(word.lower())] for word in words]
    found = table(torch.tensor([codes]))[0]
    for row, place in enumerate([0, 1, 1, 2, 2, None, None]):
        expected = table.unknown if place is None else vectors[place]
        assert torch.equal(found[row], expected)
    assert not VectorTable(3)(torch.tensor([codes])).ne(0).all(-1).logical_not().any()


def test_a_checkpoint_brings_its_words():
    table, other = VectorTable(3), VectorTable(3)
    table.set(["a", "b"], torch.randn(2, 3))
    state = {f"v.{name}": tensor for name, tensor in table.state_dict().items()}
    other.upgrade_state_dict_named(state, "v")
    other.load_state_dict(table.state_dict())
    codes = torch.tensor([[[spelling_code("b")] * 2]])
    assert torch.equal(other(codes), table(codes))


def test_a_byte_that_is_a_letter_is_one(tmp_path):
    """Where a model has no piece for a letter; a part of a letter has no text."""
    model = subwords.load(write_sentencepiece(tmp_path / subwords.MODEL, **LOSSLESS))
    texts = dict(zip(model.symbols, model.texts, strict=True))
    assert (texts["<0x57>"], texts["<0xC3>"], texts["<unk>"]) == ("W", "", "")
