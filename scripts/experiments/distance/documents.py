"""Documents of real passages with questions that take two facts, a known distance apart.

A document says where several people went ("Sullivan went to Denmark.") and, many tokens before or
after, "Sullivan won." The question is where the winner went. A reader must find both facts,
because the name that connects them is not in the question. A reader that sees only one of the two
at a time can only guess.
"""

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

NAMES = """Sullivan Smith Johnson Jones Jackson Brooks Russell Wilson Robinson Morris Brown Turner
Marshall Jordan Green Lincoln Bernstein Orwell Kirby Nesmith Kemp White Taylor Davis""".split()
PLACES = """Denmark Norway Sweden Egypt Mexico Brazil Chicago Korea Vietnam Moscow Spain Italy
Pakistan Israel Iran Wales Ireland Texas Kansas Oregon Singapore Morocco Lebanon Austria""".split()
WON, LOST = "{name} won.", "{name} lost."
FACT = "{name} went to {place}"
QUESTION = "Where did the winner go?"

Tokens = Callable[[str], int]
Sentence = tuple[str, int]  # with its number of tokens


@dataclass(frozen=True)
class Stage:
    """Documents of one kind.

    Args:
        documents: how many.
        distance: tokens from one of the two facts to the other, drawn from this range,
            logarithmically.
        zone: tokens over which people are scattered, as a share of the distance.
        people: who went somewhere; chance is one in so many.
        losers: how many others lost, which stands as far from where they went, drawn from this
            range. With none, the winner's is the only name that stands twice.
    """

    documents: int
    distance: tuple[int, int]
    zone: float = 0.5
    people: int = 8
    losers: tuple[int, int] = (0, 0)


def sentences(passage: str) -> list[str]:
    """Split where a capital follows the end of a sentence."""
    return re.split(r"(?<=[.!?]) (?=[A-Z])", passage)


def make_document(
    stage: Stage,
    words: tuple[Sequence[str], Sequence[str]],
    filler: Iterator[Sentence],
    tokens: Tokens,
    draw: random.Random,
) -> tuple[dict, int]:
    """A question and its document.

    Args:
        words: names and places, of which people are drawn, none sharing a word.
        filler: sentences of passages.

    Returns:
        ``context``, ``question`` and ``answers`` as SQuAD's JSON has them, and the tokens between
        the two places where the winner's name stands.
    """
    names, places = (draw.sample(of, stage.people) for of in words)
    low, high = stage.distance
    distance = low * (high / low) ** draw.random()
    zone = stage.zone * distance
    facts = [FACT.format(name=n, place=p) for n, p in zip(names, places, strict=True)]
    results = [WON.format(name=names[0])] + [
        LOST.format(name=name) for name in names[1 : 1 + draw.randint(*stage.losers)]
    ]
    fact_at = [draw.uniform(0, zone) for _ in facts]
    away = draw.choice([-distance, distance])  # all results come first, or all facts
    # where it is due, in tokens; of whom
    due = [(at, i, facts[i] + ".") for i, at in enumerate(fact_at)]
    due += [(fact_at[i] + away, i, result) for i, result in enumerate(results)]
    due.sort()
    begin = due[0][0] - draw.uniform(0, zone)

    parts: list[str] = []
    length = characters = 0
    name_at: list[int] = []
    answer_at = None

    def put(text: str, number: int) -> None:
        nonlocal length, characters
        parts.append(text)
        length += number
        characters += len(text) + 1

    for at, i, text in due:
        while length < at - begin:
            put(*next(filler))
        if i == 0:
            name_at.append(length)
            if text.startswith(facts[0]):
                answer_at = characters
        put(text, tokens(text))
    question = {
        "context": " ".join(parts),
        "question": QUESTION,
        "answers": [{"text": facts[0], "answer_start": answer_at}],
    }
    return question, name_at[1] - name_at[0]
