"""Which tokens repeat what a text has said before, and how far back."""

import random

from fairseq_clusterformer.metrics.repeats import repeated_identifiers


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
