"""Bits by position, and on what a text has had before."""

import math
import random

import pytest
import torch

from fairseq_clusterformer.corpora.binarize import symbol_dictionary
from fairseq_clusterformer.data.characters import byte_symbols
from fairseq_clusterformer.data.coding import ByteCoding, TextCoding
from fairseq_clusterformer.use.perplexity import Breakdown


def test_bytes():
    coding = ByteCoding(symbol_dictionary(byte_symbols()))
    text = b"omega" + b" " * 95 + b"omega" + b" " * 25 + b"omega"
    target = coding.encode(text)
    target[-6] = 2  # what is no byte ends an identifier as well
    bits = torch.arange(len(text)) / 10
    breakdown = Breakdown(coding)
    for _ in range(2):  # blocks add up
        breakdown.add(target.roll(1), target, -bits * math.log(2))
    found = breakdown.result()
    assert found["bits by position"] == [
        {"from": 0, "to": 64, "tokens": 128, "bits": pytest.approx(bits[:64].mean().item())},
        {"from": 64, "to": 128, "tokens": 128, "bits": pytest.approx(bits[64:128].mean().item())},
        {"from": 128, "to": 256, "tokens": 14, "bits": pytest.approx(bits[128:].mean().item())},
    ]
    # "mega" at 131 to 134, 30 back, and at 101 to 104, 100 back
    assert found["bits on repeats by distance"] == [
        {"from": 0, "to": 64, "tokens": 8, "bits": pytest.approx(13.25)},
        {"from": 64, "to": 128, "tokens": 8, "bits": pytest.approx(10.25)},
    ]
    known = Breakdown(coding, [coding.encode("omega omega")] * 11)
    known.add(target.roll(1), target, -bits)
    assert known.result()["bits on repeats by distance"] == []
    known = Breakdown(coding, [coding.encode("omega omega")] * 11, rare=22)
    known.add(target.roll(1), target, -bits)
    assert [row["tokens"] for row in known.result()["bits on repeats by distance"]] == [4, 4]


@pytest.mark.parametrize("front", [[], [0]])
def test_words_repeat_in_pairs(front):
    """Also behind ``<s>``, after which the first word is not scored."""
    coding = TextCoding(symbol_dictionary("abc"))
    a, b, c = (coding.dictionary.index(word) for word in "abc")
    source, target = torch.tensor([a, b, c, a, b, c]), torch.tensor([b, c, a, b, c, c])
    breakdown = Breakdown(coding, [torch.tensor([b, c] * 21)])
    source = torch.cat([torch.tensor(front, dtype=torch.int64), source])
    breakdown.add(source, target, torch.arange(6) * -math.log(2))
    (found,) = breakdown.result()["bits on repeats by distance"]
    assert found == {"from": 0, "to": 64, "tokens": 1, "bits": pytest.approx(3.0)}  # a b, again


def test_identifiers_against_plain_loops():
    random.seed(1)
    words = [b"".join(random.choices([b"a", b"b", b"_"], k=random.randint(4, 6))) for _ in "x" * 9]
    for _ in range(20):
        said = random.choices(words, k=30)
        text, expected, before, begin = b" ".join(said), [], {}, 0
        for word in said:
            others = [w for w in before if w != word]
            for i in range(len(word)):
                sure = word in before and not any(w[:i] == word[:i] for w in others) and i > 0
                expected.append(begin - before[word] if sure else 0)
            before[word] = begin
            begin += len(word) + 1
            expected.append(0)
        found = Breakdown(ByteCoding(symbol_dictionary(byte_symbols()))).repeated_identifiers(text)
        assert found == expected[:-1]
