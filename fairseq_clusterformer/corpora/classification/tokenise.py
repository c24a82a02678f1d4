"""Examples become files of tokens, one example per line."""

import contextlib
import math
from array import array
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Optional

from fairseq_clusterformer.data.unicode import composed
from fairseq_clusterformer.data.words import words_of

from ..lines import wrong
from ..splits import key_of
from .readers import LabelledCorpus, some

if TYPE_CHECKING:
    from fairseq_clusterformer.data.subwords import Subwords


@dataclass
class TokenisedPart:
    """A part of a data set, whose columns are in files with one example per line."""

    files: dict[str, Path]  # of ``input0`` (and ``input1`` of pairs), ``group`` and ``label``
    lengths: list[array]  # tokens of each text, ``</s>`` included, one array per input
    labels: list[str] = field(default_factory=list)  # the class of each example
    texts: array = field(default_factory=lambda: array("Q"))  # 8 bytes stand for an example's
    counts: Counter = field(default_factory=Counter)


def split_words(
    text: str, *, tokenised: bool, max_length: int | None, model: Optional["Subwords"] = None
) -> tuple[list[str], bool]:
    """Return the words of a text in lower case, and whether its end was cut off, since it has
    `max_length` tokens or more (``</s>`` is one). `tokenised`: words stand between blanks.
    With a model of subwords: its symbols instead."""
    text = composed(text)
    if model is not None:
        words = [model.symbols[i] for i in model.encode(text).ids]
    else:
        words = text.lower().split() if tokenised else words_of(text.lower())
    if max_length and len(words) >= max_length:
        return words[: max_length - 1], True
    return words, False


def _number(label: str) -> str | None:
    """A label that is a finite number, as Python writes it."""
    try:
        number = float(label)
    except ValueError:
        return None
    return str(number) if math.isfinite(number) else None


def tokenise(
    corpus: LabelledCorpus,
    part: str,
    max_length: int | None,
    work: Path,
    model: Optional["Subwords"] = None,
) -> TokenisedPart:
    """Write the columns of a part's examples into files of the folder `work`; raises UserError if
    a label is not in the data set, or if there is no example."""
    from tqdm import tqdm

    names = [*(f"input{i}" for i in range(corpus.inputs)), "group", "label"]
    files = {name: work / f"{part}.{name}" for name in names}
    result = TokenisedPart(files, [array("L") for _ in range(corpus.inputs)])
    counts = result.counts
    with contextlib.ExitStack() as stack:
        outs = [stack.enter_context(open(path, "w", encoding="utf-8")) for path in files.values()]
        examples = corpus.read(corpus.files[part])
        how = {"unit": " examples", "disable": None, "leave": False}
        how_split = {"tokenised": corpus.tokenised, "max_length": max_length, "model": model}
        for example in tqdm(examples, desc=f"{part} tokens", **how):
            if example.label is None:
                counts["dropped: no gold label"] += 1
                continue
            label = corpus.labels.get(example.label) if corpus.labels else _number(example.label)
            if label is None:
                allowed = some(corpus.labels) if corpus.labels else "a number"
                raise wrong(example.where, f"label is {example.label!r}", allowed)
            if len(example.texts) != corpus.inputs:
                allowed = f"{corpus.inputs}, as in the first example"
                raise wrong(example.where, f"{len(example.texts)} texts", allowed)
            lines = []
            for text, lengths in zip(example.texts, result.lengths, strict=True):
                words, is_cut = split_words(text, **how_split)
                counts["empty texts"] += not words
                counts["truncated texts"] += is_cut
                lines.append(" ".join(words))
                lengths.append(len(words) + 1)
            result.labels.append(label)
            result.texts.append(key_of("\n".join(lines)))
            for out, cell in zip(outs, (*lines, example.group, label), strict=True):
                out.write(f"{cell}\n")
    if not result.labels:
        raise wrong(corpus.files[part][0], "no example", "one or more")
    counts["examples"] = len(result.labels)
    counts["distinct"] = len(set(result.texts))
    return result
