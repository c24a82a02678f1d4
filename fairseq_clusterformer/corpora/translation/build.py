"""From a corpus of pairs to the folder that fairseq's ``translation`` task reads.

Text goes through three stages, each a stream from files to files: pairs are tokenised, split and
cleaned; subwords are learned and applied; what comes out is binarised. ``lm_binarize`` is imported
where it is used: it imports fairseq, which takes seconds, and a mistake is told at once.
"""

import contextlib
import functools
import io
import itertools
import multiprocessing
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path

from fairseq_clusterformer.corpora.folder import make_folder
from fairseq_clusterformer.corpora.translation.corpora import Corpus
from fairseq_clusterformer.corpora.translation.pairs import (
    LANGUAGES,
    Pair,
    Pairs,
    extra_files,
    extra_pairs,
    read_pairs,
)
from fairseq_clusterformer.errors import UserError
from fairseq_clusterformer.text import TextPipeline

_BATCH = 100_000  # pairs handed to --workers at a time


def prepare(
    dest: Path,
    corpus: Corpus,
    *,
    bpe_operations: int,
    bpe: str = "subword_nmt",
    extra_train: Sequence[Path] = (),
    workers: int = 1,
) -> dict | None:
    """Prepare `corpus` in the folder `dest`.

    Args:
        bpe_operations: merges to learn, or pieces with sentencepiece.
        bpe: "subword_nmt" or "sentencepiece", which splits text that is not tokenised by itself.
        extra_train: more training text; see `extra_files`.
        workers: processes that tokenise and apply subwords.

    Returns:
        the content of ``prepared.json``, or None if `dest` has been prepared before.

    Raises:
        UserError: if the text is not as it must be.
    """
    pipeline = replace(corpus.pipeline, bpe=bpe)
    if bpe == "sentencepiece" and not corpus.tokenised:
        pipeline = replace(pipeline, tokenizer="none", dash_splits=False, escape=False)
    extra = [extra_files(given) for given in extra_train]
    recipe = {
        "corpus": corpus.name,
        **pipeline.recipe(),
        "bpe_operations": bpe_operations,
        "test_sets": corpus.test_sets,
        "detokenised": not corpus.tokenised,
        "hold_out": corpus.hold_out,
        "cleaning": asdict(corpus.cleaning),
        "extra_train": {
            f"{path.parent.name}/{path.name}": path.stat().st_size
            for path in itertools.chain.from_iterable(extra)
        },
    }

    def build(work: Path, out: Path) -> dict:
        pairs = corpus.read(work)
        counts = _tokenise(pairs, extra, corpus, pipeline, work, workers)
        learned = replace(pipeline, model=out / recipe["bpe_model"])
        learn_subwords(_files(work, "train"), bpe_operations, learned)
        _segment(counts, corpus, learned, work, out, workers)
        _binarise(counts, learned, work, out)
        packages = ("sacremoses", "subword-nmt", "sentencepiece")
        return {"splits": counts, "versions": {name: version(name) for name in packages}}

    return make_folder(dest, recipe, build)


