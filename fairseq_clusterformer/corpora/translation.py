"""From a corpus of pairs to the folder that fairseq's ``translation`` task reads, in stages from
files to files: pairs are tokenised, split and cleaned; subwords are learned; they are applied; the
result is binarised."""

import contextlib
import functools
import io
import itertools
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from fairseq_clusterformer.data import TOKENIZER
from fairseq_clusterformer.data.text import TextPipeline
from fairseq_clusterformer.errors import bad_option
from fairseq_clusterformer.outputs import copy_part, make_folder, make_part

from . import SUBWORDS
from .files import aligned_lines, checksums, key_of, wrong
from .pairs import Pair, ParallelCorpus, pair_files, pairs_of
from .parallel import parallel

#: the tokens or subwords of a pair, and maybe its raw text, with single blanks for white space
Row = tuple[str, ...]
_MOST_WORDS = 1_000_000  # that subword-nmt learns from, at about 1 kB of memory for each


def prepare(
    dest: Path,
    corpus: ParallelCorpus,
    *,
    bpe_operations: int | None = None,
    bpe: str = "subword_nmt",
    extra_train: Sequence[Path] = (),
    workers: int | None = None,
) -> dict | None:
    """Prepare `corpus` in the folder `dest`, as `make_folder` does. The options are those of
    ``clusterformer prepare translation``; `bpe`, with "_" for "-", is its --vocabulary."""
    pipeline = replace(corpus.pipeline, bpe=bpe)
    if bpe == "sentencepiece":
        pipeline = replace(pipeline, tokenizer="none", dash_splits=False, escape=False)
    else:
        from sacremoses.corpus import NonbreakingPrefixes

        known = NonbreakingPrefixes().available_langs.values()
        if unknown := [language for language in pipeline.languages if language not in known]:
            problem = f"Moses' tokeniser does not know {' and '.join(unknown)}"
            raise bad_option("--vocabulary", "subword-nmt", "sentencepiece", problem)
    extra = [pair_files(path, pipeline.languages, "--extra-train") for path in extra_train]

    def recipe() -> dict:
        return {
            "corpus": corpus.name,
            **pipeline.recipe(),
            "bpe_operations": bpe_operations,
            "test_sets": corpus.test_sets,
            "hold_out": corpus.hold_out,
            "cleaning": asdict(corpus.cleaning),
            "fractions": corpus.drawn,
            "extra_train": checksums(itertools.chain.from_iterable(extra)),
            "files": {split: checksums(paths) for split, paths in corpus.own.items()},
        }

    def build(work: Path, out: Path) -> dict:
        job = _Job(corpus, pipeline, work, workers)
        tokens = job.made("tokens", job.tokenise, extra)
        model = job.made("model", job.learn, tokens, bpe_operations)
        copy_part(model, out)
        job.pipeline = replace(pipeline, model=model / TOKENIZER)
        subwords = job.made("subwords", job.segment, tokens)
        shutil.copytree(subwords / "raw", out / "raw")
        job.binarise(subwords, out)
        return {"splits": job.counts}

    return make_folder(dest, recipe, build)


