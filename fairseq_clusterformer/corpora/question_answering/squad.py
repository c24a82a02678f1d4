"""SQuAD and QED, which say where in one paragraph an answer stands.

Other paragraphs can be put around it to make a long document.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from .records import (
    Drops,
    GoldAnswer,
    Items,
    Paragraph,
    Record,
    Unusable,
    convert,
    foreign,
    get,
    gold_answer,
    json_file,
    json_lines,
    spans_record,
)


def squad(
    path: Path, drops: Drops, *, paragraphs: int = 1, content: object = None
) -> Iterator[Record]:
    """Yield the records of SQuAD 1.1 or 2.0, or another corpus in its format, one JSON file.

    Args:
        paragraphs: how many paragraphs of the article make a document. They follow each other
            and include the question's own; the first one is drawn for each question by its id.
        content: of the file, if it has been read.
    """
    content = json_file(path) if content is None else content
    if not is_squad(content):
        raise foreign(path, "SQuAD's JSON, an object with a list of articles as data")
    questions = _squad_questions(path, content["data"], drops)
    return convert(questions, partial(_squad_record, paragraphs=paragraphs, drops=drops), drops)


def is_squad(content: object) -> bool:
    """Whether a file's content is of SQuAD's format."""
    return isinstance(content, Mapping) and isinstance(content.get("data"), list)


def _squad_questions(path: Path, articles: list, drops: Drops) -> Items:
    for i, article in enumerate(articles):
        contexts, asked = [], []
        with drops.at(f"{path}: article {i}"):
            paragraphs, title = get(article, "paragraphs", list), str(article.get("title", ""))
            for j, paragraph in enumerate(paragraphs):
                with drops.at(place := f"{path}: article {i}, paragraph {j}"):
                    if not get(paragraph, "context").strip():
                        raise Unusable("empty document")
                    contexts.append(Paragraph(title, paragraph["context"]))
                    own = len(contexts) - 1
                    asked += [(place, own, question) for question in get(paragraph, "qas", list)]
        for place, own, question in asked:
            id_ = question.get("id") if isinstance(question, Mapping) else None
            yield f"{place}, id {id_}", (contexts, own, question, title or f"article {i}")


def _squad_record(
    item: tuple[Sequence[Paragraph], int, Mapping, str], *, paragraphs: int, drops: Drops
) -> Record:
    contexts, own, question, document = item
    impossible = question.get("is_impossible")
    id_ = str(get(question, "id", (str, int)))
    # of so many paragraphs in a row, which the question's own is among
    first = random.Random(id_).randint(max(0, own - paragraphs + 1), own)
    first = max(0, min(first, len(contexts) - paragraphs))
    contexts, own = contexts[first : first + paragraphs], own - first
    answers = [
        gold_answer(contexts, own, get(answer, "answer_start", int), get(answer, "text"), drops)
        for answer in get(question, "answers", list)
    ]
    if bool(answers) is bool(impossible):
        detail = f"is_impossible is {impossible}, with {len(answers)} answers"
        raise Unusable("answers and is_impossible disagree", detail)
    return spans_record(
        id_,
        get(question, "question"),
        contexts,
        answers,
        answerable=not impossible,
        long_answers=(own,) if answers and len(contexts) > 1 else (),
        document=document,
    )


def qed(path: Path, drops: Drops, *, paragraphs: int = 1) -> Iterator[Record]:
    """Yield the records of QED's jsonlines, questions of Natural Questions. Of the `paragraphs`
    of a document, others are of other questions, in an order drawn by the question's id."""
    records = convert(json_lines(path, drops), _qed_record, drops)
    return records if paragraphs == 1 else _among_others(list(records), paragraphs)


def _among_others(records: list[Record], wanted: int) -> Iterator[Record]:
    """Yield records of one paragraph each, with as many others' paragraphs as are wanted."""
    pool = list(dict.fromkeys(record.paragraphs[0] for record in records))
    for record in records:
        draw = random.Random(record.id)
        (own,) = record.paragraphs
        chosen = draw.sample(pool, min(wanted, len(pool)))
        chosen = [own, *(other for other in chosen if other != own)][:wanted]
        draw.shuffle(chosen)
        place = chosen.index(own)
        yield replace(
            record,
            paragraphs=tuple(chosen),
            answers=tuple(replace(answer, paragraph=place) for answer in record.answers),
            long_answers=(place,),
        )


def _qed_record(item: Mapping) -> Record:
    answers = [
        GoldAnswer(0, get(span, "start", int), get(span, "end", int), get(span, "string"))
        for annotator in get(item, "original_nq_answers", list)
        for span in annotator
    ]
    if not answers:
        raise Unusable("no answer")
    paragraph = Paragraph(get(item, "title_text"), get(item, "paragraph_text"))
    id_ = str(get(item, "example_id", (int, str)))
    return spans_record(id_, get(item, "question_text"), [paragraph], answers)
