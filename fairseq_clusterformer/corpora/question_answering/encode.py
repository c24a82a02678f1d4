"""Records in subwords, as ``fairseq_clusterformer.data.qa`` stores them."""

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from fairseq.data import Dictionary
from torch import Tensor

from fairseq_clusterformer.data.qa import Example, Outline
from fairseq_clusterformer.data.stored import load_dictionary
from fairseq_clusterformer.data.subwords import Subwords, Tokens, load_prepared

from .records import Record, Unusable, sentences_of

_encode = lru_cache(256)(Subwords.encode)  # questions on one paragraph follow each other


class Pieces:
    """A model's subwords in symbols of a dictionary."""

    def __init__(self, model: Subwords, dictionary: Dictionary) -> None:
        self._model, self._bos = model, dictionary.bos()
        self._to_index = np.array([dictionary.index(symbol) for symbol in model.symbols])

    def tokens(self, text: str) -> Tokens:
        """Raises UnicodeEncodeError: no Unicode."""
        return _encode(self._model, text)

    def symbols(self, text: str) -> Tensor:
        """Of a text, int64 [N]; raises as `tokens`."""
        return torch.from_numpy(self._to_index[self.tokens(text).ids])

    def document(
        self, parts: Iterable[tuple[Tokens | None, Tokens]]
    ) -> tuple[Tensor, Tensor, Tensor, list[int]]:
        """Paragraphs, each of a title's (None: it has none) and a text's tokens, as symbols led by
        ``<s>``, int64 [N]; with their characters, int32 [2, N], -1 outside of the texts; where
        each paragraph begins, int64 [P]; and where its text does."""
        ids, characters, starts, texts, length = [], [], [], [], 0
        for title, text in parts:
            head = np.array([-1, *([] if title is None else title.ids)], np.int32)
            ids += [head, text.ids]
            nowhere = np.full((2, len(head)), -1, np.int32)
            characters += [nowhere, np.stack([text.starts, text.ends])]
            starts.append(length)
            texts.append(length + len(head))
            length = texts[-1] + len(text)
        ids, places = np.concatenate(ids), np.concatenate(characters, axis=1)
        symbols = np.where(ids < 0, self._bos, self._to_index[ids])
        return torch.from_numpy(symbols), torch.from_numpy(places), torch.tensor(starts), texts


class Encoder:
    """Makes of a record what `QAWriter.write` takes; or `Unusable`, if it has no tokens. With
    `titles`, those of paragraphs stand before their texts. `folder` has the subwords."""

    def __init__(self, folder: Path, titles: bool) -> None:
        self.dictionary, self._titles = load_dictionary(folder), titles
        self._pieces = Pieces(load_prepared(folder), self.dictionary)

    def __call__(self, record: Record) -> tuple[Example, dict] | Unusable:
        try:
            example = self._example(record)
        except Unusable as error:
            return error
        line = {  # of SPLIT.jsonl
            "id": record.id,
            "question": record.question,
            "paragraphs": [
                [part.title, part.text, *([part.span, part.tokens] if part.span else [])]
                for part in record.paragraphs
            ],
            "answers": [answer[:3] for answer in record.answers],
            "texts": record.texts,
        }
        line |= {"candidates": record.candidates} if record.candidates else {}
        return example, line | ({"titled": True} if record.titled else {})

    def _example(self, record: Record) -> Example:
        pieces, led = self._pieces, self._titles and not record.titled
        parts = [
            (pieces.tokens(part.title) if led else None, pieces.tokens(part.text))
            for part in record.paragraphs
        ]
        document, characters, starts, texts = pieces.document(parts)

        def covered(what: str, paragraph: int, start: int, end: int) -> tuple[int, int]:
            try:
                places = parts[paragraph][1].cover(start, end)
            except ValueError as error:
                raise Unusable(f"{what} in no token", f"question {record.id}: {error}") from None
            return tuple(texts[paragraph] + place for place in places)

        def numbers(found: Iterable, *shape: int) -> Tensor:
            return torch.tensor(list(found), dtype=torch.int64).view(-1, *shape)

        sentences, known = record.sentences, record.supporting
        if sentences is None:
            sentences = sentences_of([part.text for part in record.paragraphs])
        right = [i for i, text in enumerate(record.candidates) if text in record.texts]
        # a sentence without a token is a place within its paragraph
        spans = (token_span(texts[p], parts[p][1], start, end) for p, start, end in sentences)
        mentions = ((m.candidate, *covered("mention", *m[1:])) for m in record.mentions)
        return Example(
            question=pieces.symbols(record.question),
            document=document,
            characters=characters,
            paragraph_starts=starts,
            answers=numbers((covered("answer", *a[:3]) for a in record.answers), 2),
            long_answers=numbers(record.long_answers),
            answerable=record.answerable,
            yes_no=record.yes_no,
            outline=Outline(
                sentences=numbers(spans, 2),
                supporting=None if known is None else numbers(known),
                names=tuple(map(pieces.symbols, record.candidates)),
                right=right[0] if right else None,
                mentions=numbers(mentions, 3),
            ),
        )


def token_span(offset: int, tokens: Tokens, start: int, end: int) -> tuple[int, int]:
    """Return the tokens [first, last) of a paragraph's characters, with `offset` added; an empty
    place in the paragraph where they are in no token."""
    try:
        first, last = tokens.cover(start, end)
    except ValueError:
        # not behind the first token of what follows, which may begin with the blank before it
        first = last = min(int(np.searchsorted(tokens.ends, start, "right")), len(tokens) - 1)
    return offset + first, offset + last
