"""Pairs of texts, of which the second follows the first or not."""

import numpy as np
import pytest
import torch
from fairseq.data import Dictionary

from fairseq_clusterformer.corpora.binarize import symbol_dictionary
from fairseq_clusterformer.data.sentences import NextSentences

DOCUMENTS, LINES, WORDS = 6, 5, 4


class Lines(list):
    """As fairseq's indexed data."""

    @property
    def sizes(self) -> np.ndarray:
        return np.array([len(line) for line in self])


@pytest.fixture(scope="module")
def dictionary() -> Dictionary:
    """A word says where it stands: document, line, place."""
    return symbol_dictionary([*map(str, range(DOCUMENTS * LINES * WORDS)), "<mask>"])


def lines_of(dictionary: Dictionary, lines: int = LINES) -> Lines:
    found, eos = Lines(), torch.tensor([dictionary.eos()])
    for document in range(DOCUMENTS):
        for line in range(lines):
            first = (document * LINES + line) * WORDS + dictionary.nspecial
            found.append(torch.cat([torch.arange(first, first + WORDS), eos]))
        found.append(eos)
    return found


def texts(dictionary: Dictionary, sample: dict) -> list[np.ndarray]:
    """The places of a pair's words, unmasked, of either text."""
    tokens, target = sample["tokens"].numpy(), sample["target"].numpy()
    tokens = np.where(target == dictionary.pad(), tokens, target)
    assert tokens[0] == dictionary.bos()
    first, last = np.flatnonzero(tokens == dictionary.eos())
    assert last == len(tokens) - 1
    np.testing.assert_array_equal(sample["segments"], np.arange(len(tokens)) > first)
    return [part - dictionary.nspecial for part in (tokens[1:first], tokens[first + 1 : last])]


@pytest.mark.parametrize("length", [9, 14, 23, 64])
def test_what_follows_and_what_does_not(dictionary, length):
    data = NextSentences(lines_of(dictionary), dictionary, max_positions=length, seed=3)
    follows, seen = [], set()
    lengths: dict[int, list] = {0: [], 1: []}  # of both texts, by the label
    for epoch in range(1, 100):
        data.set_epoch(epoch)
        for index in range(len(data)):
            sample = data[index]
            a, b = texts(dictionary, sample)
            seen |= {*(a // WORDS).tolist()}
            assert min(len(a), len(b)) > 0
            assert len(a) + len(b) + 3 <= min(length, data.sizes[index])
            for part in (a, b):  # as in the document
                assert (np.diff(part) == 1).all()
                assert len({*(part // (LINES * WORDS)).tolist()}) == 1
            same = a[0] // (LINES * WORDS) == b[0] // (LINES * WORDS)
            assert sample["follows"] == same
            assert b[0] % WORDS == 0
            assert a[-1] % WORDS == WORDS - 1
            if same:
                assert b[0] == a[-1] + 1
            follows.append(sample["follows"])
            lengths[sample["follows"]].append((len(a), len(b)))
    assert seen >= {*range(0, DOCUMENTS * LINES, LINES)}  # the first lines
    # of five lines the last one is alone where two fill a pair
    assert np.mean(follows) == pytest.approx(1 / 3 if length == 9 else 1 / 2, abs=0.06)
    if length > 9:  # lengths do not tell the label
        assert {*lengths[1]} <= {*lengths[0]}
        others = [pair for pair in lengths[0] if pair not in lengths[1]]
        assert len(others) < 0.03 * len(lengths[0])  # no document was long enough


def test_words_to_guess():
    """They become the mask, wherever it stands among the symbols, stay, or become any other."""
    words = symbol_dictionary(["a", "<mask>", "b", "c", *map(str, range(40))])
    first, mask, eos = words.nspecial, words.index("<mask>"), words.eos()
    rows = [[*range(first + 2 + n, first + 12 + n), eos] for n in (0, 8)]
    lines = Lines(map(torch.tensor, (*rows, [eos], *rows, [eos])))
    options = {"guessed": 0.5, "kept": 0.25, "replaced": 0.25}
    data = NextSentences(lines, words, max_positions=64, **options)
    fates, others = {"mask": 0, "kept": 0, "other": 0}, set()
    for epoch in range(1, 300):
        data.set_epoch(epoch)
        sample = data[0]
        target = sample["target"]
        guessed = target.ne(words.pad())
        real = sample["tokens"].ge(first)
        assert not (guessed & ~real).any()  # neither <s> nor </s>
        assert guessed.sum() == round(0.5 * int(real.sum()))
        for token, right in zip(sample["tokens"][guessed], target[guessed], strict=True):
            fate = "mask" if token == mask else "kept" if token == right else "other"
            fates[fate] += 1
            others |= {int(token)} if fate == "other" else set()
    total = sum(fates.values())
    assert fates["mask"] / total == pytest.approx(0.5, abs=0.05)
    assert fates["kept"] / total == pytest.approx(0.25, abs=0.05)
    assert others == {*range(first, len(words))} - {mask}


def test_a_batch(dictionary):
    data = NextSentences(lines_of(dictionary), dictionary, max_positions=23)
    samples = [data[index] for index in (0, 1, 2)]
    batch = data.collater(samples)
    given = batch["net_input"]
    for row, sample in enumerate(samples):
        length = len(sample["tokens"])
        assert torch.equal(given["src_tokens"][row, :length], sample["tokens"])
        assert torch.equal(given["segments"][row, :length], sample["segments"])
        assert (given["src_tokens"][row, length:] == dictionary.pad()).all()
    assert batch["follows"].tolist() == [sample["follows"] for sample in samples]
    assert batch["ntokens"] == sum(len(sample["tokens"]) for sample in samples)
    again = data[1]
    assert torch.equal(again["tokens"], samples[1]["tokens"])
    data.set_epoch(2)
    assert not all(torch.equal(data[i]["tokens"], s["tokens"]) for i, s in enumerate(samples))


def test_documents_of_one_line_are_never_continued_and_one_is_refused(dictionary):
    data = NextSentences(lines_of(dictionary, lines=1), dictionary, max_positions=20)
    assert [data[index]["follows"] for index in range(len(data))] == [0] * DOCUMENTS
    with pytest.raises(ValueError, match="1 documents; allowed: two or more, with an empty line"):
        NextSentences(Lines(lines_of(dictionary)[:4]), dictionary, max_positions=20)
