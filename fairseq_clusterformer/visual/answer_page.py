"""The answers to a question in their documents, and what shared their clusters, as one HTML file
that needs nothing else."""

import json
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from fairseq_clusterformer.inference.read import Found, PartRead, figures

TEMPLATES = Path(__file__).parent / "templates"


def page(question: str, found: Sequence[Found]) -> str:
    """Return the page.

    Args:
        question: as it was asked.
        found: the answers, best first; of other parts nothing is shown.
    """
    reads = list(dict.fromkeys(each.read for each in found))
    layers = list(dict.fromkeys(name for read in reads for name in read.clusters))
    parts = {
        "QUESTION": escape(question),
        "NONE": ""
        if any(each.is_meant for each in found)
        else "<p>The model holds it for likeliest that nothing here answers this.</p>",
        "ANSWERS": "".join(map(_answer, range(len(found)), found)),
        "LAYERS": "".join(f"<option>{escape(name)}</option>" for name in layers),
        "DOCUMENTS": "".join(_document(read, found) for read in reads),
        "DATA": json.dumps(
            {
                "answers": [[reads.index(each.read), _shown(each)] for each in found],
                "parts": [
                    [read.clusters[name].tolist() for name in layers if name in read.clusters]
                    for read in reads
                ],
            },
            separators=(",", ":"),
        ),
    }
    template = (TEMPLATES / "answer_page.html").read_text(encoding="utf-8")
    head, *pieces = template.split("<!--")
    for piece in pieces:
        name, _, rest = piece.partition("-->")
        head += parts[name] + rest
    return head


def _answer(place: int, found: Found) -> str:
    before, text, behind = map(escape, found.sentence())
    where = escape(found.read.part.source.name)
    if found.number is not None:
        where += f", paragraph {found.number + 1}"
    return (
        f'<li><button type="button" data-answer="{place}" aria-pressed="false">'
        f"<b>{figures(found.probability)}</b> {before}<mark>{text}</mark>{behind}"
        f"<small>{where}</small></button></li>"
    )


def _shown(found: Found) -> tuple[int, int] | None:
    """An answer's tokens, and those before with which the first shares a character, for that is
    shown as the first of them; None of yes and no."""
    if found.answer.tokens is None:
        return None
    first, last = found.answer.tokens
    starts, ends = found.read.part.document.characters.tolist()
    while first and starts[first - 1] >= 0 and ends[first - 1] > starts[first]:
        first -= 1
    return first, last


def _document(read: PartRead, found: Sequence[Found]) -> str:
    """A part of a file: its paragraphs, and each token an element with its number."""
    part = read.part
    spans = [_shown(each) for each in found if each.read is read and each.answer.tokens]
    answers = {token for first, last in spans for token in range(first, last)}
    starts = [*part.document.starts.tolist(), len(part.tokens)]
    paragraphs = "".join(
        f'<p><small class="number">{part.numbers[i] + 1}</small>'
        f"{''.join(_tokens(read, i, starts[i], starts[i + 1], answers))}</p>"
        for i in range(len(part.numbers))
    )
    return f"<section><h2>{escape(part.source.name)}</h2>{paragraphs}</section>"


def _tokens(
    read: PartRead, paragraph: int, first: int, last: int, answers: set[int]
) -> Iterator[str]:
    """The text of a paragraph's tokens; one of several that are bytes of a character has it."""
    text = read.part.document.texts[paragraph]
    starts, ends = read.part.document.characters.tolist()
    place = None
    for token in range(first, last):
        if starts[token] < 0:  # <s>, a title
            continue
        place = starts[token] if place is None else place
        if ends[token] <= place:
            continue
        yield escape(text[place : starts[token]])
        kind = ' class="answer"' if token in answers else ""
        shown = escape(text[max(place, starts[token]) : ends[token]])
        yield f'<span data-i="{token}"{kind}>{shown}</span>'
        place = ends[token]
