"""enwik8, WikiText-103, and any folder of plain text, each prepared as a folder for fairseq.

``corpora.binarize`` is imported late: with fairseq it takes seconds; mistakes are to show at once.
"""

import codecs
import itertools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fairseq_clusterformer.data import RECORD
from fairseq_clusterformer.data.unicode import FORM
from fairseq_clusterformer.errors import UserError, bad_option, read_json
from fairseq_clusterformer.outputs import copy_part, make_folder, make_part

from .. import SPLITS
from ..download import Archive, checksum, obtain
from ..lines import naming_all
from ..vocabulary import Vocabulary, copy_model, write_tokenizer
from .text import (
    TextReader,
    by_document,
    by_sentence,
    contiguous,
    cut,
    find_texts,
    names_of,
    split_files,
    write_splits,
)

ENWIK8 = Archive(
    url="http://mattmahoney.net/dc/enwik8.zip",
    checksum="sha256:547994d9980ebed1288380d652999f38a14fe291a6247c157c3d33d4932534bc",
    members={"enwik8": "sha1:57b8363b814821dc9d47aa4d41f58733519076b2"},
)
ENWIK8_SIZES = (90_000_000, 5_000_000, 5_000_000)

WIKITEXT103 = Archive(
    url="https://wikitext.smerity.com/wikitext-103-v1.zip",
    checksum="sha256:242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590",
    members={
        "wiki.train.tokens": "sha1:b7497e2dfe77e72cfef5e3dbc61b7b53712ac211",
        "wiki.valid.tokens": "sha1:c326ac59dc587676d58c422eb8a03e119582f92b",
        "wiki.test.tokens": "sha1:8a5befc548865cec54ed4273cf87dbbad60d1e47",
    },
)
# Of train, with </s> and <unk>; tokens of train, valid and test with one </s> a line.
WIKITEXT103_TYPES = 267_735
WIKITEXT103_TOKENS = (103_227_021, 217_646, 245_569)


def prepare_enwik8(
    dest: Path,
    source: Path | None = None,
    *,
    archive=ENWIK8,
    sizes=ENWIK8_SIZES,
    workers: int | None = None,
) -> dict | None:
    """Prepare enwik8 by bytes: its first `sizes` bytes are train, valid and test. Returns what
    `make_folder` does. `workers`: processes; None: one for each core."""

    def build(work: Path, out: Path) -> dict:
        (path,) = obtain([archive], source, work).values()
        if path.stat().st_size != sum(sizes):
            raise UserError(f"{path} has {path.stat().st_size:,} bytes; allowed: {sum(sizes):,}")
        counts = cut(path, work, sizes)
        return {"splits": _added(counts, _binarize(_texts(work), work, out, workers=workers))}

    recipe = {"corpus": "enwik8", "members": archive.members, "sizes": sizes}
    return make_folder(dest, recipe, build)


def prepare_wikitext103(
    dest: Path,
    source: Path | None = None,
    *,
    archive=WIKITEXT103,
    types=WIKITEXT103_TYPES,
    tokens=WIKITEXT103_TOKENS,
    workers: int | None = None,
) -> dict | None:
    """Prepare WikiText-103 by words, and check its `types` and `tokens`; returns as above."""
    form = "none"  # the published numbers are of its words as they are

    def build(work: Path, out: Path) -> dict:
        texts = dict(zip(SPLITS, obtain([archive], source, work).values(), strict=True))
        how = {"words": True, "form": form, "workers": workers}
        splits = _binarize(texts, work, out, **how)
        words = read_json(work / "parts" / "model" / RECORD)["words"]
        found = [words, *(count["tokens"] for count in splits.values())]
        if found != (expected := [types, *tokens]):
            raise UserError(f"WikiText-103 has types and tokens {found}; allowed: {expected}")
        return {"types": types, "splits": splits}

    recipe = {"corpus": "wikitext-103", "members": archive.members, "unicode": form}
    return make_folder(dest, recipe, build)


