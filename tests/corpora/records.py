"""Writes corpora of questions, reads their records, and damages what they have."""

import copy
import json
from collections.abc import Callable, Iterable
from pathlib import Path

from fairseq_clusterformer.corpora.question_answering.records import Drops, Record
from tests.corpora.commands import write as write_file


def write(path: Path, data: object) -> Path:
    """Write bytes, or JSON (a list for .jsonl: a line each), packed as the name tells."""
    if not isinstance(data, bytes):
        lines = data if ".jsonl" in path.name or "_" in path.name else [data]
        data = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()
    return write_file(path, data)


def read(reader: Callable, path: Path, **options) -> tuple[dict[str, Record], Drops]:
    """Return the records by their ids, all answers looked at, and what was dropped."""
    drops = Drops(keep_unfound=options.pop("keep_unfound", False))
    records = {record.id: record for record in reader(path, drops, **options)}
    for record in records.values():
        for answer in record.answers:
            text = record.paragraphs[answer.paragraph].text
            assert text[answer.start : answer.end] == answer.text != ""
    return records, drops


def spans(record: Record) -> list[tuple[int, int, str]]:
    return [(answer.paragraph, answer.start, answer.text) for answer in record.answers]


def damaged(value: object) -> Iterable[object]:
    """Every way to lose or to change one field within."""
    if isinstance(value, dict):
        places = list(value)
    elif isinstance(value, list):
        places = range(len(value))
    else:
        return
    for place in places:
        for other in (None, 7, "x", [], {}, [None], [[]]):
            copied = copy.copy(value)
            copied[place] = other
            yield copied
        if isinstance(value, dict):
            yield {k: v for k, v in value.items() if k != place}
        for inner in damaged(value[place]):
            copied = copy.copy(value)
            copied[place] = inner
            yield copied
