"""bAbI's tasks (Weston et al. 2015), whose stories come with the lines that answer a question."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from fairseq_clusterformer.corpora.lines import raw_lines
from fairseq_clusterformer.corpora.question_answering.distant_supervision import (
    find_answers,
    in_sentences,
)
from fairseq_clusterformer.corpora.question_answering.records import (
    Drops,
    Items,
    Paragraph,
    Record,
    Sentence,
    Unusable,
    convert,
    foreign,
)

_LINE = re.compile(r"(\d+) (.*)")


def babi(path: Path, drops: Drops, *, keep_unfound: bool = False) -> Iterator[Record]:
    """Yield the records of a task's file: each question with what its story said before it.

    A line is a number and a sentence, or a number, a question, its answer and the numbers of the
    supporting lines, separated by tabs; number 1 begins a story. An answer is "yes", "no", or a
    word, which is searched in the supporting sentences first, then in the whole story.

    Args:
        keep_unfound: keep questions whose answer does not stand in the story.
    """

    def to_record(item: Mapping) -> Record:
        text, sentences, numbers = "", [], {}
        for number, sentence in item["told"].items():
            text += " " if text else ""
            numbers[number] = len(sentences)
            sentences.append(Sentence(0, len(text), len(text) + len(sentence)))
            text += sentence
        if missing := [number for number in item["facts"] if number not in numbers]:
            raise Unusable("no such line", f"supporting line {missing[0]}")
        supporting = sorted({numbers[number] for number in item["facts"]})
        paragraphs, answer = (Paragraph("", text),), item["answer"]
        found = find_answers([answer], paragraphs) if answer not in ("yes", "no") else ()
        facts = [sentences[number] for number in supporting]
        record = Record(
            id=item["id"],
            question=item["question"],
            paragraphs=paragraphs,
            answers=in_sentences(found, facts),
            texts=(answer,),
            yes_no=answer if answer in ("yes", "no") else None,
            document=item["story"],
            sentences=tuple(sentences),
            supporting=tuple(supporting),
        )
        if not (record.answers or record.yes_no or keep_unfound):
            raise Unusable("answer not found", f"{answer!r} is not in the story of {item['id']}")
        return record

    return convert(_questions(path), to_record, drops)


def _questions(path: Path) -> Items:
    name, story, told, questions = path.name.partition(".")[0], 0, {}, 0
    for line_number, line in enumerate(raw_lines(path), 1):
        match = _LINE.fullmatch(line.decode().rstrip())
        if not match:
            raise foreign(path, "lines of bAbI, a number and a sentence")
        number, (text, *rest) = match[1], match[2].split("\t")
        if number == "1":
            story, told = story + 1, {}
        if not rest:
            told[number] = text.strip()
            continue
        questions += 1
        yield (
            f"{path}: line {line_number:,}",
            {
                "id": f"{name}-{questions}",
                "story": f"{name} story {story}",
                "question": text.strip(),
                "answer": rest[0].strip(),
                "facts": rest[1].split() if rest[1:] else [],
                "told": dict(told),
            },
        )
