"""From a data set to the folders that fairseq's ``sentence_prediction`` task reads.

The tokenised examples of each part are dealt to train, valid and test, in one folder or in ten
folds. Each folder's dictionary has the words of its own train.
"""

import contextlib
import itertools
import json
import random
import shutil
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_clusterformer.data.unicode import FORM
from fairseq_clusterformer.outputs import make_folder

from .. import SPLITS
from ..download import checksum
from ..lines import wrong
from ..vocabulary import Vocabulary, load_model
from .readers import LabelledCorpus
from .tokenise import TokenisedPart, tokenise

if TYPE_CHECKING:
    import torch
    from fairseq.data import Dictionary

    from fairseq_clusterformer.data.subwords import Subwords

RECORD = "data.json"  # in each folder, for the reader and for ``clusterformer classify``
# Of a data set that comes undivided (Quora's questions): about the 10,000 pairs that are usual.
_UNDIVIDED = 1 / 40

Dealt = dict[str, Sequence[str]]  # of each part, the split of each example


@dataclass(frozen=True)
class Settings:
    """Options of the preparation, the same for all data sets."""

    seed: int = 1  # of the folds, or of the splits that are drawn
    vocabulary_size: int = 30_000  # of the dictionary at most, special symbols included
    min_count: int = 1  # how often a word must be in train to be in the dictionary
    max_length: int | None = None  # of an input, ``</s>`` included; None: any number of tokens
    validation: float = 0.1  # the share of train that becomes valid, where there is none
    test: float = 0.0  # the same of test; 0: there is no test set then


def prepare(
    dest: Path,
    corpus: LabelledCorpus,
    settings: Settings,
    options: dict,
    force: bool = False,
    vocabulary: Vocabulary | None = None,
) -> dict | None:
    """Prepare `corpus` in the folder `dest`, as `make_folder` does; other `options` of the command
    are for the record. A `vocabulary` has a ``tokenizer.json``. Raises UserError for files that
    are damaged, or too small to be split."""
    model = load_model(vocabulary.model) if vocabulary else None

    def recipe() -> dict:
        return {
            "name": corpus.name,
            "unicode": FORM,
            "settings": vars(settings) | options | corpus.settings,
            "sources": {  # a path may lead into an archive
                f"{part} {n} {(path if path.exists() else path.parent).name}": checksum(path)
                for part, paths in corpus.files.items()
                for n, path in enumerate(paths, 1)
            },
            **(vocabulary.recipe() if vocabulary else {}),
        }

    def build(work: Path, out: Path) -> dict:
        options_and_sources = recipe()
        parts = {
            part: tokenise(corpus, part, settings.max_length, work, model) for part in corpus.files
        }
        for part, number in (corpus.published or {}).items():
            if (found := len(parts[part].labels)) != number:
                told = f"{part} has {found:,} examples; published: {number:,}"
                print(f"{corpus.name}: warning: {told}", file=sys.stderr)
        splits = {}
        for folder, dealt in _deal(corpus, parts, settings).items():
            texts = work / "texts"
            _route(parts, dealt, texts)
            facts = _describe(corpus, parts, dealt)
            record = {
                "folder": folder,
                "classes": corpus.classes,
                "tokenised": corpus.tokenised,
                "vocabulary": _write_folder(corpus, settings, texts, out / folder, model),
                "splits": facts,
                "parts": {part: dict(each.counts) for part, each in parts.items()},
                "published": corpus.published,
                **options_and_sources,
            }
            (out / folder / RECORD).write_text(json.dumps(record, indent=1) + "\n")
            if vocabulary:
                shutil.copy(vocabulary.model, out / folder / "tokenizer.json")
            splits |= _summary(folder, facts)
        return {"splits": splits}

    return make_folder(dest, recipe, build, force)


def _deal(
    corpus: LabelledCorpus, parts: dict[str, TokenisedPart], settings: Settings
) -> dict[str, Dealt]:
    """The split of each example, for each folder to make."""
    dealt = {part: [part] * len(each.labels) for part, each in parts.items()}
    undivided = "all" if "all" in parts else "train"
    place = places(parts[undivided].labels, settings.seed)
    if corpus.folds:
        fold = [int(corpus.folds * p) for p in place]
        of_turn = ["test", "valid", *["train"] * (corpus.folds - 2)]  # after the tested fold
        return {
            f"fold{k}": {"all": [of_turn[(each - k) % corpus.folds] for each in fold]}
            for k in range(corpus.folds)
        }
    shares = {"test": settings.test, "valid": settings.validation}
    if undivided == "all":
        shares = dict.fromkeys(shares, _UNDIVIDED)
    shares = {split: share for split, share in shares.items() if share and split not in parts}
    if corpus.apart:
        first: dict[int, int] = {}
        place = [place[first.setdefault(text, i)] for i, text in enumerate(parts[undivided].texts)]
    ends = dict(zip(shares, itertools.accumulate(shares.values()), strict=True))
    dealt[undivided] = [
        next((split for split, end in ends.items() if p < end), "train") for p in place
    ]
    for split in (*ends, "train"):
        if split not in dealt[undivided]:
            problem = f"{len(place):,} examples are too few to draw {split} from"
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


