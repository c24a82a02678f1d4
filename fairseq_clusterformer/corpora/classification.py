"""From a data set to the folders that fairseq's ``sentence_prediction`` task reads.

The tokenised examples of each part are dealt to train, valid and test, in one folder or in ten
folds. Each folder's dictionary has the words of its own train.
"""

import contextlib
import functools
import json
import math
import random
import shutil
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_clusterformer.data import TOKENIZER
from fairseq_clusterformer.data.unicode import FORM, composed
from fairseq_clusterformer.data.words import words_of
from fairseq_clusterformer.outputs import make_folder

from . import SPLITS
from .download import checksum
from .labelled import LabelledCorpus
from .lines import some, wrong
from .splits import key_of
from .vocabulary import Vocabulary, load_model

if TYPE_CHECKING:
    import torch
    from fairseq.data import Dictionary

    from fairseq_clusterformer.data.subwords import Subwords

VOCABULARY_SIZE = 30_000  # where the user gives no number
RECORD = "data.json"  # in each folder, for the reader and for ``clusterformer classify``
# Of a data set that comes undivided (Quora's questions): about the 10,000 pairs that are usual.
_UNDIVIDED = 1 / 40


@dataclass
class _Examples:
    """All examples in their order, with a line ``CLASS<tab>GROUP<tab>tokens`` of each in a file,
    and of pairs the tokens of the second text."""

    file: Path
    parts: list[str] = field(default_factory=list)  # the part of each
    labels: list[str] = field(default_factory=list)  # its class
    texts: array = field(default_factory=lambda: array("Q"))  # 8 bytes that stand for it
    counts: dict[str, Counter] = field(default_factory=lambda: defaultdict(Counter))  # of parts


def prepare(
    dest: Path,
    corpus: LabelledCorpus,
    *,
    shares: dict[str, float],
    options: dict,
    seed: int = 1,
    vocabulary_size: int = VOCABULARY_SIZE,
    min_count: int = 1,
    max_length: int | None = None,
    force: bool = False,
    vocabulary: Vocabulary | None = None,
) -> dict | None:
    """Prepare `corpus` in the folder `dest`, as `make_folder` does. Raises UserError for files
    that are damaged, or too small to be split.

    Args:
        shares: of train, which become valid and test, where there are none.
        options: others of the command, for the record.
        seed: of the folds, or of the splits that are drawn.
        vocabulary_size: of the dictionary at most, special symbols included.
        min_count: how often a word must be in train to be in the dictionary.
        max_length: of an input, ``</s>`` included; None: any number of tokens.
        vocabulary: with a ``tokenizer.json``.
    """
    model = load_model(vocabulary.model) if vocabulary else None
    max_length = max_length or corpus.max_length
    settings = {"seed": seed, "vocabulary_size": vocabulary_size, "min_count": min_count}
    settings |= {"max_length": max_length, "shares": shares}

    def recipe() -> dict:
        return {
            "name": corpus.name,
            "unicode": FORM,
            "settings": settings | options | corpus.settings,
            "sources": {  # a path may lead into an archive
                f"{part} {n} {(path if path.exists() else path.parent).name}": checksum(path)
                for part, paths in corpus.files.items()
                for n, path in enumerate(paths, 1)
            },
            **(vocabulary.recipe() if vocabulary else {}),
        }

    def build(work: Path, out: Path) -> dict:
        from . import binarize  # which imports fairseq

        options_and_sources, splits = recipe(), {}
        examples = _tokenise(corpus, max_length, work / "examples.tsv", model)
        for folder, dealt in _deal(corpus, examples, shares, seed).items():
            texts = work / "texts"
            facts = _route(corpus, examples, dealt, texts)
            if model is not None:
                dictionary = binarize.symbol_dictionary(model.symbols)
            else:
                words = (binarize.count_words(file) for file in texts.glob("train.input?"))
                limits = {"size": vocabulary_size, "min_count": min_count, "multiple": 1}
                dictionary = binarize.word_dictionary(sum(words, Counter()), **limits)
            _write_folder(corpus, texts, out / folder, dictionary, facts)
            record = {
                "folder": folder,
                "classes": corpus.classes,
                "tokenised": corpus.tokenised,
                "vocabulary": {"size": len(dictionary)},
                "splits": facts,
                "parts": examples.counts,
                **options_and_sources,
            }
            (out / folder / RECORD).write_text(json.dumps(record, indent=1) + "\n")
            if vocabulary:
                shutil.copy(vocabulary.model, out / folder / TOKENIZER)
            sizes = {split: each["examples"] for split, each in facts.items()}
            splits |= {folder: sizes} if folder else {s: {"examples": n} for s, n in sizes.items()}
        return {"splits": splits}

    return make_folder(dest, recipe, build, force)