def _tokenise(
    splits: dict[str, Pairs],
    extra: Sequence[Sequence[Path]],
    corpus: Corpus,
    pipeline: TextPipeline,
    work: Path,
    workers: int,
) -> dict[str, dict[str, int]]:
    """Write the tokens of each split, and the raw text of all but train; count the pairs."""
    function = functools.partial(_tokens, pipeline, corpus.tokenised)
    names = ["train", "valid", *corpus.test_sets]
    counts = {split: {"pairs": 0} for split in names}
    clean = corpus.cleaning.keeps if corpus.cleaning.unit == "tokens" else lambda pair: True
    held_out = [set(), set()]  # what stands in valid and test, of each language

    with _Writer(work) as write:

        def keep(split: str, raw: Pair, tokens: Pair) -> None:
            write(split, tokens)
            counts[split]["pairs"] += 1
            if split != "train":
                write(f"{split}.raw", raw)
                for known, line in zip(held_out, tokens, strict=True):
                    known.add(line)

        for split, pairs in splits.items():
            number = dropped = 0
            for raw, tokens in parallel(function, pairs, workers, f"{split} tokens"):
                if split == "train" and not clean(tokens):
                    dropped += 1
                    continue
                number += 1
                is_valid = split == "train" and corpus.hold_out and not number % corpus.hold_out
                keep("valid" if is_valid else split, raw, tokens)
            if split == "train":
                counts[split]["dropped by length"] = dropped
        if extra:
            counts["train"] |= {"extra pairs": 0, "extra in valid or test": 0}
        function = functools.partial(_tokens, pipeline, False)
        for files in extra:
            pairs = extra_pairs(files)
            for raw, tokens in parallel(function, pairs, workers, f"{files[0].name} tokens"):
                if not clean(tokens):
                    counts["train"]["dropped by length"] += 1
                elif any(line in known for line, known in zip(tokens, held_out, strict=True)):
                    counts["train"]["extra in valid or test"] += 1
                else:
                    keep("train", raw, tokens)
                    counts["train"]["extra pairs"] += 1
    _check_pairs(counts, corpus)
    return counts


def _check_pairs(counts: dict[str, dict[str, int]], corpus: Corpus) -> None:
    for split, count in counts.items():
        if not count["pairs"]:
            raise UserError(
                f"{corpus.name}: no pair for {split}, {count.get('dropped by length', 0):,} "
                "dropped by their lengths; allowed is one or more a split"
            )


def _tokens(pipeline: TextPipeline, tokenised: bool, pair: Pair) -> tuple[Pair, Pair]:
    """Return the pair with its white space made plain, and its tokens."""
    raw = tuple(" ".join(line.split()) for line in pair)
    if tokenised:
        return raw, tuple(pipeline.as_tokens(line) for line in pair)
    lines = zip(pair, LANGUAGES, strict=True)
    return raw, tuple(pipeline.tokens(line, lang) for line, lang in lines)


def learn_subwords(texts: Sequence[Path], operations: int, pipeline: TextPipeline) -> None:
    """Learn the subwords of `texts` together and write the pipeline's model.

    Raises:
        UserError: if the texts do not give as many.
    """
    if pipeline.bpe == "sentencepiece":
        from fairseq_clusterformer.corpora import binarize as lm_binarize

        lm_binarize.train_sentencepiece(texts, operations, pipeline.model, "--bpe-operations")
        return
    from subword_nmt.learn_bpe import learn_bpe

    # Its progress bar is not for log files.
    quiet = contextlib.nullcontext() if sys.stderr.isatty() else _no_stderr()
    with open(pipeline.model, "w", encoding="utf-8", newline="\n") as codes, quiet:
        learn_bpe(itertools.chain.from_iterable(map(_lines, texts)), codes, operations)


def _segment(
    counts: dict, corpus: Corpus, pipeline: TextPipeline, work: Path, out: Path, workers: int
) -> None:
    """Write the subwords of each split, and raw text beside that of all but train."""
    function = functools.partial(_subwords, pipeline)
    cleaned = ["train", "valid"] if corpus.hold_out else ["train"]
    if corpus.cleaning.unit != "subwords":
        cleaned = []
    (out / "raw").mkdir()
    with _Writer(work) as write, _Writer(out / "raw") as write_raw:
        for split, count in counts.items():
            raws = read_pairs(_files(work, f"{split}.raw")) if split != "train" else None
            for pair in parallel(function, read_pairs(_files(work, split)), workers, split):
                raw = next(raws) if raws else None
                if split in cleaned and not corpus.cleaning.keeps(pair):
                    count["pairs"] -= 1
                    count["dropped by length"] = count.get("dropped by length", 0) + 1
                    continue
                write(f"{split}.bpe", pair)
                if raw:
                    write_raw(split, raw)
    _check_pairs(counts, corpus)


