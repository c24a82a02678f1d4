"""The parts of a data set, tokenised into files, one example a line."""

import contextlib
import hashlib
import re
import sys
from array import array
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from fairseq_clusterformer.corpora.classification.corpora import Corpus
from fairseq_clusterformer.errors import UserError

_TOKEN = re.compile(r"[^\W_]+|[^\w\s]|_")


@dataclass
class Part:
    """What is known of a part's examples, whose tokens are in files, one example a line."""

    files: list[Path]
    labels: list[str] = field(default_factory=list)
    texts: array = field(default_factory=lambda: array("Q"))  # a hash of each example's texts
    lengths: list[array] = field(default_factory=list)  # of each input, </s> among the tokens
    counts: Counter = field(default_factory=Counter)


def tokens(text: str, tokenised: bool) -> list[str]:
    """Return the text's tokens in lower case.

    Text that has not been `tokenised` before is cut into runs of letters and digits; every other
    character but white space is a token.
    """
    text = text.lower()
    return text.split() if tokenised else _TOKEN.findall(text)


def tokenise(corpus: Corpus, part: str, max_length: int | None, work: Path) -> Part:
    """Write the tokens of a part's examples into files of the folder `work`.

    Args:
        max_length: tokens of an input at most, ``</s>`` among them; None: any number.

    Raises:
        UserError: a label that the data set does not have, or no example.
    """
    from tqdm import tqdm

    files = [work / f"{part}.input{i}" for i in range(corpus.inputs)]
    result = Part(files, lengths=[array("L") for _ in files])
    counts = result.counts
    with contextlib.ExitStack() as stack:
        outs = [stack.enter_context(open(path, "w", encoding="utf-8")) for path in files]
        groups = stack.enter_context(open(work / f"{part}.group", "w", encoding="utf-8"))
        examples = corpus.read(corpus.files[part])
        for example in tqdm(
            examples, desc=f"{part} tokens", unit=" examples", disable=None, leave=False
        ):
            if example.label is None:
                counts["dropped: no gold label"] += 1
                continue
            if example.label not in corpus.labels:
                raise UserError(
                    f"{example.where}: label {example.label!r}; allowed: "
                    f"{', '.join(corpus.labels)}"
                )
            lines = []
            for text, out, lengths in zip(example.texts, outs, result.lengths, strict=True):
                words = tokens(text, corpus.tokenised)
                counts["empty texts"] += not words
                if max_length and len(words) >= max_length:
                    counts["truncated texts"] += 1
                    words = words[: max_length - 1]
                lines.append(" ".join(words))
                lengths.append(len(words) + 1)
                out.write(lines[-1] + "\n")
            groups.write(f"{example.group}\n")
            result.labels.append(corpus.labels[example.label])
            result.texts.append(_hash("\n".join(lines)))
    if not result.labels:
        raise UserError(f"{corpus.files[part][0]}: no example; allowed: one or more")
    counts["examples"] = len(result.labels)
    counts["distinct"] = len(set(result.texts))
    return result


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def warn_of_counts(corpus: Corpus, parts: dict[str, Part]) -> None:
    """Say where a part has another size than the published one."""
    for part, number in (corpus.published or {}).items():
        if (found := len(parts[part].labels)) != number:
            print(
                f"{corpus.name}: warning: {part} has {found:,} examples; published: {number:,}",
                file=sys.stderr,
            )
