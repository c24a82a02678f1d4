"""The corpora: enwik8, WikiText-103, and any folder of plain text, each to a finished folder.

``lm_binarize`` is imported where it is used: it imports fairseq, which takes seconds, and what
is already prepared or a mistake is told at once.
"""

from collections.abc import Sequence
from pathlib import Path

from fairseq_clusterformer.corpora.download import Archive, obtain
from fairseq_clusterformer.corpora.folder import make_folder
from fairseq_clusterformer.corpora.language_modelling import text as lm_text
from fairseq_clusterformer.errors import UserError

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
    archive: Archive = ENWIK8,
    sizes: Sequence[int] = ENWIK8_SIZES,
) -> dict | None:
    """Prepare enwik8 by bytes: its first `sizes` bytes are train, valid and test.

    Returns:
        the content of ``prepared.json``, or None if `dest` has been prepared before.
    """

    def build(work: Path, out: Path) -> dict:
        (path,) = obtain(archive, source, work).values()
        if path.stat().st_size != sum(sizes):
            raise UserError(f"{path}: has {path.stat().st_size:,} bytes, must have {sum(sizes):,}")
        return {"splits": _binarize(lm_text.cut(path, work, sizes), work, out)}

    recipe = {"corpus": "enwik8", "members": archive.members, "sizes": sizes}
    return make_folder(dest, recipe, build)


def prepare_wikitext103(
    dest: Path,
    source: Path | None = None,
    *,
    archive: Archive = WIKITEXT103,
    types: int = WIKITEXT103_TYPES,
    tokens: Sequence[int] = WIKITEXT103_TOKENS,
) -> dict | None:
    """Prepare WikiText-103 by words, and check its `types` and `tokens`; returns as above."""

    def build(work: Path, out: Path) -> dict:
        from fairseq_clusterformer.corpora import binarize as lm_binarize
        from fairseq_clusterformer.data.coding import WordCoding

        texts = dict(zip(lm_text.SPLITS, obtain(archive, source, work).values(), strict=True))
        words = lm_binarize.count_words(texts["train"])
        dictionary = lm_binarize.word_dictionary(words)
        items = WordCoding(dictionary).items
        splits = lm_binarize.write_dataset(texts, out, dictionary, items)
        found = [len(words), *(count["tokens"] for count in splits.values())]
        if found != [types, *tokens]:
            raise UserError(f"WikiText-103: types and tokens {found}, must be {[types, *tokens]}")
        return {"types": types, "splits": splits}

    return make_folder(dest, {"corpus": "wikitext-103", "members": archive.members}, build)


def prepare_text(
    source: Path,
    dest: Path,
    *,
    sentencepiece: int | None = None,
    document_separator: str | None = None,
    split: str | None = None,
    valid_fraction: float = 0.05,
    test_fraction: float = 0.05,
    train_bytes: int | None = None,
    pattern: Sequence[str] | None = None,
    allow_binary: bool = False,
) -> dict | None:
    """Prepare the text files in `source`; see ``prepare_text.sh --help``; returns as above."""
    source, dest = source.resolve(), dest.resolve()
    if dest.is_relative_to(source):
        raise UserError(f"DEST {dest}: is in SOURCE, where it would be read as text next time")
    if sentencepiece and allow_binary:
        raise UserError("--allow-binary: is allowed with --bytes only")
    fractions = {"valid": valid_fraction, "test": test_fraction}
    if sum(fractions.values()) >= 1:
        raise UserError(
            f"--valid-fraction {valid_fraction} --test-fraction {test_fraction}: leave nothing "
            "for train; allowed is a sum below 1"
        )
    texts, others = lm_text.find_texts(source, pattern or lm_text.TEXT_PATTERNS)
    if others:
        print(f"skipped, not named as text (see --pattern): {lm_text.names_of(others)}")
    files = lm_text.split_files(source, texts) if split in (None, "files") else {}
    if split == "files" and not files:
        raise UserError(f"--split files: no file in {source} is named for train, valid or test")
    split = split or ("files" if files else "documents")
    reader = lm_text.Reader(document_separator and document_separator.encode(), allow_binary)

    def build(work: Path, out: Path) -> dict:
        if split == "files":
            pieces = lm_text.by_file(files, reader)
        elif split == "documents":
            pieces = lm_text.by_document(texts, reader, fractions)
        else:
            pieces = lm_text.contiguous(texts, reader, fractions)
        counts = lm_text.write_splits(pieces, work, train_bytes=train_bytes)
        if document_separator and not reader.separators_seen:
            raise UserError(
                f"--document-separator {document_separator!r}: no line of SOURCE {source} is "
                "this; allowed is a line that ends a document, exactly"
            )
        return {"splits": _binarize(counts, work, out, sentencepiece)}

    recipe = {
        "corpus": "text",
        "sentencepiece": sentencepiece,
        "document_separator": document_separator,
        "split": split,
        "fractions": None if split == "files" else fractions,
        "train_bytes": train_bytes,
        "files": {str(path.relative_to(source.parent)): path.stat().st_size for path in texts},
    }
    return make_folder(dest, recipe, build)


def _binarize(counts: dict, work: Path, out: Path, sentencepiece: int | None = None) -> dict:
    """Binarise the texts in `work` as bytes or pieces; add their tokens and items to `counts`."""
    from fairseq_clusterformer.corpora import binarize as lm_binarize
    from fairseq_clusterformer.data.coding import SUBWORD_MODEL, TextCoding

    texts = {split: work / f"{split}.txt" for split in counts}
    if sentencepiece is None:
        dictionary = lm_binarize.byte_dictionary()
    else:
        model = out / SUBWORD_MODEL
        lm_binarize.train_sentencepiece([texts["train"]], sentencepiece, model)
        dictionary = lm_binarize.piece_dictionary(model)
    items = TextCoding.from_folder(out, dictionary).items
    tokens = lm_binarize.write_dataset(texts, out, dictionary, items)
    return {split: counts[split] | tokens[split] for split in counts}