def _subwords(pipeline: TextPipeline, pair: Pair) -> Pair:
    return tuple(map(pipeline.subwords, pair))


def _binarise(counts: dict, pipeline: TextPipeline, work: Path, out: Path) -> None:
    """Write the one dictionary of both languages and every split; count the tokens."""
    from fairseq_clusterformer.corpora import binarize as lm_binarize
    from fairseq_clusterformer.data.coding import WordCoding

    if pipeline.bpe == "sentencepiece":
        dictionary = lm_binarize.piece_dictionary(pipeline.model)
    else:
        german, english = map(lm_binarize.count_words, _files(work, "train.bpe"))
        dictionary = lm_binarize.word_dictionary(german + english)
    texts = {
        f"{split}.{'-'.join(LANGUAGES)}.{lang}": file
        for split in counts
        for lang, file in zip(LANGUAGES, _files(work, f"{split}.bpe"), strict=True)
    }
    items = WordCoding(dictionary).items
    written = lm_binarize.write_dataset(texts, out, dictionary, items)
    for name, count in written.items():
        split, lang = name.split(".")[0], name.split(".")[-1]
        counts[split][f"{lang} subwords"] = count["tokens"]
    (out / "dict.txt").rename(out / f"dict.{LANGUAGES[0]}.txt")
    dictionary.save(str(out / f"dict.{LANGUAGES[1]}.txt"))


class _Writer(contextlib.ExitStack):
    """Writes pairs to the files ``NAME.de`` and ``NAME.en`` of a folder, opened at first use."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder, self.files = folder, {}

    def __enter__(self) -> Callable[[str, Pair], None]:
        super().__enter__()
        return self.write

    def write(self, name: str, pair: Pair) -> None:
        if name not in self.files:
            self.files[name] = [
                self.enter_context(path.open("w", encoding="utf-8", newline="\n"))
                for path in _files(self.folder, name)
            ]
        for file, line in zip(self.files[name], pair, strict=True):
            file.write(line + "\n")


def _files(folder: Path, name: str) -> list[Path]:
    return [folder / f"{name}.{lang}" for lang in LANGUAGES]


def _lines(path: Path) -> Iterator[str]:
    with open(path, encoding="utf-8", newline="\n") as file:
        yield from file


@contextlib.contextmanager
def _no_stderr() -> Iterator[None]:
    with contextlib.redirect_stderr(io.StringIO()):
        yield


def parallel(
    function: Callable,
    items: Iterable,
    workers: int,
    label: str,
    *,
    batch: int = _BATCH,
    unit: str = " pairs",
) -> Iterator:
    """Yield ``function(item)`` of each item in order, from as many processes.

    Args:
        label: of the progress, which is told in `unit`.
        batch: the most items that are read ahead of what is yielded.
    """
    from tqdm import tqdm

    with contextlib.ExitStack() as stack:
        results = map(function, items)
        if workers > 1:
            with _no_interruption():
                pool = multiprocessing.Pool(workers, initializer=_start, initargs=(function,))
            results = _batches(stack.enter_context(pool), iter(items), batch)
        yield from tqdm(results, desc=label, unit=unit, disable=None, leave=False)


@contextlib.contextmanager
def _no_interruption() -> Iterator[None]:
    """Processes and threads that start within leave Ctrl-C, which reaches all, to the main one: a
    pool that replaces workers that die of it while it ends would wait for these for ever."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _batches(pool, items: Iterator, size: int) -> Iterator:
    while batch := list(itertools.islice(items, size)):
        yield from pool.map(_call, batch, chunksize=max(1, size // 100))


# A worker keeps its own copy of the function, and with it what that has cached.


def _start(function: Callable) -> None:
    global _function
    _function = function


def _call(item: object) -> object:
    return _function(item)
