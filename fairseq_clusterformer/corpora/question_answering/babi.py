"""bAbI (Weston et al. 2015): stories of short sentences, some of which support an answer."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from ..lines import raw_lines
from .distant_supervision import in_sentences
from .records import Drops, Items, Record, Unusable, convert, foreign
from .squad import question_record


def babi(path: Path, drops: Drops) -> Iterator[Record]:
    """Yield the records of a task's file (Weston et al. 2015): each question with what its story
    said before it. An answer other than yes and no is searched in the sentences that support it,
    then in the whole story."""

    def to_record(item: Mapping) -> Record:
        text, sentences, numbers = "", [], {}
        for number, sentence in item["told"].items():
            text += " " if text else ""
            numbers[number] = len(sentences)
            sentences.append([0, len(text), len(text) + len(sentence)])
            text += sentence
        if missing := [number for number in item["facts"] if number not in numbers]:
            raise Unusable("no such line", f"supporting line {missing[0]}")
        supporting = [numbers[number] for number in item["facts"]]
        found = {"context": text, "sentences": sentences, "supporting": supporting}
        record = question_record({**item, **found}, drops)
        facts = [record.sentences[number] for number in record.supporting]
        return replace(record, answers=in_sentences(record.answers, facts))

    return convert(_questions(path), to_record, drops)


def _questions(path: Path) -> Items:
    """A line is a number and a sentence, or a number, a question, its answer and the numbers of
    the supporting lines, between tabs; number 1 begins a story."""
    name, story, told, questions = path.name.partition(".")[0], 0, {}, 0
    for line_number, line in enumerate(raw_lines(path), 1):
        number, _, text = line.decode().rstrip().partition(" ")
        if not (number.isdecimal() and text):
            raise foreign(path, "lines of bAbI, a number and a sentence")
        text, *rest = map(str.strip, text.split("\t"))
        if number == "1":
            story, told = story + 1, {}
        if not rest:
            told[number] = text
            continue
        questions += 1
        item = {"id": f"{name}-{questions}", "document": f"{name} story {story}"}
        item |= {"question": text, "answers": [rest[0]], "told": dict(told)}
        item["facts"] = rest[1].split() if rest[1:] else []
        yield f"{path}: line {line_number:,}", item
