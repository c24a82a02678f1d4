"""Documents of real passages with questions that take two facts, a known distance apart.

A document tells of several people: "Henry was also called Sullivan." and, so many tokens before
or behind, "Sullivan came from Denmark." Asked where Henry came from, a reader must find both, and
what joins them, Sullivan, is not in the question. All people of a document are equally far from
their places, and all links come first, or all facts: a reader that sees one fact at a time can but
guess, and none is near the link of somebody else, which would tell whose it is not.
"""

import heapq
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

NAMES = """Henry James William Robert Peter Paul David Richard Thomas Edward Michael Alexander
Joseph Elizabeth Francis Albert Arthur Frank Jack Mark Martin Stephen Vincent Frederick Philip Adam
Victoria Louis Charles George Maria Caroline John Daniel Andrew Simon Anna Mary Margaret Walter
Benjamin Samuel""".split()
ALIASES = """Smith Johnson Jones Jackson Brooks Russell Wilson Robinson Morris Brown Turner
Sullivan Marshall Jordan Green Lincoln Bernstein Orwell Kirby Nesmith Kemp White Taylor Davis Scott
Harris Clark Lewis Walker Hall Allen Young Wright Adams Nelson Carter Mitchell Roberts Phillips
Campbell Parker Evans Edwards Collins Stewart Murray Moore Miller""".split()
PLACES = """Denmark Norway Sweden Egypt Mexico Brazil Chicago Korea Vietnam Moscow Spain Italy
Pakistan Israel Iran Wales Ireland Texas Kansas Oregon Singapore Morocco Lebanon Austria Greece
Syria Portugal Sydney Panama Oxford Berlin Madrid Miami Canada Japan Russia Scotland Poland Hungary
Cambridge Boston Houston Toronto Melbourne Jerusalem Virginia Florida""".split()
LINK = "{name} was also called {alias}."
FACT = "{alias} came from {place}."
QUESTION = "Where did {asked} come from?"

Tokens = Callable[[str], int]
Sentence = tuple[str, int]  # with its number of tokens


@dataclass(frozen=True)
class Words:
    """Equally many names, aliases and places, each a token."""

    names: tuple[str, ...]
    aliases: tuple[str, ...]
    places: tuple[str, ...]

    def all(self) -> set[str]:
        return {*self.names, *self.aliases, *self.places}


@dataclass(frozen=True)
class Person:
    """What a document tells of one."""

    name: str
    alias: str
    place: str


@dataclass(frozen=True)
class Stage:
    """Documents of one kind.

    Args:
        documents: how many.
        people: whom each tells of; chance is one in so many.
        distance: tokens from one fact of a person to the other, drawn from this range; None: facts
            stand one behind the other.
        zone: tokens over which the first facts of all are scattered; less than the distance.
        direct: share of the questions that name the alias, and so take one fact.
        gaps: where facts stand behind one another, the share that a short sentence precedes.
        regular: some words never go together, which is learned sooner than reading, and from which
            reading is learned: see :func:`draw_people`.
    """

    documents: int
    people: int
    distance: tuple[int, int] | None = None
    zone: int = 0
    direct: float = 0.0
    gaps: float = 0.0
    regular: bool = False


def choose_words(number: int) -> Words:
    """The first of each list.

    Raises:
        ValueError: if there are not as many.
    """
    if number > (most := min(map(len, (NAMES, ALIASES, PLACES)))):
        raise ValueError(f"{number}; allowed: up to {most}")
    return Words(*(tuple(words[:number]) for words in (NAMES, ALIASES, PLACES)))


def draw_people(
    words: Words, number: int, draw: random.Random, *, regular: bool = False
) -> list[Person]:
    """People who share no word. All words go together equally often; but of regular ones no two
    words do whose numbers (a name's and its alias's, an alias's and its place's) add up to a
    multiple of four."""

    def partners(of: Sequence[int]) -> list[int]:
        left = draw.sample(range(len(words.names)), len(words.names))
        taken: list[int] = []
        for one in of:
            fit = [other for other in left if not (regular and (one + other) % 4 == 0)]
            taken += fit[:1]
            left = [other for other in left if other not in taken]
        return taken

    while True:
        names = draw.sample(range(len(words.names)), number)
        aliases = partners(names)
        places = partners(aliases)
        if len(aliases) == len(places) == number:
            rows = zip(names, aliases, places, strict=True)
            return [Person(words.names[n], words.aliases[a], words.places[p]) for n, a, p in rows]


def sentences(passage: str) -> list[str]:
    """Split where a capital follows the end of a sentence."""
    return re.split(r"(?<=[.!?]) (?=[A-Z])", passage)


def make_document(
    stage: Stage,
    words: Words,
    filler: Iterator[Sentence],
    tokens: Tokens,
    draw: random.Random,
) -> tuple[dict, int]:
    """A question and its document.

    Args:
        filler: sentences of passages; of a stage without distance, short ones.

    Returns:
        ``context``, ``question`` and ``answers`` as SQuAD's JSON has them, and the tokens between
        the two places where the asked person's alias stands.
    """
    people = draw_people(words, stage.people, draw, regular=stage.regular)
    distance = round(draw.uniform(*stage.distance)) if stage.distance else 0
    ties = count()
    links_first = draw.random() < 0.5
    # where it is due, in tokens; a tie; whose; whether it is the first of the two; whether a link
    waiting: list[tuple[float, int, Person, bool, bool]] = [
        (draw.uniform(0, stage.zone), next(ties), person, True, links_first)
        for person in draw.sample(people, len(people))
    ]
    heapq.heapify(waiting)
    parts: list[str] = []
    length = characters = 0
    alias_at: dict[Person, list[int]] = {person: [] for person in people}
    place_at: dict[Person, int] = {}
    asked = draw.choice(people)

    def put(text: str, number: int) -> None:
        nonlocal length, characters
        parts.append(text)
        length += number
        characters += len(text) + 1

    while waiting or length < stage.zone + distance:
        if stage.distance and not (waiting and waiting[0][0] <= length):
            put(*next(filler))
            continue
        _, _, person, is_first, is_link = heapq.heappop(waiting)
        if not stage.distance and draw.random() < stage.gaps:
            put(*next(filler))
        text = (LINK if is_link else FACT).format(**vars(person))
        before = text[: text.index(person.alias)].rstrip()
        alias_at[person].append(length + tokens(before))
        if not is_link:
            place_at[person] = characters + text.index(person.place)
        if is_first:
            due = length + distance if stage.distance else stage.zone + draw.random()
            heapq.heappush(waiting, (due, next(ties), person, False, not is_link))
        put(text, tokens(text))
    subject = asked.alias if draw.random() < stage.direct else asked.name
    question = {
        "context": " ".join(parts),
        "question": QUESTION.format(asked=subject),
        "answers": [{"text": asked.place, "answer_start": place_at[asked]}],
    }
    first, second = alias_at[asked]
    return question, second - first
