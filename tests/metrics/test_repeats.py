"""Which tokens repeat what a text has said before, and how far back."""

import random

from fairseq_clusterformer.metrics.repeats import (
    count_identifiers,
    count_pairs,
    repeated_identifiers,
    repeated_pairs,
)


def test_pairs():
    assert repeated_pairs([1, 2, 3, 1, 2, 1, 2, 3], {}, 0) == [0, 0, 0, 0, 3, 0, 2, 5]


def test_known_pairs_are_left_out():
    known = count_pairs([[1, 2, 9], [1, 2]])
    assert known == {(1, 2): 2, (2, 9): 1}
    assert repeated_pairs([1, 2, 9, 1, 2, 9], known, 1) == [0, 0, 0, 0, 0, 3]


def test_letters_after_those_that_make_an_identifier_unique():
    text = b"alpha alpine omega; alpha"
    #       0123456789          20: "alp" fits two, "alph" one: "a" alone is left
    assert repeated_identifiers(text, {}, 0) == [0] * 24 + [20]
    assert repeated_identifiers(b"omega(x) omega", {}, 0) == [0] * 10 + [9] * 4


def test_the_last_time_counts():
    assert repeated_identifiers(b"omega omega omega", {}, 0)[-1] == 6


def test_a_longer_identifier_begins_alike():
    # at the end of "name" it could still be "name_of": no letter of it is sure
    assert repeated_identifiers(b"name name_of name", {}, 0) == [0] * 17


def test_known_identifiers_are_left_out():
    known = count_identifiers([b"self.omega = self", b"abc"])
    assert known == {b"self": 2, b"omega": 1}
    found = repeated_identifiers(b"self omega self omega", known, 1)
    assert found == [0] * 17 + [11] * 4


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
        assert repeated_identifiers(text, {}, 0) == expected[:-1]
