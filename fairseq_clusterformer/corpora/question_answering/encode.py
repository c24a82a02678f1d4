"""Records in subwords: one file of a corpus to the files of ``fairseq_clusterformer.data.qa``.

Workers turn records into tokens; the main process reads and writes.
"""

import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from fairseq.data import Dictionary

from fairseq_clusterformer.data import subwords
from fairseq_clusterformer.data.qa import Example, QAWriter
from fairseq_clusterformer.data.stored import load_dictionary
from fairseq_clusterformer.data.structure import Outline

from ..parallel import parallel
from .records import Drops, Reader, Record, Unusable, sentences_of

COUNTS = ("questions", "answers", "paragraphs", "tokens", "longest")
_BATCH = 5  # records that a worker takes at a time; one may be a book


@dataclass(frozen=True)
class Encoded:
    """A record in the model's ids; -1 stands for ``<s>``. See `Example` and `QAWriter.add`."""

    question: np.ndarray
    document: np.ndarray
    characters: np.ndarray
    paragraph_starts: list[int]
    answers: list[tuple[int, int]]
    record: Record
    sentences: list[tuple[int, int]]
    mentions: list[tuple[int, int, int]]
    names: list[np.ndarray]  # of the candidates


def write_file(
    path: Path, out: Path, split: str, *, read: Reader, model: Path, titles: bool, workers: int
) -> tuple[dict[str, int], Drops]:
    """Write the records of a corpus's file as a split in `out`, by the subwords in the folder
    `model`; return `COUNTS`, and what was dropped."""
    dictionary, pieces = load_dictionary(model), subwords.load_prepared(model)
    to_index = np.array([dictionary.index(symbol) for symbol in pieces.symbols])
    drops, counts = Drops(keep_unfound=split != "train"), dict.fromkeys(COUNTS, 0)
    encode = functools.partial(encode_record, model=pieces, titles=titles)
    label = f"{split} {path.name}"
    encoded = parallel(encode, read(path, drops), workers, label, batch=_BATCH, unit=" records")
    with QAWriter(out, split, vocab_size=len(dictionary)) as writer:
        for item in encoded:
            if isinstance(item, Unusable):
                drops.add(str(path), item.reason, item.detail)
                continue
            record, length = item.record, len(item.document)
            document = symbols_of(item.document, to_index, dictionary)
            example = Example(
                question=torch.from_numpy(to_index[item.question]),
                document=torch.from_numpy(document),
                paragraph_starts=torch.tensor(item.paragraph_starts),
                answers=torch.tensor(item.answers, dtype=torch.int64).view(-1, 2),
                long_answers=torch.tensor(record.long_answers, dtype=torch.int64),
                answerable=record.answerable,
                yes_no=record.yes_no,
            )
            right = [i for i, text in enumerate(record.candidates) if text in record.texts]
            known = record.supporting
            outline = Outline(
                sentences=torch.tensor(item.sentences, dtype=torch.int64).view(-1, 2),
                supporting=None if known is None else torch.tensor(known, dtype=int),
                names=tuple(torch.from_numpy(to_index[ids]) for ids in item.names),
                right=right[0] if right else None,
                mentions=torch.tensor(item.mentions, dtype=torch.int64).view(-1, 3),
            )
            writer.add(example, item.characters, _texts(record), outline)
            of_item = (1, len(item.answers), len(item.paragraph_starts), length)
            for name, number in zip(COUNTS, of_item, strict=False):
                counts[name] += number
            counts["longest"] = max(counts["longest"], length)
    return counts, drops


def encode_record(record: Record, *, model: subwords.Subwords, titles: bool) -> Encoded | Unusable:
    """Return a record's tokens; or why it has none."""
    encode = functools.partial(_encode, model)
    ids, characters, paragraph_starts, texts, position = [], [], [], [], 0
    for paragraph in record.paragraphs:
        tokens = encode(paragraph.text)
        title = encode(paragraph.title) if titles and not record.titled else None
        own, places = led_by_start(tokens, title)
        ids.append(own)
        characters.append(places)
        paragraph_starts.append(position)
        position += len(own)
        texts.append((position - len(tokens), tokens))

    def covered(what: str, paragraph: int, start: int, end: int) -> tuple[int, int]:
        offset, tokens = texts[paragraph]
        try:
            first, last = tokens.cover(start, end)
        except ValueError as error:
            raise Unusable(f"{what} in no token", f"question {record.id}: {error}") from None
        return offset + first, offset + last

    sentences = record.sentences
    if sentences is None:
        sentences = sentences_of(record.paragraphs)
    try:
        return Encoded(
            question=encode(record.question).ids,
            document=np.concatenate(ids),
            characters=np.concatenate(characters, axis=1),
            paragraph_starts=paragraph_starts,
            answers=[covered("answer", a.paragraph, a.start, a.end) for a in record.answers],
            record=record,
            # a sentence without a token is a place within its paragraph
            sentences=[token_span(*texts[p], start, end) for p, start, end in sentences],
            mentions=[(m.candidate, *covered("mention", *m[1:])) for m in record.mentions],
            names=[encode(text).ids for text in record.candidates],
        )
    except Unusable as error:
        return error


def token_span(offset: int, tokens: subwords.Tokens, start: int, end: int) -> tuple[int, int]:
    """Return the tokens [first, last) of a paragraph's characters, with `offset` added; an empty
    place in the paragraph where they are in no token."""
    try:
        first, last = tokens.cover(start, end)
    except ValueError:
        # not behind the first token of what follows, which may begin with the blank before it
        first = last = min(int(np.searchsorted(tokens.ends, start, "right")), len(tokens) - 1)
    return offset + first, offset + last


def led_by_start(
    text: subwords.Tokens, title: subwords.Tokens | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return a paragraph's ids [n], -1 for ``<s>``, title and text, and their characters [2, n],
    -1 outside of the text."""
    head = np.array([-1, *([] if title is None else title.ids)], np.int32)
    nowhere = np.full((2, len(head)), -1, np.int32)
    characters = np.concatenate([nowhere, np.stack([text.starts, text.ends])], axis=1)
    return np.concatenate([head, text.ids]), characters


@functools.lru_cache(256)  # questions on one paragraph follow each other
def _encode(model: subwords.Subwords, text: str) -> subwords.Tokens:
    return model.encode(text)


def symbols_of(ids: np.ndarray, to_index: np.ndarray, dictionary: Dictionary) -> np.ndarray:
    """Return a document in symbols of the dictionary, by each id's (-1 stands for ``<s>``)."""
    return np.where(ids < 0, dictionary.bos(), to_index[ids])


def _texts(record: Record) -> dict:
    """What a line of ``SPLIT.jsonl`` says of a record."""
    return {
        "id": record.id,
        "question": record.question,
        "paragraphs": [
            [part.title, part.text] + ([] if part.span is None else [part.span, part.tokens])
            for part in record.paragraphs
        ],
        "answers": [[answer.paragraph, answer.start, answer.end] for answer in record.answers],
        "texts": record.texts,
        **({"candidates": record.candidates} if record.candidates else {}),
        **({"titled": True} if record.titled else {}),
    }
