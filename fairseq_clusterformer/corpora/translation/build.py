"""From a corpus of pairs to the folder that fairseq's ``translation`` task reads.

There are three stages, each from files to files: pairs are tokenised, split and cleaned; subwords
are learned and applied; the result is binarised.
"""

import contextlib
import functools
import io
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from fairseq_clusterformer.data.text import TextPipeline
from fairseq_clusterformer.errors import bad_option

from .. import SUBWORDS
from ..download import checksums
from ..folder import make_folder
from ..lines import aligned_lines, wrong
from ..parallel import parallel
from ..splits import SeenTexts
from .corpora import ParallelCorpus
from .pairs import Pair, pair_files, pairs_of

Counts = dict[str, dict[str, int]]


def prepare(
    dest: Path,
    corpus: ParallelCorpus,
    *,
    bpe_operations: int | None = None,
    bpe: str = "subword_nmt",
    extra_train: Sequence[Path] = (),
    workers: int = 1,
) -> dict | None:
    """Prepare `corpus` in the folder `dest`, as `make_folder` does.

    Args:
        bpe_operations: merges to learn, or pieces with sentencepiece; None: `SUBWORDS`, or as many
            as the text gives.
        bpe: "subword_nmt", or "sentencepiece", which splits text that is not tokenised.
        extra_train: more training text; see `pair_files`. Columns are target and source.
    """
    pipeline = replace(corpus.pipeline, bpe=bpe)
    if bpe == "sentencepiece" and not corpus.tokenised:
        pipeline = replace(pipeline, tokenizer="none", dash_splits=False, escape=False)
    elif not corpus.tokenised:
        from sacremoses.corpus import NonbreakingPrefixes

        known = NonbreakingPrefixes().available_langs.values()
        if unknown := [language for language in pipeline.languages if language not in known]:
            problem = f"Moses' tokeniser does not know {' and '.join(unknown)}"
            raise bad_option("--vocabulary", "subword-nmt", "sentencepiece", problem)
    extra = [pair_files(path, pipeline.languages, "--extra-train") for path in extra_train]
    recipe = {
        "corpus": corpus.name,
        **pipeline.recipe(),
        "bpe_operations": bpe_operations,
        "test_sets": corpus.test_sets,
        "detokenised": not corpus.tokenised,
        "hold_out": corpus.hold_out,
        "cleaning": asdict(corpus.cleaning),
        "extra_train": checksums(itertools.chain.from_iterable(extra)),
        **corpus.facts,
    }

    def build(work: Path, out: Path) -> dict:
        from importlib.metadata import version

        job = _Job(corpus, replace(pipeline, model=out / recipe["bpe_model"]), work, out, workers)
        job.tokenise(extra)
        learn_subwords(job.files(work, "train"), bpe_operations, job.pipeline)
        job.segment()
        job.binarise()
        packages = ("sacremoses", "subword-nmt", "sentencepiece")
        return {"splits": job.counts, "versions": {name: version(name) for name in packages}}

    return make_folder(dest, recipe, build)


def learn_subwords(texts: Sequence[Path], number: int | None, pipeline: TextPipeline) -> None:
    """Learn the subwords of `texts` together and write the pipeline's model; raises UserError if
    the texts do not give as many."""
    if pipeline.bpe == "sentencepiece":
        from ..binarize import train_sentencepiece

        how = {"option": "--bpe-operations", "at_most": number is None}
        train_sentencepiece(texts, number or SUBWORDS, pipeline.model, **how)
        return
    from subword_nmt.learn_bpe import learn_bpe

    # Its progress bar is not for log files.
    quiet = sys.stderr if sys.stderr.isatty() else io.StringIO()
    with (
        contextlib.ExitStack() as stack,
        open(pipeline.model, "w", encoding="utf-8", newline="\n") as codes,
        contextlib.redirect_stderr(quiet),
    ):
        files = [stack.enter_context(open(p, encoding="utf-8", newline="\n")) for p in texts]
        learn_bpe(itertools.chain(*files), codes, number or SUBWORDS)