def prepare_text(
    source: Path,
    dest: Path,
    *,
    vocabulary: Vocabulary | None = None,
    words: bool = False,
    sentences: bool = False,
    document_separator: str | None = None,
    split: str | None = None,
    valid_fraction: float = 0.05,
    test_fraction: float = 0.05,
    pattern: Sequence[str] | None = None,
    encoding: str = "utf-8",
    workers: int | None = None,
) -> dict | None:
    """Prepare the text files in `source`, and print which of them were taken. The options are
    those of ``clusterformer prepare lm text``; without a `vocabulary` or `words`, text becomes
    bytes."""
    source, dest = source.resolve(), dest.resolve()
    encoding = codecs.lookup(encoding).name
    by_bytes = not (words or vocabulary)
    fractions = {"valid": valid_fraction, "test": test_fraction}
    if dest.is_relative_to(source):
        problem = "lies in SOURCE, where the next run would read it as text"
        raise bad_option("DEST", dest, "a folder outside SOURCE", problem)
    if valid_fraction + test_fraction >= 1:
        problem = f"--valid-fraction is {valid_fraction}, and nothing remains for train"
        allowed = "a sum with --valid-fraction below 1"
        raise bad_option("--test-fraction", test_fraction, allowed, problem)
    if sentences and by_bytes:
        raise bad_option("--sentences", "given", "together with subwords or --words")
    texts, others = find_texts(source, pattern)
    skipped = {"other names than --pattern" if pattern else "not text": others}
    split, files = _way(source, texts, split, fractions, separated=document_separator is not None)
    if split == "files":
        named = set(itertools.chain.from_iterable(files.values()))
        skipped["not named after a split"] = [path for path in texts if path not in named]
        texts = [path for path in texts if path in named]
    reader = TextReader(document_separator, encoding)

    def write_texts(_work: Path, out: Path) -> dict:
        if split == "files":
            parts = ((name, lines) for name in SPLITS for lines in reader.documents(files[name]))
        else:
            divide = by_document if split == "documents" else contiguous
            parts = divide(texts, reader, fractions)
        if sentences:
            parts = by_sentence(parts)
        with naming_all(texts, encoding, "--encoding NAME for another, or --pattern without it"):
            counts = write_splits(parts, out)
        reader.check_separator(f"SOURCE {source}")
        return {"splits": counts}

    def build(work: Path, out: Path) -> dict:
        _report(texts, split, skipped)
        folder, made = make_part(work, "texts", write_texts)
        how = {"words": words, "lines": sentences, "workers": workers}
        tokens = _binarize(_texts(folder), work, out, vocabulary, **how)
        return {"splits": _added(made["splits"], tokens)}

    trained = vocabulary.train if vocabulary else None
    recipe = {
        "corpus": "text",
        **({} if by_bytes else {"unicode": FORM}),
        "sentencepiece": trained,
        **({"words": True} if words else {}),
        **(vocabulary.recipe() if vocabulary and not trained else {}),
        **({"sentences": True} if sentences else {}),
        **({} if encoding == "utf-8" else {"encoding": encoding}),
        "document_separator": document_separator,
        "split": split,
        "fractions": None if split == "files" else fractions,
        "train_bytes": None,  # an option that was; so folders made then are known
    }

    def whole_recipe() -> dict:
        sums = {path.relative_to(source.parent).as_posix(): checksum(path) for path in texts}
        return {**recipe, "files": sums}

    return make_folder(dest, whole_recipe, build)


def _way(
    source: Path, texts: list[Path], split: str | None, fractions: dict, *, separated: bool
) -> tuple[str, dict[str, list[Path]]]:
    """How texts are split, as --split says or they ask for, and each split's files."""
    files = split_files(source, texts) if split in (None, "files") else {}
    if split == "files" and not files:
        problem = f"no file in {source} is named after train, valid or test"
        raise bad_option("--split", split, "documents or contiguous", problem)
    # of fewer files, whole ones would be more than a split's fraction
    few = len(texts) * min(fractions.values()) < 1 and not separated
    return split or ("files" if files else "contiguous" if few else "documents"), files


def _report(texts: Sequence[Path], split: str, skipped: dict[str, list[Path]]) -> None:
    kinds = Counter(path.suffix or "without a suffix" for path in texts).most_common()
    named = ", ".join(f"{number} {kind}" for kind, number in kinds)
    print(f"taken: {len(texts)} files ({named}), split by --split {split}")
    for reason, paths in skipped.items():
        if paths:
            print(f"skipped, {reason}: {names_of(paths)}")


def _texts(folder: Path) -> dict[str, Path]:
    return {split: folder / f"{split}.txt" for split in SPLITS}


def _added(counts: dict, more: dict) -> dict:
    return {split: counts[split] | more[split] for split in counts}


def _binarize(
    texts: dict[str, Path],
    work: Path,
    out: Path,
    vocabulary: Vocabulary | None = None,
    *,
    words: bool = False,
    form: str = FORM,
    lines: bool = False,
    workers: int | None = None,
) -> dict:
    """Binarise the texts; return the tokens and items of each split. With `lines`, each line is an
    item, whatever the unit. The part "model" counts the words."""
    from fairseq_clusterformer.data.coding import TextCoding

    from .. import binarize

    def write_model(_work: Path, folder: Path) -> dict:
        counts = Counter()
        if vocabulary:
            if vocabulary.train:
                vocabulary.train_model(texts["train"], folder)
            copy_model(vocabulary, folder)
            return {}
        if words:
            how = {"workers": workers, "kept": work / "parts"}
            counts = binarize.count_words(texts["train"], form, **how)
            dictionary = binarize.word_dictionary(counts)
        else:
            dictionary = binarize.byte_dictionary()
        dictionary.save(str(folder / "dict.txt"))
        write_tokenizer(folder, dictionary, form=form if words else "none")
        return {"words": len(counts)}

    model, _ = make_part(work, "model", write_model)
    copy_part(model, out)
    coding = TextCoding.from_folder(out)
    if words:
        coding.form = form
    items = coding.line_items if lines else coding.items
    how = {"workers": workers, "kept": work / "parts"}
    return binarize.write_dataset(texts, out, coding.dictionary, items, **how)
