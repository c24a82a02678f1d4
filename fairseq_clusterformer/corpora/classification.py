"""From a data set to folders that fairseq's ``sentence_prediction`` reads: one, or one a fold."""

import json
import math
import random
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fairseq_clusterformer.data import TOKENIZER
from fairseq_clusterformer.data.characters import FORM, composed, words_of
from fairseq_clusterformer.errors import bad_option, reading
from fairseq_clusterformer.outputs import make_folder

from . import SPLITS
from .files import checksums, some, wrong
from .labelled import LabelledCorpus
from .vocabulary import Vocabulary

if TYPE_CHECKING:
    from fairseq_clusterformer.data.subwords import Subwords

VOCABULARY_SIZE = 30_000  # where the user gives no number
RECORD = "data.json"  # in each folder, for the reader and for ``clusterformer classify``
# Of a data set that comes undivided (Quora's questions): about the 10,000 pairs that are usual.
_UNDIVIDED = 1 / 40


class _Example(NamedTuple):
    part: str
    label: str  # its class
    group: str
    texts: tuple[str, ...]  # their tokens, with blanks between


def prepare(
    dest: Path,
    corpus: LabelledCorpus,
    *,
    shares: dict[str, float],
    seed: int = 1,
    vocabulary_size: int = VOCABULARY_SIZE,
    min_count: int = 1,
    max_length: int | None = None,
    force: bool = False,
    vocabulary: Vocabulary | None = None,
) -> dict | None:
    """Prepare `corpus` in the folder `dest`, as `make_folder` does; the options are those of
    ``clusterformer prepare classification``. `shares` of train become valid and test, where there
    are none. Raises UserError for files that are damaged, or too small to be split."""
    model, max_length = None, max_length or corpus.max_length
    if vocabulary:
        from fairseq_clusterformer.data.subwords import load  # takes too long for --help

        with reading(vocabulary.model, "a tokenizer.json"):
            model = load(vocabulary.model)
    settings = {"seed": seed, "vocabulary_size": vocabulary_size, "max_length": max_length}
    settings |= {"min_count": min_count, "shares": shares, **corpus.settings}

    def recipe() -> dict:
        sources = {part: checksums(paths) for part, paths in corpus.files.items()}
        own = {"name": corpus.name, "unicode": FORM, "settings": settings, "sources": sources}
        return own | (vocabulary.recipe() if vocabulary else {})

    def build(work: Path, out: Path) -> dict:
        options_and_sources, splits = recipe(), {}
        examples, counts = _tokenise(corpus, max_length, model)
        for folder, dealt in _deal(corpus, examples, shares, seed).items():
            about = {"folder": folder, "classes": corpus.classes, "tokenised": corpus.tokenised}
            how = work / "texts", out / folder, model, vocabulary_size, min_count
            facts = _write_folder(corpus, examples, dealt, *how)
            record = about | facts | {"parts": counts} | options_and_sources
            (out / folder / RECORD).write_text(json.dumps(record, indent=1) + "\n")
            if vocabulary:
                shutil.copy(vocabulary.model, out / folder / TOKENIZER)
            sizes = {split: each["examples"] for split, each in facts["splits"].items()}
            splits |= {folder: sizes} if folder else {s: {"examples": n} for s, n in sizes.items()}
        return {"splits": splits}

    return make_folder(dest, recipe, build, force)


def split_words(
    text: str, *, tokenised: bool, max_length: int | None, model: "Subwords | None" = None
) -> tuple[list[str], bool]:
    """Return the words of a text in lower case, or a model's symbols, and whether its end was cut
    off at `max_length` tokens (``</s>`` is one). `tokenised`: words stand between blanks."""
    text = composed(text)
    if model is not None:
        words = [model.symbols[i] for i in model.encode(text).ids]
    else:
        words = text.lower().split() if tokenised else words_of(text.lower())
    cut = bool(max_length) and len(words) >= max_length
    return words[: max_length - 1] if cut else words, cut


def _tokenise(
    corpus: LabelledCorpus, max_length: int | None, model: "Subwords | None"
) -> tuple[list[_Example], dict[str, Counter]]:
    made, counts = [], {}
    how = {"tokenised": corpus.tokenised, "max_length": max_length, "model": model}
    for part, files in corpus.files.items():
        count = counts[part] = Counter()
        for example in corpus.read(files):
            if example.label is None:
                count["dropped: no gold label"] += 1
                continue
            try:
                label = corpus.labels[example.label] if corpus.labels else float(example.label)
                if not corpus.labels and not math.isfinite(label):
                    raise ValueError(label)
            except (KeyError, ValueError):
                allowed = some(corpus.labels) if corpus.labels else "a finite number"
                raise wrong(example.where, f"label is {example.label!r}", allowed) from None
            if len(example.texts) != corpus.inputs:
                allowed = f"{corpus.inputs}, as in the first example"
                raise wrong(example.where, f"{len(example.texts)} texts", allowed)
            words, cut = zip(*(split_words(text, **how) for text in example.texts), strict=True)
            count["empty texts"] += sum(not each for each in words)
            count["truncated texts"] += sum(cut)
            count["examples"] += 1
            texts = tuple(map(" ".join, words))
            made.append(_Example(part, str(label), example.group or "", texts))
        if not count["examples"]:
            raise wrong(files[0], "no example", "one or more")
    return made, counts


