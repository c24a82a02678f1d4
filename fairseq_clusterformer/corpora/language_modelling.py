"""enwik8, WikiText-103, and any folder of plain text, each prepared as a folder for fairseq."""

from functools import partial
from pathlib import Path
from typing import NamedTuple

from fairseq_clusterformer.data.characters import FORM, byte_symbols
from fairseq_clusterformer.errors import bad_option
from fairseq_clusterformer.outputs import make_folder

from . import SPLITS
from .download import Archive, checksum, obtain
from .lines import some
from .texts import (
    by_document,
    by_sentence,
    contiguous,
    documents,
    find_texts,
    split_files,
    write_splits,
)
from .vocabulary import Vocabulary, write_tokenizer


class KnownText(NamedTuple):
    """A corpus whose files are used as they are."""

    name: str
    about: str  # for the command's help
    archive: Archive  # whose members are train, valid and test
    sizes: tuple[int, ...] = ()  # of a single member: the bytes of train and valid; others: test
    words: bool = False  # as tokens, split at blanks; else bytes


KNOWN = {
    "enwik8": KnownText(
        "enwik8",
        "100 MB of Wikipedia, by bytes",
        Archive(
            "http://mattmahoney.net/dc/enwik8.zip",
            "sha256:547994d9980ebed1288380d652999f38a14fe291a6247c157c3d33d4932534bc",
            {"enwik8": "sha1:57b8363b814821dc9d47aa4d41f58733519076b2"},
        ),
        (90_000_000, 5_000_000),
    ),
    "wikitext103": KnownText(
        "wikitext-103",
        "103 million words of Wikipedia",
        Archive(
            "https://wikitext.smerity.com/wikitext-103-v1.zip",
            "sha256:242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590",
            {
                "wiki.train.tokens": "sha1:b7497e2dfe77e72cfef5e3dbc61b7b53712ac211",
                "wiki.valid.tokens": "sha1:c326ac59dc587676d58c422eb8a03e119582f92b",
                "wiki.test.tokens": "sha1:8a5befc548865cec54ed4273cf87dbbad60d1e47",
            },
        ),
        words=True,
    ),
}


def prepare_known(
    dest: Path, known: KnownText, source: Path | None = None, *, workers: int | None = None
) -> dict | None:
    """Prepare a known corpus, from the folder `source` or downloaded, as `make_folder` does.
    `workers`: processes; None: one for each core."""
    form = "none"  # the published numbers are of its text as it is

    def build(work: Path, out: Path) -> dict:
        texts = dict(zip(SPLITS, obtain([known.archive], source, work).values(), strict=False))
        if known.sizes:
            with open(texts["train"], "rb") as whole:
                for split, size in zip(SPLITS, (*known.sizes, -1), strict=True):
                    texts[split] = work / f"{split}.txt"
                    texts[split].write_bytes(whole.read(size))
        how = {"words": known.words, "form": form, "workers": workers}
        return {"splits": _binarize(texts, out, **how)}

    recipe = {"corpus": known.name, "members": known.archive.members, "sizes": known.sizes}
    return make_folder(dest, recipe | {"unicode": form}, build)


def prepare_text(
    dest: Path,
    source: Path,
    *,
    vocabulary: Vocabulary | None = None,
    words: bool = False,
    sentences: bool = False,
    document_separator: str | None = None,
    valid_fraction: float = 0.05,
    test_fraction: float = 0.05,
    workers: int | None = None,
) -> dict | None:
    """Prepare the text files in `source`, and print which of them were taken. The options are
    those of ``clusterformer prepare lm text``; without a `vocabulary` or `words`, text becomes
    bytes."""
    source, dest = source.resolve(), dest.resolve()
    by_bytes = not (words or vocabulary)
    fractions = {"valid": valid_fraction, "test": test_fraction}
    if dest.is_relative_to(source):
        problem = "lies in SOURCE, where the next run would read it as text"
        raise bad_option("DEST", dest, "a folder outside SOURCE", problem)
    if valid_fraction + test_fraction >= 1:
        allowed = "a sum with --valid-fraction below 1"
        raise bad_option("--test-fraction", test_fraction, allowed, f"with {valid_fraction}")
    if sentences and by_bytes:
        raise bad_option("--sentences", "given", "together with subwords or --words")
    texts, skipped = find_texts(source)
    split_of = split_files(source, texts)
    # of fewer files, whole ones would be more than a split's fraction
    few = len(texts) * min(fractions.values()) < 1 and document_separator is None
    split = "files" if split_of else "contiguous" if few else "documents"
    if split_of:
        skipped += [path for path in texts if path not in split_of]
        texts = list(split_of)

    def build(work: Path, out: Path) -> dict:
        passed = f"; skipped: {some(path.name for path in skipped)}" if skipped else ""
        print(f"taken: {len(texts)} files, split by {split}{passed}")
        read = partial(documents, texts, document_separator)
        if split_of:
            parts = ((split_of[path], lines) for path, lines in read())
        else:
            parts = (by_document if split == "documents" else contiguous)(read, fractions)
        counts = write_splits(by_sentence(parts) if sentences else parts, work)
        how = {"words": words, "lines": sentences, "workers": workers}
        paths = {name: work / f"{name}.txt" for name in SPLITS}
        found = _binarize(paths, out, vocabulary, **how)
        return {"splits": {name: counts[name] | found[name] for name in SPLITS}}

    def recipe() -> dict:
        return {
            "corpus": "text",
            "unicode": "none" if by_bytes else FORM,
            "words": words,
            **(vocabulary.recipe() if vocabulary else {}),
            "sentences": sentences,
            "document_separator": document_separator,
            "split": split,
            "fractions": None if split_of else fractions,
            "files": {
                path.relative_to(source.parent).as_posix(): checksum(path) for path in texts
            },
        }

    return make_folder(dest, recipe, build)


def _binarize(
    texts: dict[str, Path],
    out: Path,
    vocabulary: Vocabulary | None = None,
    *,
    words: bool = False,
    form: str = FORM,
    lines: bool = False,
    workers: int | None = None,
) -> dict:
    """Binarise the texts; return the bytes, tokens and items of each split. With `lines`, each
    line is an item, whatever the unit."""
    from fairseq_clusterformer.data.coding import TextCoding

    from . import binarize  # with fairseq it takes seconds; mistakes are to show at once

    if vocabulary:
        vocabulary.write(out, texts["train"])
    else:
        dictionary = binarize.symbol_dictionary(byte_symbols())
        if words:
            counts = binarize.count_words(texts["train"], form, workers)
            dictionary = binarize.word_dictionary(counts)
        dictionary.save(str(out / "dict.txt"))
        write_tokenizer(out, dictionary, form=form if words else "none")
    coding = TextCoding.from_folder(out)
    coding.form = form
    items = coding.line_items if lines else coding.items
    found = binarize.write_dataset(texts, out, coding.dictionary, items, workers)
    return {split: {"bytes": texts[split].stat().st_size} | found[split] for split in found}
