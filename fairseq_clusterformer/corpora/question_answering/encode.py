"""Records in subwords: one file of a corpus to the files of ``fairseq_clusterformer.data.qa``.

Workers turn records into tokens; the main process reads and writes.
"""

import functools
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from fairseq.data import Dictionary
from torch import Tensor

from fairseq_clusterformer.data import subwords
from fairseq_clusterformer.data.qa import Example, QAWriter
from fairseq_clusterformer.data.stored import load_dictionary
from fairseq_clusterformer.data.structure import Outline

from ..parallel import parallel
from .records import Drops, Reader, Record, Unusable, sentences_of

COUNTS = ("questions", "answers", "paragraphs", "tokens", "longest")
_BATCH = 5  # records that a worker takes at a time; one may be a book


def write_file(
    path: Path, out: Path, split: str, *, read: Reader, model: Path, titles: bool, workers: int
) -> tuple[dict[str, int], Drops]:
    """Write the records of a corpus's file as a split in `out`, by the subwords in the folder
    `model`; return `COUNTS`, and what was dropped."""
    dictionary = load_dictionary(model)
    drops, counts = Drops(keep_unfound=split != "train"), dict.fromkeys(COUNTS, 0)
    pieces, label = subwords.load_prepared(model), f"{split} {path.name}"
    to_index = np.array([dictionary.index(symbol) for symbol in pieces.symbols])
    how = {"model": pieces, "titles": titles, "dictionary": dictionary, "to_index": to_index}
    encode = functools.partial(encode_record, **how)
    encoded = parallel(encode, read(path, drops), workers, label, batch=_BATCH, unit=" records")
    with QAWriter(out, split, vocab_size=len(dictionary)) as writer:
        for item in encoded:
            if isinstance(item, Unusable):
                drops.add(str(path), item.reason, item.detail)
                continue
            writer.write(*item)
            _, document, spans, *_ = item[0]
            counts["questions"] += 1
            counts["paragraphs"] += int(spans[2])
            counts["answers"] += int(spans[3])
            counts["tokens"] += len(document)
            counts["longest"] = max(counts["longest"], len(document))
    return counts, drops


def encode_record(
    record: Record,
    *,
    model: subwords.Subwords,
    titles: bool,
    dictionary: Dictionary,
    to_index: np.ndarray,
) -> tuple[list[np.ndarray], dict] | Unusable:
    """Return a record as `QAWriter.write` takes it; or why it has no tokens. `to_index`: the
    dictionary's number of each of the model's symbols."""
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

    def numbers(found: Iterable) -> Tensor:
        return torch.tensor(list(found), dtype=torch.int64)

    sentences = record.sentences
    if sentences is None:
        sentences = sentences_of(record.paragraphs)
    right = [i for i, text in enumerate(record.candidates) if text in record.texts]
    known = record.supporting
    try:
        example = Example(
            question=torch.from_numpy(to_index[encode(record.question).ids]),
            document=torch.from_numpy(symbols_of(np.concatenate(ids), to_index, dictionary)),
            paragraph_starts=numbers(paragraph_starts),
            answers=numbers(
                covered("answer", a.paragraph, a.start, a.end) for a in record.answers
            ).view(-1, 2),
            long_answers=numbers(record.long_answers),
            answerable=record.answerable,
            yes_no=record.yes_no,
        )
        outline = Outline(
            # a sentence without a token is a place within its paragraph
            sentences=numbers(
                token_span(*texts[p], start, end) for p, start, end in sentences
            ).view(-1, 2),
            supporting=None if known is None else numbers(known),
            names=tuple(
                torch.from_numpy(to_index[encode(text).ids]) for text in record.candidates
            ),
            right=right[0] if right else None,
            mentions=numbers(
                (m.candidate, *covered("mention", *m[1:])) for m in record.mentions
            ).view(-1, 3),
        )
    except Unusable as error:
        return error
    return QAWriter.items(example, np.concatenate(characters, axis=1), outline), _texts(record)


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