@dataclass
class _Job:
    """The stages, and the counts that they fill in."""

    corpus: ParallelCorpus
    pipeline: TextPipeline
    work: Path  # for what the corpus unpacks, and the stages
    workers: int | None

    def __post_init__(self) -> None:
        splits = ["train", "valid", *self.corpus.test_sets]
        self.counts = {split: Counter(pairs=0) for split in splits}

    def made(self, name: str, stage: Callable[..., None], *given: object) -> Path:
        """The folder of a stage, made now or by a run before; take over its counts."""

        def build(_work: Path, out: Path) -> dict:
            stage(*given, out)
            if empty := [split for split, count in self.counts.items() if not count["pairs"]]:
                train = self.counts["train"].items()
                dropped = [f"{n:,} {what}" for what, n in train if n and what != "pairs"]
                why = f" ({', '.join(dropped)})" if dropped else ""
                problem = f"no pair is left for {empty[0]}{why}"
                raise wrong(self.corpus.name, problem, "at least one for each split")
            return self.counts

        part, counts = make_part(self.work, name, build)
        self.counts = {split: Counter(count) for split, count in counts.items()}
        return part

    def files(self, folder: Path, split: str) -> list[Path]:
        """The files of a split: both languages' and, but for train, both of its raw text."""
        names = [split] if split == "train" else [split, f"raw/{split}"]
        return [folder / f"{name}.{lang}" for name in names for lang in self.pipeline.languages]

    def tokenise(self, extra: Sequence[Sequence[Path]], out: Path) -> None:
        """Write the tokens of each split, and count the pairs."""
        corpus, languages, train = self.corpus, self.pipeline.languages, self.counts["train"]
        held_out = [set(), set()]  # of the lines of valid and test in each language
        train["dropped by length"] = 0
        if corpus.own or extra:
            train["in valid or test"] = 0
        read = corpus.read(self.work).items()
        sources = [(split, pairs, bool(corpus.own), corpus.hold_out) for split, pairs in read]
        for files in extra:  # columns as Tatoeba's
            sources.append(("train", pairs_of(files, languages, languages[::-1]), True, None))
        function = functools.partial(_tokens, self.pipeline)
        with self._writer(out) as write:
            for split, pairs, disjoint, hold_out in sources:
                number = 0
                for row in parallel(function, pairs, self.workers, split):
                    words, to = row[:2], split
                    if split == "train":
                        if corpus.cleaning.unit == "tokens" and not corpus.cleaning.keeps(words):
                            train["dropped by length"] += 1
                            continue
                        sides = zip(held_out, words, strict=True)
                        if disjoint and any(key_of(line) in known for known, line in sides):
                            train["in valid or test"] += 1
                            continue
                        number += 1
                        to = "valid" if hold_out and not number % hold_out else split
                    write(to, row)
                    self.counts[to]["pairs"] += 1
                    if to != "train":
                        for known, line in zip(held_out, words, strict=True):
                            known.add(key_of(line))

    def learn(self, tokens: Path, number: int | None, out: Path) -> None:
        """Learn the subwords of both languages together."""
        from fairseq_clusterformer.data import formats

        from . import binarize

        texts, model = self.files(tokens, "train"), out / "subwords"
        if self.pipeline.bpe == "sentencepiece":
            how = {"option": "--bpe-operations", "at_most": number is None}
            binarize.train_sentencepiece(texts, number or SUBWORDS, model, **how)
            tokenizer = formats.pieces(model)
        else:
            from subword_nmt.learn_bpe import learn_bpe

            words = binarize.count_words(texts, "none", self.workers)
            del words["</s>"]
            lines = [f"{word} {count}" for word, count in words.most_common(_MOST_WORDS)]
            progress = contextlib.redirect_stderr(io.StringIO())  # is not for log files
            with progress, open(model, "w", newline="\n") as codes:
                learn_bpe(lines, codes, number or SUBWORDS, is_dict=True)
            tokenizer = formats.codes(model)
        (out / TOKENIZER).write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
        model.unlink()

    def segment(self, tokens: Path, out: Path) -> None:
        cleaning, cleaned = self.corpus.cleaning, set()
        if cleaning.unit == "subwords":
            cleaned = {"train", *self.corpus.drawn}
            cleaned |= {"valid"} if self.corpus.hold_out else set()
        function = functools.partial(_subwords, self.pipeline)
        with self._writer(out) as write:
            for split, count in self.counts.items():
                rows = aligned_lines(self.files(tokens, split))
                for row in parallel(function, rows, self.workers, split):
                    if split in cleaned and not cleaning.keeps(row[:2]):
                        count.update({"pairs": -1, "dropped by length": 1})
                    else:
                        write(split, row)

    def binarise(self, subwords: Path, out: Path) -> None:
        """Write the one dictionary of both languages, and every split; count the tokens."""
        from fairseq_clusterformer.data.coding import TextCoding
        from fairseq_clusterformer.data.subwords import load

        from . import binarize

        languages = self.pipeline.languages
        if self.pipeline.bpe == "sentencepiece":
            dictionary = binarize.symbol_dictionary(load(self.pipeline.model).symbols)
        else:
            words = binarize.count_words(self.files(subwords, "train"), workers=self.workers)
            dictionary = binarize.word_dictionary(words)
        texts = {
            f"{split}.{'-'.join(languages)}.{language}": subwords / f"{split}.{language}"
            for split in self.counts
            for language in languages
        }
        items = TextCoding(dictionary).items
        made = binarize.write_dataset(texts, out, dictionary, items, self.workers)
        for name, count in made.items():
            split, _, language = name.split(".")
            self.counts[split][f"{language} subwords"] = count["tokens"]
        for language in languages:
            shutil.copy(out / "dict.txt", out / f"dict.{language}.txt")
        (out / "dict.txt").unlink()

    @contextlib.contextmanager
    def _writer(self, folder: Path) -> Iterator[Callable[[str, Row], None]]:
        (folder / "raw").mkdir()
        opened = functools.partial(open, mode="w", encoding="utf-8")
        with contextlib.ExitStack() as stack:
            files = {
                split: [*map(stack.enter_context, map(opened, self.files(folder, split)))]
                for split in self.counts
            }

            def write(split: str, row: Row) -> None:
                for file, line in zip(files[split], row, strict=False):
                    file.write(line + "\n")

            yield write


def _tokens(pipeline: TextPipeline, pair: Pair) -> Row:
    raw = (" ".join(line.split()) for line in pair)
    return (*map(pipeline.tokens, pair, pipeline.languages), *raw)


def _subwords(pipeline: TextPipeline, row: Row) -> Row:
    return (*map(pipeline.subwords, row[:2]), *row[2:])