def _summary(folder: str, facts: dict[str, dict]) -> dict[str, dict[str, int]]:
    if folder:
        return {folder: {split: each["examples"] for split, each in facts.items()}}
    return {
        split: {"examples": each["examples"]}
        | {key: each[key]["sum"] for key in each if key.endswith("tokens")}
        for split, each in facts.items()
    }


def _route(parts: dict[str, TokenisedPart], dealt: Dealt, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for part, each in parts.items():
        for column, path in each.files.items():
            with open(path, encoding="utf-8") as lines, contextlib.ExitStack() as stack:
                outs = {
                    split: stack.enter_context(
                        open(folder / f"{split}.{column}", "w", encoding="utf-8")
                    )
                    for split in set(dealt[part])
                }
                for split, line in zip(dealt[part], lines, strict=True):
                    outs[split].write(line)


def _write_folder(
    corpus: LabelledCorpus, settings: Settings, texts: Path, out: Path, model: "Subwords | None"
) -> dict[str, int]:
    """Write a folder as the task reads it; return the size of its vocabulary."""
    from fairseq_clusterformer.data.coding import FileItems, TextCoding, blocks_of_lines

    from .. import binarize  # which imports fairseq

    inputs = [f"input{i}" for i in range(corpus.inputs)]
    if model is not None:
        dictionary = binarize.symbol_dictionary(model.symbols)
        size = {"size": len(dictionary)}
    else:
        words = sum((binarize.count_words(texts / f"train.{name}") for name in inputs), Counter())
        dictionary = binarize.word_dictionary(
            words, size=settings.vocabulary_size, min_count=settings.min_count, multiple=1
        )
        size = {"size": len(dictionary), "words in train": len(words) - 1}  # </s> is counted too
    coded = {name: (dictionary, TextCoding(dictionary).items) for name in inputs}
    if corpus.classes:
        labels = binarize.symbol_dictionary(corpus.classes)
        code = partial(_label_items, dictionary=labels)
        coded["label"] = labels, FileItems(blocks_of_lines, code)
    else:  # numbers, in the files that fairseq's sentence_prediction reads
        (out / "label").mkdir()
        for file in texts.glob("*.label"):
            file.rename(out / "label" / file.name)
    for name, (symbols, items) in coded.items():
        (out / name).mkdir(parents=True)
        files = {split: texts / f"{split}.{name}" for split in SPLITS}
        files = {split: file for split, file in files.items() if file.is_file()}
        binarize.write_dataset(files, out / name, symbols, items)
    if corpus.grouped:
        (out / "group").mkdir()
        for file in texts.glob("*.group"):
            file.rename(out / "group" / f"{file.stem}.txt")
    return size


def _label_items(block: bytes, dictionary: "Dictionary") -> Iterator["torch.Tensor"]:
    import torch

    from fairseq_clusterformer.data.coding import split_lines

    for line in split_lines(block.decode()):
        yield torch.tensor([dictionary.indices[line.strip()]])


def _describe(
    corpus: LabelledCorpus, parts: dict[str, TokenisedPart], dealt: Dealt
) -> dict[str, dict]:
    """Each split's classes and lengths, and how many of its texts are in train too."""
    import numpy as np

    of = np.array([split for splits in dealt.values() for split in splits])
    labels = [label for part in parts.values() for label in part.labels]
    texts = np.concatenate([part.texts for part in parts.values()])
    facts = {}
    for split in SPLITS:
        own = of == split
        if not own.any():  # a user's own data may have no test set
            continue
        counts = Counter(itertools.compress(labels, own))
        classes = {name: counts[name] for name in corpus.classes}
        facts[split] = {"examples": int(own.sum()), "classes": classes}
        if not corpus.classes:
            numbers = sorted(map(float, counts.elements()))
            mean = sum(numbers) / len(numbers)
            facts[split]["label"] = {"least": numbers[0], "mean": mean, "most": numbers[-1]}
        facts[split]["distinct"] = len(np.unique(texts[own]))
        if split != "train":
            facts[split]["also in train"] = int(np.isin(texts[own], texts[of == "train"]).sum())
        for i in range(corpus.inputs):
            found = np.concatenate([part.lengths[i] for part in parts.values()])[own]
            facts[split][f"input{i} tokens"] = {
                "sum": int(found.sum()),
                "mean": round(float(found.mean()), 1),
                "95th percentile": int(np.percentile(found, 95, method="higher")),
                "most": int(found.max()),
            }
    return facts
