"""Documents in sections: what a reader reads at once."""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from fairseq.data.data_utils import batch_by_size
from torch import Tensor

from fairseq_clusterformer.corpora.question_answering.encode import Pieces, token_span
from fairseq_clusterformer.corpora.question_answering.records import sentences_of
from fairseq_clusterformer.data.subwords import Tokens

from ..answers import Document
from .sources import Source

_KEPT = 32  # sections whose tokens stay in memory


class Piece(NamedTuple):
    """A paragraph of a section, or as much of a long one as fits."""

    number: int  # of the paragraph, from 0
    first: int  # tokens [first, last) of its paragraph
    last: int
    start: int  # characters [start, end) of the paragraph that these tokens show
    end: int


@dataclass(frozen=True, eq=False)
class Section:
    """Paragraphs of a document that a model reads at once. Its tokens are made anew when they are
    used, so that a long document takes little memory."""

    source: Source  # the document
    pieces: tuple[Piece, ...]  # of its paragraphs, in their order
    length: int  # number of tokens
    #: returns tokens, int64 [N], and what they stand for
    encode: Callable[["Section"], tuple[Tensor, Document]] = field(repr=False)

    def __len__(self) -> int:
        return self.length

    @property
    def text(self) -> str:
        """Of all pieces."""
        texts = self.source.paragraphs
        return "\n".join(texts[piece.number][piece.start : piece.end] for piece in self.pieces)

    @property
    def tokens(self) -> Tensor:
        """int64 [N]."""
        return self.encode(self)[0]

    @property
    def document(self) -> Document:
        """What the tokens stand for."""
        return self.encode(self)[1]

    def paragraphs(self) -> Iterator[tuple[int, str, range]]:
        """Yield the number, the text and the tokens of each paragraph."""
        starts = [*self.document.starts.tolist(), self.length]
        for piece, span in zip(self.pieces, pairwise(starts), strict=True):
            yield piece.number, self.source.paragraphs[piece.number], range(*span)

    def shown(self) -> list[str]:
        """What each token shows: joined, it is the text of the paragraphs. The first of several
        tokens that are bytes of one character shows it; ``<s>`` and titles show nothing."""
        shown = [""] * self.length
        starts, ends = self.document.characters.tolist()
        for _, text, tokens in self.paragraphs():
            place = next((starts[token] for token in tokens if starts[token] >= 0), 0)
            for token in tokens:
                shown[token] = text[place : max(place, ends[token])]
                place = max(place, ends[token])
        return shown


@dataclass(eq=False)
class Splitter:
    """Divides documents into sections."""

    subwords: Pieces  # the model's
    titles: bool = False  # whether each paragraph begins with the document's title
    #: whether pieces of a long paragraph overlap by a quarter, so that one holds a whole answer
    overlap: bool = False
    sentences: bool = False  # whether a section's document names its sentences

    def __post_init__(self) -> None:
        self._encoded = functools.lru_cache(_KEPT)(self._encode)

    def sections(self, source: Source, most: int) -> list[Section]:
        """Sections of whole paragraphs, and pieces of those that have more than `most` tokens.
        What would be a short section, such as a heading, joins the one behind it, or else the one
        before: a fifth of the room is kept for it."""
        short = most // 5
        found: list[tuple[list[Piece], int]] = [([], 0)]
        for piece, size in self._pieces(source, most - short):
            pieces, length = found[-1]
            if pieces and length + size > (most if length <= short else most - short):
                found.append(([piece], size))
            else:
                pieces.append(piece)
                found[-1] = pieces, length + size
        if len(found) > 1 and found[-1][1] <= short and found[-2][1] + found[-1][1] <= most:
            pieces, length = found.pop()
            found[-1] = found[-1][0] + pieces, found[-1][1] + length
        return [Section(source, tuple(pieces), length, self._encoded) for pieces, length in found]

    def _pieces(self, source: Source, most: int) -> Iterator[tuple[Piece, int]]:
        """Each piece, and how many tokens it has with ``<s>`` and the title."""
        head = 1 + (len(self.subwords.tokens(source.title)) if self.titles else 0)
        room = max(1, most - head)
        step = room - room // 4 if self.overlap else room
        every = range(len(source.paragraphs))
        for number in [n for n in every if n not in source.silent] or every:
            tokens = self.subwords.tokens(source.paragraphs[number])
            length = len(tokens)
            for first in range(0, max(1, length - (room - step)), step):
                last = min(first + room, length)
                shown = (tokens.starts[first], tokens.ends[last - 1]) if last > first else (0, 0)
                yield Piece(number, first, last, *map(int, shown)), head + last - first

    def _encode(self, section: Section) -> tuple[Tensor, Document]:
        title = self.subwords.tokens(section.source.title) if self.titles else None
        parts, texts = [], []
        for piece in section.pieces:
            texts.append(section.source.paragraphs[piece.number])
            tokens, own = self.subwords.tokens(texts[-1]), slice(piece.first, piece.last)
            parts.append((title, Tokens(tokens.ids[own], tokens.starts[own], tokens.ends[own])))
        symbols, characters, starts, begins = self.subwords.document(parts)
        sentences = [
            token_span(begins[number], tokens, first, last)
            for number, first, last in (sentences_of(texts) if self.sentences else ())
            if len(tokens := parts[number][1])
            and first < tokens.ends[-1]
            and last > tokens.starts[0]
        ]
        named = torch.tensor(sentences).view(-1, 2).long() if self.sentences else None
        return symbols, Document(texts, starts, characters, named)


def together(items: Sequence[Sized], most: int, read: Callable[[list], Iterable]) -> list:
    """What `read` makes of each item; it is given items of like lengths, which have up to `most`
    tokens together, or one alone."""
    lengths = np.minimum([*map(len, items)], most).astype(np.int64)
    order = np.argsort(lengths, kind="stable")
    found: dict[int, object] = {}
    for batch in batch_by_size(order, None, lengths, max_tokens=most):
        found |= zip(batch.tolist(), read([items[place] for place in batch]), strict=True)
    return [found[place] for place in range(len(items))]
