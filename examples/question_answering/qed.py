"""QED, questions of Natural Questions whose paragraph is known."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from fairseq_clusterformer.corpora.question_answering.records import (
    Drops,
    GoldAnswer,
    Paragraph,
    Record,
    Unusable,
    convert,
    get,
    json_lines,
    spans_record,
)


def qed(path: Path, drops: Drops, *, paragraphs: int = 1) -> Iterator[Record]:
    """Yield the records of QED's jsonlines, questions of Natural Questions. Of the `paragraphs`
    of a document, others are of other questions, in an order drawn by the question's id."""
    records = convert(json_lines(path, drops), _qed_record, drops)
    if paragraphs == 1:
        yield from records
        return
    records = list(records)
    pool = list(dict.fromkeys(record.paragraphs[0] for record in records))
    for record in records:
        draw = random.Random(record.id)
        (own,) = record.paragraphs
        chosen = draw.sample(pool, min(paragraphs, len(pool)))
        chosen = [own, *(other for other in chosen if other != own)][:paragraphs]
        draw.shuffle(chosen)
        place = chosen.index(own)
        yield replace(
            record,
            paragraphs=tuple(chosen),
            answers=tuple(answer._replace(paragraph=place) for answer in record.answers),
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
