"""Sections of documents that the tests write themselves."""

from collections.abc import Sequence

import torch

from fairseq_clusterformer.answers import TYPES, Answer, Answers, Document
from fairseq_clusterformer.documents.found import SectionRead
from fairseq_clusterformer.documents.sections import Piece, Section
from fairseq_clusterformer.documents.sources import Source


def section_of(source: Source, characters: torch.Tensor, starts: Sequence[int] = (0,)) -> Section:
    """Tokens of these characters [2, N]; a paragraph begins at each of the starts."""
    document = Document(source.paragraphs, torch.tensor(starts), characters)
    pieces = [Piece(number, 0, 0, 0, 0) for number in range(len(starts))]
    length = characters.size(1)
    return Section(source, tuple(pieces), length, lambda _: (torch.arange(length), document))


def read_of(section: Section, types: dict[str, float], short: Sequence[Answer], **more):
    """A section read, with the probabilities of some types; the others have next to none."""
    long = more.pop("long", [])
    answers = Answers(dict.fromkeys(TYPES, 1e-9) | types, [*short], long, **more)
    return SectionRead(section, answers)


def sections_of(*texts: str) -> list[Section]:
    """A section of one paragraph for each text."""
    sources = [Source(text, text, (text,)) for text in texts]
    return [Section(each, (Piece(0, 0, 0, 0, len(each.name)),), 1, None) for each in sources]