def _deal(
    corpus: LabelledCorpus, examples: list[_Example], shares: dict[str, float], seed: int
) -> dict[str, list[str]]:
    """The split of each example, for each folder to make."""
    undivided = "all" if "all" in corpus.files else "train"
    own = [example for example in examples if example.part == undivided]
    # a number in [0, 1) for each, spread alike over each class: an interval is a stratified sample
    places, by_class, rng = [0.0] * len(own), defaultdict(list), random.Random(seed)
    for index, example in enumerate(own):
        by_class[example.label].append(index)
    for _, members in sorted(by_class.items()):
        rng.shuffle(members)
        for rank, index in enumerate(members):
            places[index] = (rank + 0.5) / len(members)
    if n := corpus.folds:
        of_turn = ["test", "valid", *["train"] * (n - 2)]  # after the tested fold
        fold = [int(n * place) for place in places]
        return {f"fold{k}": [of_turn[(each - k) % n] for each in fold] for k in range(n)}
    ends, end = {}, 0.0
    for split in ("test", "valid"):
        share = _UNDIVIDED if undivided == "all" else shares[split]
        if share and split not in corpus.files:
            ends[split] = end = end + share
    if corpus.apart:
        first = {}
        places = [first.setdefault(e.texts, at) for e, at in zip(own, places, strict=True)]
    of_own = (next((s for s, end in ends.items() if place < end), "train") for place in places)
    dealt = [next(of_own) if each.part == undivided else each.part for each in examples]
    if missing := [split for split in (*ends, "train") if split not in dealt]:
        problem = f"{len(own):,} examples are too few to draw {missing[0]} from"
        allowed = "more examples, a larger share, or files of each split"
        raise wrong(corpus.files[undivided][0], problem, allowed)
    return {"": dealt}


def _write_folder(
    corpus: LabelledCorpus,
    examples: list[_Example],
    dealt: list[str],
    texts: Path,
    out: Path,
    model: "Subwords | None",
    vocabulary_size: int,
    min_count: int,
) -> dict:
    """Write a folder, with `texts` for its columns; return its dictionary's size, and facts."""
    import torch

    from fairseq_clusterformer.data.coding import FileItems, TextCoding, blocks_of_lines

    from . import binarize  # which imports fairseq

    shutil.rmtree(texts, ignore_errors=True)
    texts.mkdir()
    facts, known, inputs = {}, set(), [f"input{i}" for i in range(corpus.inputs)]
    for split in filter(dealt.__contains__, SPLITS):  # a user's own data may have no test set
        own = [each for each, of in zip(examples, dealt, strict=True) if of == split]
        _, labels, groups, columns = zip(*own, strict=True)
        count = Counter(labels)
        classes = {name: count[name] for name in corpus.classes}
        facts[split] = {"examples": len(own), "classes": classes}
        if split == "train":
            known.update(columns)
        else:
            facts[split]["also in train"] = sum(each in known for each in columns)
        columns = (labels, groups, *zip(*columns, strict=True))
        for name, cells in zip(("label", "group", *inputs), columns, strict=True):
            (texts / f"{split}.{name}").write_text("".join(f"{x}\n" for x in cells), "utf-8")
    if model is not None:
        dictionary = binarize.symbol_dictionary(model.symbols)
    else:
        words = binarize.count_words(texts / f"train.{name}" for name in inputs)
        dictionary = binarize.word_dictionary(words, vocabulary_size, 1, min_count)
        if len(dictionary) == dictionary.nspecial:
            problem = f"no word of train is left, with --min-count {min_count}"
            raise bad_option("--vocabulary-size", vocabulary_size, "more, or fewer times", problem)
    class_dictionary = binarize.symbol_dictionary(corpus.classes)

    def class_items(block: bytes) -> Iterator:
        return (torch.tensor([class_dictionary.indices[c]]) for c in block.decode().splitlines())

    coded = dict.fromkeys(inputs, (dictionary, TextCoding(dictionary).items))
    plain = {"group": "txt"} if corpus.grouped else {}
    if corpus.classes:
        coded["label"] = class_dictionary, FileItems(blocks_of_lines, class_items)
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
    return {"vocabulary": {"size": len(dictionary)}, "splits": facts}