def split_words(
    text: str, *, tokenised: bool, max_length: int | None, model: "Subwords | None" = None
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
    with contextlib.suppress(ValueError):
        if math.isfinite(number := float(label)):
            return str(number)
    return None


def _tokenise(
    corpus: LabelledCorpus, max_length: int | None, file: Path, model: "Subwords | None"
) -> _Examples:
    """Write the tokens of all parts' examples into a file; raises UserError if a label is not in
    the data set, or if a part has no example."""
    made = _Examples(file)
    how = {"tokenised": corpus.tokenised, "max_length": max_length, "model": model}
    with open(file, "w", encoding="utf-8", newline="\n") as out:
        for part, example in (
            (p, each) for p, f in corpus.files.items() for each in corpus.read(f)
        ):
            counts = made.counts[part]
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
            for text in example.texts:
                words, is_cut = split_words(text, **how)
                counts["empty texts"] += not words
                counts["truncated texts"] += is_cut
                lines.append(" ".join(words))
            counts["examples"] += 1
            made.parts.append(part)
            made.labels.append(label)
            made.texts.append(key_of("\n".join(lines)))
            out.write("\t".join((label, example.group or "", *lines)) + "\n")
    for part, files in corpus.files.items():
        if not made.counts[part]["examples"]:
            raise wrong(files[0], "no example", "one or more")
    return made


def _deal(
    corpus: LabelledCorpus, examples: _Examples, shares: dict[str, float], seed: int
) -> dict[str, list[str]]:
    """The split of each example, for each folder to make."""
    undivided = "all" if "all" in corpus.files else "train"
    own = [number for number, part in enumerate(examples.parts) if part == undivided]
    place = places([examples.labels[number] for number in own], seed)
    if corpus.folds:
        fold = [int(corpus.folds * p) for p in place]
        of_turn = ["test", "valid", *["train"] * (corpus.folds - 2)]  # after the tested fold
        return {
            f"fold{k}": [of_turn[(each - k) % corpus.folds] for each in fold]
            for k in range(corpus.folds)
        }
    if undivided == "all":
        shares = dict.fromkeys(shares, _UNDIVIDED)
    ends, end = {}, 0.0
    for split in ("test", "valid"):
        if shares[split] and split not in corpus.files:
            ends[split] = end = end + shares[split]
    if corpus.apart:
        first: dict[int, int] = {}
        texts = (examples.texts[number] for number in own)
        place = [place[first.setdefault(text, i)] for i, text in enumerate(texts)]
    dealt = examples.parts.copy()
    for number, p in zip(own, place, strict=True):
        dealt[number] = next((split for split, end in ends.items() if p < end), "train")
    if missing := [split for split in (*ends, "train") if split not in dealt]:
        problem = f"{len(place):,} examples are too few to draw {missing[0]} from"
        allowed = "more examples, a larger share, or files of each split"
        raise wrong(corpus.files[undivided][0], problem, allowed)
    return {"": dealt}


def places(labels: Sequence[str], seed: int) -> list[float]:
    """Return a random number in [0, 1) for each example, spread alike over each class: the
    examples in an interval are a stratified sample of its length."""
    result, by_class, rng = [0.0] * len(labels), defaultdict(list), random.Random(seed)
    for index, label in enumerate(labels):
        by_class[label].append(index)
    for _, members in sorted(by_class.items()):
        rng.shuffle(members)
        for rank, index in enumerate(members):
            result[index] = (rank + 0.5) / len(members)
    return result


def _route(
    corpus: LabelledCorpus, examples: _Examples, dealt: list[str], folder: Path
) -> dict[str, dict]:
    """Write the columns of each split into files SPLIT.COLUMN; return each split's examples and
    classes, and how many of its texts are in train too."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    names = ["label", "group", "input0", "input1"][: 2 + corpus.inputs]
    labels, texts, facts = defaultdict(Counter), defaultdict(list), {}
    with contextlib.ExitStack() as stack:

        @functools.cache
        def column(split: str, name: str):
            return stack.enter_context(open(folder / f"{split}.{name}", "w", encoding="utf-8"))

        lines = stack.enter_context(open(examples.file, encoding="utf-8", newline="\n"))
        for split, line, text in zip(dealt, lines, examples.texts, strict=True):
            cells = line[:-1].split("\t")
            for name, cell in zip(names, cells, strict=True):
                column(split, name).write(f"{cell}\n")
            labels[split][cells[0]] += 1
            texts[split].append(text)
    known = set(texts["train"])
    for split in filter(labels.__contains__, SPLITS):  # a user's own data may have no test set
        classes = {name: labels[split][name] for name in corpus.classes}
        facts[split] = {"examples": labels[split].total(), "classes": classes}
        if split != "train":
            facts[split]["also in train"] = sum(text in known for text in texts[split])
    return facts


def _write_folder(
    corpus: LabelledCorpus, texts: Path, out: Path, dictionary: "Dictionary", facts: dict
) -> None:
    """Write a folder as the task reads it; count the tokens of each split."""
    from fairseq_clusterformer.data.coding import FileItems, TextCoding, blocks_of_lines

    from . import binarize

    items = TextCoding(dictionary).items
    coded = {f"input{i}": (dictionary, items) for i in range(corpus.inputs)}
    plain = {"group": "txt"} if corpus.grouped else {}
    if corpus.classes:
        labels = binarize.symbol_dictionary(corpus.classes)
        code = functools.partial(_label_items, dictionary=labels)
        coded["label"] = labels, FileItems(blocks_of_lines, code)
    else:  # numbers, in the files that fairseq's sentence_prediction reads
        plain["label"] = "label"
    for name, (symbols, items) in coded.items():
        (out / name).mkdir(parents=True)
        files = {split: texts / f"{split}.{name}" for split in facts}
        for split, count in binarize.write_dataset(files, out / name, symbols, items).items():
            if symbols is dictionary:
                facts[split][f"{name} tokens"] = count["tokens"]
    for name, suffix in plain.items():
        (out / name).mkdir()
        for split in facts:
            shutil.copy(texts / f"{split}.{name}", out / name / f"{split}.{suffix}")


def _label_items(block: bytes, dictionary: "Dictionary") -> Iterator["torch.Tensor"]:
    import torch

    from fairseq_clusterformer.data.coding import split_lines

    for line in split_lines(block.decode()):
        yield torch.tensor([dictionary.indices[line]])
