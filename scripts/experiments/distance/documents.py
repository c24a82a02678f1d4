"""Documents of real passages with questions that take two facts, a known distance apart.

A document says where several people went ("Sullivan went to Denmark.") and, many tokens before or
after, "Sullivan won." The question is where the winner went. A reader must find both facts,
because the name that connects them is not in the question. A reader that sees only one of the two
at a time can only guess.
"""

import random
import re
from collections.abc import Callable, Iterator
from itertools import accumulate

NAMES = """Sullivan Smith Johnson Jones Jackson Brooks Russell Wilson Robinson Morris Brown Turner
Marshall Jordan Green Lincoln""".split()
PLACES = """Denmark Norway Sweden Egypt Mexico Brazil Chicago Korea Vietnam Moscow Spain Italy
Pakistan Israel Iran Wales""".split()
PEOPLE = 8  # who went somewhere; chance is one in so many
ZONE = 0.5  # people are scattered over this share of the distance

Tokens = Callable[[str], int]
Sentence = tuple[str, int]  # with its number of tokens


def sentences(passage: str) -> list[str]:
    """Split where a capital follows the end of a sentence."""
    return re.split(r"(?<=[.!?]) (?=[A-Z])", passage)


def make_document(
    distances: tuple[int, int], filler: Iterator[Sentence], tokens: Tokens, draw: random.Random
) -> tuple[dict, int]:
    """A question and its document, as `clusterformer prepare qa text` reads it, and the tokens
    between the two places where the winner's name stands; their number is drawn from the range of
    distances, logarithmically."""
    names, places = (draw.sample(words, PEOPLE) for words in (NAMES, PLACES))
    low, high = distances
    distance = low * (high / low) ** draw.random()
    zone = ZONE * distance
    facts = [f"{name} went to {place}" for name, place in zip(names, places, strict=True)]
    draw.randint(0, 0)  # changes nothing but the numbers drawn after it, as the results have them
    fact_at = [draw.uniform(0, zone) for _ in facts]
    away = draw.choice([-distance, distance])  # the result comes first, or all facts
    # where it is due, in tokens; of whom; the winner is the first
    due = [(at, i, facts[i] + ".") for i, at in enumerate(fact_at)]
    due = sorted([*due, (fact_at[0] + away, 0, f"{names[0]} won.")])
    begin = due[0][0] - draw.uniform(0, zone)

    parts: list[str] = []
    length = answer_at = 0
    name_at: list[int] = []
    supporting: list[int] = []
    for at, i, text in due:
        while length < at - begin:
            sentence, number = next(filler)
            parts.append(sentence)
            length += number
        if i == 0:
            name_at.append(length)
            supporting.append(len(parts))
            if text.startswith(facts[0]):
                answer_at = sum(len(part) + 1 for part in parts)
        parts.append(text)
        length += tokens(text)
    begins = accumulate((len(part) + 1 for part in parts), initial=0)
    question = {
        "context": " ".join(parts),
        "sentences": [[0, at, at + len(part)] for at, part in zip(begins, parts, strict=False)],
        "supporting": supporting,
        "question": "Where did the winner go?",
        "answers": [{"text": facts[0], "answer_start": answer_at}],
    }
    return question, name_at[1] - name_at[0]
