"""From OpenKP's files to the folder that ``fairseq_clusterformer.etc.pages`` describes.

Modules that need torch or fairseq are imported where they are used, so that mistakes are reported
at once.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from fairseq_clusterformer.corpora.download import checksums
from fairseq_clusterformer.corpora.folder import make_folder
from fairseq_clusterformer.corpora.parallel import parallel
from fairseq_clusterformer.corpora.question_answering.records import Drops
from fairseq_clusterformer.corpora.vocabulary import Vocabulary, copy_model
from fairseq_clusterformer.data.unicode import READ_FORM
from fairseq_clusterformer.errors import UserError
from fairseq_clusterformer.etc.openkp import PageRecord, openkp

_BATCH = 5  # pages that a worker takes at a time
COUNTS = ("pages", "nodes", "tokens", "keyphrases", "keyphrases not found", "longest")


def prepare(
    dest: Path,
    *,
    splits: dict[str, list[Path]],
    vocabulary: Vocabulary,
    workers: int = 1,
    force: bool = False,
) -> dict | None:
    """Prepare the files of `splits` in the folder `dest`; return what ``prepared.json`` says, or
    None if `dest` was prepared before. Raises UserError for a file without a usable page."""
    recipe = {
        "corpus": "openkp",
        "files": {split: checksums(paths) for split, paths in splits.items()},
        **vocabulary.recipe(),
        "unicode": READ_FORM,
    }

    def build(work: Path, out: Path) -> dict:
        if vocabulary.train:
            _train(splits["train"], vocabulary, work, out)
        copy_model(vocabulary, out)
        counts, dropped = {}, {}
        for split, paths in splits.items():
            drops = Drops()
            counts[split] = _write(_records(paths, split, drops), out, split, workers)
            if not counts[split]["pages"]:
                raise _nothing_left(split, drops)
            counts[split]["dropped"] = drops.counts.total()
            dropped[split] = drops.examples
            if drops.counts:
                print(f"{split}: {drops}")
        return {"splits": counts, "dropped": dropped}

    return make_folder(dest, recipe, build, force)


def _records(paths: list[Path], split: str, drops: Drops) -> Iterator[PageRecord]:
    for path in paths:
        yield from openkp(path, drops, keep_unfound=split != "train")


def _nothing_left(split: str, drops: Drops) -> UserError:
    problem = f"openkp: no page is left in {split}"
    return UserError(f"{problem}; {drops.summary()}" if drops.counts else problem)


def _train(paths: list[Path], vocabulary: Vocabulary, work: Path, out: Path) -> None:
    """Train a sentencepiece model on the pages' nodes."""
    text, drops = work / "train.txt", Drops()
    with open(text, "w", encoding="utf-8") as file:
        for record in _records(paths, "train", drops):
            for first, last in record.nodes:
                file.write(" ".join(record.words[first:last]) + "\n")
    if not text.stat().st_size:
        raise _nothing_left("train", drops)
    vocabulary.train_model(text, out, form=READ_FORM)


def _write(records: Iterator[PageRecord], out: Path, split: str, workers: int) -> dict[str, int]:
    from fairseq_clusterformer.data import subwords
    from fairseq_clusterformer.data.stored import load_dictionary
    from fairseq_clusterformer.etc.pages import PageWriter, encode_record, page_of

    dictionary, pieces = load_dictionary(out), subwords.load_prepared(out)
    to_index = [dictionary.index(symbol) for symbol in pieces.symbols]
    counts = dict.fromkeys(COUNTS, 0)
    encode = partial(encode_record, model=pieces)
    encoded = parallel(encode, records, workers, split, batch=_BATCH, unit=" pages")
    with PageWriter(out, split, vocab_size=len(dictionary)) as writer:
        for item in encoded:
            page, record = page_of(item, to_index), item.record
            phrases = None if record.phrases is None else [" ".join(p) for p in record.phrases]
            texts = {"url": record.id, "text": " ".join(record.words), "phrases": phrases}
            writer.add(page, texts)
            found = len(page.phrases)
            of_page = (1, len(page.nodes), len(page.tokens), found, len(phrases or ()) - found)
            for name, number in zip(COUNTS, of_page, strict=False):
                counts[name] += number
            counts["longest"] = max(counts["longest"], len(page.tokens))
    return counts