@dataclass
class _Job:
    """The stages, and the counts that they fill in; their files in `work` are NAME.LANGUAGE."""

    corpus: ParallelCorpus
    pipeline: TextPipeline
    work: Path
    out: Path
    workers: int

    def __post_init__(self) -> None:
        splits = ["train", "valid", *self.corpus.test_sets]
        self.counts: Counts = {split: {"pairs": 0} for split in splits}

    def files(self, folder: Path, name: str) -> list[Path]:
        """Return the files of both languages."""
        return [folder / f"{name}.{language}" for language in self.pipeline.languages]

    def tokenise(self, extra: Sequence[Sequence[Path]]) -> None:
        """Write the tokens of each split, and the raw text of all but train; count the pairs."""
        corpus, languages = self.corpus, self.pipeline.languages
        clean = corpus.cleaning.keeps if corpus.cleaning.unit == "tokens" else lambda pair: True
        held_out = [SeenTexts(), SeenTexts()]  # the lines of valid and test in each language
        found = dict.fromkeys(self.counts, 0)
        train = self.counts["train"]
        train["dropped by length"] = 0
        if corpus.disjoint or extra:
            train["in valid or test"] = 0

        def keeps(pair: Pair, disjoint: bool) -> bool:
            if not clean(pair):
                train["dropped by length"] += 1
            elif disjoint and any(map(SeenTexts.__contains__, held_out, pair)):
                train["in valid or test"] += 1
            else:
                return True
            return False

        with self._writer(self.work) as write:

            def store(split: str, raw: Pair, tokens: Pair) -> None:
                write(split, tokens)
                self.counts[split]["pairs"] += 1
                if split != "train":
                    write(f"{split}.raw", raw)
                    for known, line in zip(held_out, tokens, strict=True):
                        known.add(line)

            for split, pairs in corpus.read(self.work).items():
                number, held_out_each = 0, split == "train" and corpus.hold_out
                for raw, tokens in self._tokens(pairs, split, corpus.tokenised):
                    found[split] += 1
                    if split == "train" and not keeps(tokens, corpus.disjoint):
                        continue
                    number += 1
                    is_valid = held_out_each and not number % held_out_each
                    store("valid" if is_valid else split, raw, tokens)
            for split, number in corpus.expected.items():
                if found[split] != number:
                    problem = f"the download has {found[split]:,} pairs for {split}"
                    allowed = f"{number:,}, as in the known edition; --source takes another one"
                    raise wrong(corpus.name, problem, allowed)
            for files in extra:
                pairs = pairs_of(files, languages, languages[::-1])  # columns as Tatoeba's
                for raw, tokens in self._tokens(pairs, files[0].name, False):
                    if keeps(tokens, disjoint=True):
                        store("train", raw, tokens)
                        train["extra pairs"] = train.get("extra pairs", 0) + 1
        self._check_pairs()

    def _tokens(self, pairs: Iterator[Pair], label: str, tokenised: bool) -> Iterator:
        function = functools.partial(_tokens, self.pipeline, tokenised)
        return parallel(function, pairs, self.workers, f"{label} tokens")

    def _check_pairs(self) -> None:
        train = self.counts["train"]
        why = [f"{n:,} {what}" for what, n in train.items() if n and what != "pairs"]
        for split, count in self.counts.items():
            if not count["pairs"]:
                problem = f"no pair is left for {split}" + (f" ({', '.join(why)})" if why else "")
                raise wrong(self.corpus.name, problem, "at least one for each split")

    def segment(self) -> None:
        """Write the subwords of each split, and the raw text of all but train into `out`."""
        function = functools.partial(_subwords, self.pipeline)
        cleaning, cleaned = self.corpus.cleaning, set()
        if cleaning.unit == "subwords":
            cleaned = {"train", *self.corpus.drawn, *(["valid"] if self.corpus.hold_out else [])}
        (self.out / "raw").mkdir()
        with self._writer(self.work) as write, self._writer(self.out / "raw") as write_raw:
            for split, count in self.counts.items():
                pairs = aligned_lines(self.files(self.work, split))
                subwords = parallel(function, pairs, self.workers, split)
                raws = itertools.repeat(None)
                if split != "train":
                    raws = aligned_lines(self.files(self.work, f"{split}.raw"))
                for pair, raw in zip(subwords, raws, strict=False):
                    if split in cleaned and not cleaning.keeps(pair):
                        count["pairs"] -= 1
                        count["dropped by length"] = count.get("dropped by length", 0) + 1
                        continue
                    write(f"{split}.bpe", pair)
                    if raw:
                        write_raw(split, raw)
        self._check_pairs()

    def binarise(self) -> None:
        """Write the one dictionary of both languages, and every split; count the tokens."""
        from fairseq_clusterformer.data.coding import WordCoding

        from .. import binarize

        languages = self.pipeline.languages
        if self.pipeline.bpe == "sentencepiece":
            dictionary = binarize.piece_dictionary(self.pipeline.model)
        else:
            source, target = map(binarize.count_words, self.files(self.work, "train.bpe"))
            dictionary = binarize.word_dictionary(source + target)
        texts = {
            f"{split}.{'-'.join(languages)}.{language}": self.work / f"{split}.bpe.{language}"
            for split in self.counts
            for language in languages
        }
        written = binarize.write_dataset(texts, self.out, dictionary, WordCoding(dictionary).items)
        for name, count in written.items():
            split, _, language = name.split(".")
            self.counts[split][f"{language} subwords"] = count["tokens"]
        (self.out / "dict.txt").rename(self.out / f"dict.{languages[0]}.txt")
        dictionary.save(str(self.out / f"dict.{languages[1]}.txt"))

    @contextlib.contextmanager
    def _writer(self, folder: Path) -> Iterator[Callable[[str, Pair], None]]:
        """Yield a function that writes pairs to the files ``NAME.LANGUAGE`` of a folder."""
        with contextlib.ExitStack() as stack:

            @functools.cache
            def opened(name: str) -> list:
                return [
                    stack.enter_context(path.open("w", encoding="utf-8", newline="\n"))
                    for path in self.files(folder, name)
                ]

            def write(name: str, pair: Pair) -> None:
                for file, line in zip(opened(name), pair, strict=True):
                    file.write(line + "\n")

            yield write


def _tokens(pipeline: TextPipeline, tokenised: bool, pair: Pair) -> tuple[Pair, Pair]:
    """Return the pair with single blanks for its white space, and its tokens."""
    raw = tuple(" ".join(line.split()) for line in pair)
    if tokenised:
        return raw, tuple(pipeline.as_tokens(line) for line in pair)
    lines = zip(pair, pipeline.languages, strict=True)
    return raw, tuple(pipeline.tokens(line, language) for line, language in lines)


def _subwords(pipeline: TextPipeline, pair: Pair) -> Pair:  # named, for other processes
    return tuple(map(pipeline.subwords, pair))
