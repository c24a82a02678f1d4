"""Natural Questions, simplified or in full, and QED, questions of it whose paragraph is known.

The paragraphs are the document's long answer candidates on top level, in words without markup.
A candidate within another (a row of a table) counts as the one around it. Annotators
marked tokens of the document: these become characters, and a paragraph's `tokens` lead back.
"""

import html
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from fairseq_clusterformer.corpora.question_answering.records import (
    Drops,
    GoldAnswer,
    Paragraph,
    Record,
    Unusable,
    convert,
    get,
    json_lines,
)
from fairseq_clusterformer.corpora.question_answering.squad import question_record

# As <P>, </Table>, <Th_colspan="2">: the simplified data has it among the words.
_MARKUP = re.compile(r"</?[A-Z][A-Za-z0-9]*(_.*)?>")


def natural_questions(path: Path, drops: Drops) -> Iterator[Record]:
    """Yield the records of a .jsonl(.gz), or of all of a folder. A question is answerable if two
    annotators (in the training data, the only one) gave a long answer, or a short one."""
    files = [path] if not path.is_dir() else sorted(path.glob("*.jsonl*"))
    lines = (line for file in files for line in json_lines(file, drops))
    return convert(lines, _record, drops)


@dataclass(frozen=True)
class _Document:
    """Tokens, and which are words; in full data, also each one's bytes [start, end)."""

    tokens: Sequence[str]
    is_word: Sequence[bool]
    bytes: Sequence[tuple[int, int]] | None = None

    @classmethod
    def of(cls, item: Mapping) -> "_Document":
        if "document_text" in item:
            tokens = get(item, "document_text").split(" ")
            words = [bool(token) and not _MARKUP.fullmatch(token) for token in tokens]
            return cls(tokens, words)
        found = get(item, "document_tokens", list)
        tokens = [get(token, "token") for token in found]
        # A word with a blank in it would be taken for two.
        words = [
            not get(token, "html_token", bool) and bool(text) and " " not in text
            for token, text in zip(found, tokens, strict=True)
        ]
        places = [(get(t, "start_byte", int), get(t, "end_byte", int)) for t in found]
        return cls(tokens, words, places)

    def paragraph(self, title: str, start: int, end: int) -> Paragraph:
        numbers = tuple(i for i in range(start, end) if self.is_word[i])
        return Paragraph(title, " ".join(self.tokens[i] for i in numbers), (start, end), numbers)

    def check(self, span: Mapping) -> tuple[int, int]:  # its tokens [start, end)
        start, end = get(span, "start_token", int), get(span, "end_token", int)
        if not 0 <= start < end <= len(self.tokens):
            detail = f"tokens {start} to {end} of {len(self.tokens)}"
            raise Unusable("answer not in its context", detail)
        if self.bytes is not None and "start_byte" in span:
            told = span["start_byte"], span["end_byte"]
            if told != (found := (self.bytes[start][0], self.bytes[end - 1][1])):
                detail = f"tokens {start} to {end} are bytes {found}, the file says {told}"
                raise Unusable("answer not in its context", detail)
        return start, end


def _record(item: Mapping) -> Record:
    document, title = _Document.of(item), _title(item)
    paragraphs, spans = [], []  # on top level, with their tokens [start, end)
    for candidate in get(item, "long_answer_candidates", list):
        if get(candidate, "top_level", bool):
            span = document.check(candidate)
            paragraph = document.paragraph(title, *span)
            if paragraph.text.strip():
                paragraphs.append(paragraph)
                spans.append(span)
    if not paragraphs:
        raise Unusable("empty document")

    long, short, yes_no = [], [], []
    annotations = get(item, "annotations", list) if "annotations" in item else []
    for annotation in annotations:
        if get(get(annotation, "long_answer", dict), "start_token", int) >= 0:
            start, end = document.check(annotation["long_answer"])
            long.append(_around(start, end, spans))
        answers = []
        for span in get(annotation, "short_answers", list):
            start, end = document.check(span)
            index = _around(start, end, spans)
            answers.append(_answer(index, paragraphs[index], start, end))
            words = [document.tokens[i] for i in range(start, end) if document.is_word[i]]
            if answers[-1].text != (text := " ".join(words)):
                raise Unusable("answer not in its context", f"{text!r} is {answers[-1].text!r}")
        if answers:
            short.append(answers)
        if (word := get(annotation, "yes_no_answer").lower()) != "none":
            yes_no.append(word)

    from fairseq_clusterformer.metrics.natural_questions import is_answer  # not for --help

    has_long = is_answer(len(long), len(annotations))
    has_short = is_answer(len(short) + len(yes_no), len(annotations))
    return Record(
        str(get(item, "example_id", (int, str))),
        get(item, "question_text"),
        tuple(paragraphs),
        tuple(dict.fromkeys(chain.from_iterable(short))) if has_short else (),
        answerable=(has_long or has_short) if annotations else None,
        yes_no=max(yes_no, key=yes_no.count) if has_short and yes_no else None,
        long_answers=tuple(dict.fromkeys(long)) if has_long else (),
    )


def _around(start: int, end: int, spans: Sequence[tuple[int, int]]) -> int:
    """Return the paragraph that tokens [start, end) are in."""
    for index, (first, last) in enumerate(spans):
        if first <= start and end <= last:
            return index
    raise Unusable("answer not in a candidate", f"tokens {start} to {end}")


def _answer(index: int, paragraph: Paragraph, start: int, end: int) -> GoldAnswer:
    """The characters of the document's tokens [start, end)."""
    words = [k for k, token in enumerate(paragraph.tokens) if start <= token < end]
    if not words:
        raise Unusable("answer without a word", f"tokens {start} to {end}")
    ends = [match.end() for match in re.finditer(r"[^ ]+", paragraph.text)]
    first = ends[words[0] - 1] + 1 if words[0] else 0
    last = ends[words[-1]]
    return GoldAnswer(index, first, last, paragraph.text[first:last])


def _title(item: Mapping) -> str:
    if "document_title" in item:
        return get(item, "document_title")
    query = parse_qs(urlsplit(html.unescape(get(item, "document_url"))).query)
    return query.get("title", [""])[0].replace("_", " ")


def qed(path: Path, drops: Drops, *, paragraphs: int = 1) -> Iterator[Record]:
    """Yield the records of QED's jsonlines, questions of Natural Questions. Of the `paragraphs`
    of a document, others are of other questions, in an order drawn by the question's id."""

    def to_record(item: Mapping) -> Record:
        answers = [
            {"text": get(span, "string"), "answer_start": get(span, "start", int)}
            for annotator in get(item, "original_nq_answers", list)
            for span in annotator
        ]
        if not answers:
            raise Unusable("no answer")
        names = {"title": "title_text", "context": "paragraph_text", "question": "question_text"}
        found = {name: get(item, theirs) for name, theirs in names.items()}
        found["id"] = get(item, "example_id", (int, str))
        return question_record(found | {"answers": answers}, drops)

    records = convert(json_lines(path, drops), to_record, drops)
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
