"""Records in subwords, as ``fairseq_clusterformer.data.qa`` stores them."""

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from fairseq.data import Dictionary
from torch import Tensor

from fairseq_clusterformer.data import subwords
from fairseq_clusterformer.data.qa import Example, QAWriter
from fairseq_clusterformer.data.stored import load_dictionary
from fairseq_clusterformer.data.structure import Outline

from .records import Record, Unusable, sentences_of


class Encoder:
    """Makes of a record what `QAWriter.write` takes; or `Unusable`, if it has no tokens. With
    `titles`, those of paragraphs stand before their texts. `folder` has the subwords."""

    def __init__(self, folder: Path, titles: bool) -> None:
        self.dictionary, self._titles = load_dictionary(folder), titles
        self._model = subwords.load_prepared(folder)
        self._to_index = np.array([self.dictionary.index(s) for s in self._model.symbols])

    def __call__(self, record: Record) -> tuple[list[np.ndarray], dict] | Unusable:
        try:
            items = self._items(record)
        except Unusable as error:
            return error
        return (
            items,
            {  # a line of SPLIT.jsonl
                "id": record.id,
                "question": record.question,
                "paragraphs": [
                    [part.title, part.text]
                    + ([] if part.span is None else [part.span, part.tokens])
                    for part in record.paragraphs
                ],
                "answers": [answer[:3] for answer in record.answers],
                "texts": record.texts,
                **({"candidates": record.candidates} if record.candidates else {}),
                **({"titled": True} if record.titled else {}),
            },
        )

    def _items(self, record: Record) -> list[np.ndarray]:
        ids, characters, paragraph_starts, texts, position = [], [], [], [], 0
        for paragraph in record.paragraphs:
            tokens = _encode(self._model, paragraph.text)
            led = self._titles and not record.titled
            title = _encode(self._model, paragraph.title) if led else None
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

        def numbers(found: Iterable, *shape: int) -> Tensor:
            return torch.tensor(list(found), dtype=torch.int64).view(-1, *shape)

        sentences, known = record.sentences, record.supporting
        if sentences is None:
            sentences = sentences_of(record.paragraphs)
        right = [i for i, text in enumerate(record.candidates) if text in record.texts]
        document = symbols_of(np.concatenate(ids), self._to_index, self.dictionary)
        example = Example(
            question=self._symbols(record.question),
            document=torch.from_numpy(document),
            paragraph_starts=numbers(paragraph_starts),
            answers=numbers((covered("answer", *a[:3]) for a in record.answers), 2),
            long_answers=numbers(record.long_answers),
            answerable=record.answerable,
            yes_no=record.yes_no,
        )
        # a sentence without a token is a place within its paragraph
        spans = (token_span(*texts[p], start, end) for p, start, end in sentences)
        mentions = ((m.candidate, *covered("mention", *m[1:])) for m in record.mentions)
        outline = Outline(
            sentences=numbers(spans, 2),
            supporting=None if known is None else numbers(known),
            names=tuple(map(self._symbols, record.candidates)),
            right=right[0] if right else None,
            mentions=numbers(mentions, 3),
        )
        return QAWriter.items(example, np.concatenate(characters, axis=1), outline)

    def _symbols(self, text: str) -> Tensor:
        return torch.from_numpy(self._to_index[_encode(self._model, text).ids])


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


@lru_cache(256)  # questions on one paragraph follow each other
def _encode(model: subwords.Subwords, text: str) -> subwords.Tokens:
    return model.encode(text)


def symbols_of(ids: np.ndarray, to_index: np.ndarray, dictionary: Dictionary) -> np.ndarray:
    """Return a document in symbols of the dictionary, by each id's (-1 stands for ``<s>``)."""
    return np.where(ids < 0, dictionary.bos(), to_index[ids])
