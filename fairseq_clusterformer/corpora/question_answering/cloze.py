"""Cloze questions, made from plain text, to train a reader before it has real questions.

A name or a number that stands in two sentences of a passage is a possible answer. One of these
sentences is the question, with "what" in its place; the rest of the passage is the document.
"""

import hashlib
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import regex

from fairseq_clusterformer.data import characters

from ..texts import documents
from .records import Drops, Items, Record, convert
from .squad import question_record

MASK = "what"
_SHORTEST, _LONGEST = 40, 200  # words of a passage: a line, or some that follow each other
_ASKED = range(6, 31)  # words of a question
_NAME = regex.compile(
    r"(?V1)(?<![\p{L}\p{N}])(?:\p{Lu}[\p{L}\p{M}]+(?:[ -]\p{Lu}[\p{L}\p{M}]+){0,3}"
    r"|\p{N}+(?:[.,]\p{N}+)*)(?![\p{L}\p{N}])"
)


def cloze_questions(
    path: Path,
    drops: Drops,
    *,
    document_separator: str | None = None,
    per_passage: int = 4,
    seed: int = 1,
) -> Iterator[Record]:
    """Yield the records of a file of plain text, at most `per_passage` from a passage, always the
    same ones. Raises UserError for a separator that is not in the file, or another encoding."""

    def items() -> Items:
        for number, (_, lines) in enumerate(documents([path], document_separator)):
            title, text = "", (line.decode().strip() for line in lines)
            for place, passage in enumerate(passages(text)):
                title = title or _digest(passage)
                draw = random.Random(f"{seed} {passage}")
                for question, context, answer in questions(passage, draw)[:per_passage]:
                    found = (m.start() for m in _NAME.finditer(context) if m.group() == answer)
                    item = {"id": _digest(f"{question}\n{context}"), "question": question}
                    item["answers"] = [{"text": answer, "answer_start": start} for start in found]
                    item |= {"context": context, "document": title}
                    yield f"{path}: document {number}, passage {place}", item

    return convert(items(), partial(question_record, drops=drops), drops)


def passages(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines, joined by blanks where they are short; what is too long is left out."""
    joined: list[str] = []
    count = 0
    for line in lines:
        words = len(line.split())
        if count + words > _LONGEST:
            joined, count = [], 0
        if words and words <= _LONGEST:
            joined.append(line)
            count += words
        if count >= _SHORTEST:
            yield " ".join(joined)
            joined, count = [], 0


def questions(passage: str, draw: random.Random) -> list[tuple[str, str, str]]:
    """Every question, document and answer of a passage, no answer twice, in drawn order."""
    sentences = [passage[start:end] for start, end in characters.sentences(passage)]
    places = defaultdict(list)  # of an answer: sentences, and where it begins there
    for number, sentence in enumerate(sentences):
        for match in _NAME.finditer(sentence):
            # a word may have its capital from the sentence's beginning
            if match.start() or " " in match.group() or match.group()[0].isdecimal():
                places[match.group()].append((number, match.start()))
    found = []
    for answer, where in places.items():
        elsewhere = len({number for number, _ in where}) > 1
        own = [
            (number, start)
            for number, start in where
            if len(sentences[number].split()) in _ASKED
            and sum(other == number for other, _ in where) == 1
        ]
        if elsewhere and own:
            number, start = draw.choice(own)
            asked = sentences[number]
            question = asked[:start] + MASK + asked[start + len(answer) :]
            rest = " ".join(sentences[:number] + sentences[number + 1 :])
            found.append((question, rest, answer))
    draw.shuffle(found)
    return found


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
