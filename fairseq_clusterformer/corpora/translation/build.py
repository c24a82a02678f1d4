"""From a corpus of pairs to the folder that fairseq's ``translation`` task reads.

There are stages, each from files to files: pairs are tokenised, split and cleaned; subwords are
learned; they are applied; the result is binarised. A run that was stopped goes on with the stages,
and in a stage with the pieces of work, that are finished.
"""

import contextlib
import functools
import io
import itertools
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from fairseq_clusterformer.data import TOKENIZER
from fairseq_clusterformer.data.text import VOCABULARIES, TextPipeline
from fairseq_clusterformer.errors import bad_option
from fairseq_clusterformer.outputs import copy_part, make_folder, make_part

from .. import SUBWORDS
from ..download import checksums
from ..lines import aligned_lines, wrong
from ..parallel import parallel
from ..splits import SeenTexts
from .corpora import ParallelCorpus
from .pairs import Pair, pair_files, pairs_of

Counts = dict[str, dict[str, int]]

_PAIRS = 5000  # that a worker takes at a time
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
    """Prepare `corpus` in the folder `dest`, as `make_folder` does.

    Args:
        bpe_operations: merges to learn, or pieces with sentencepiece; None: `SUBWORDS`, or as many
            as the text gives.
        bpe: "subword_nmt", or "sentencepiece", which splits text that is not tokenised.
        extra_train: more training text; see `pair_files`. Columns are target and source.
        workers: processes; None: one for each core.
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
    options = {
        "corpus": corpus.name,
        **pipeline.recipe(),
        "bpe_model": TOKENIZER,
        "bpe_operations": bpe_operations,
        "test_sets": corpus.test_sets,
        "detokenised": not corpus.tokenised,
        "hold_out": corpus.hold_out,
        "cleaning": asdict(corpus.cleaning),
    }

    def recipe() -> dict:
        more = {"extra_train": checksums(itertools.chain.from_iterable(extra))}
        return options | more | corpus.facts()

    def build(work: Path, out: Path) -> dict:
        from importlib.metadata import version

        from fairseq_clusterformer.data.subwords import codes_tokenizer
        from fairseq_clusterformer.data.tokenizer_json import pieces_tokenizer

        job = _Job(corpus, pipeline, work, workers)
        tokens, made = make_part(work, "tokens", functools.partial(job.tokenise, extra))

        def learn(work: Path, folder: Path) -> dict:
            known = replace(pipeline, model=folder / VOCABULARIES[bpe])
            how = {"workers": workers, "kept": work / "parts"}
            learn_subwords(job.files(tokens, "train"), bpe_operations, known, **how)
            made = codes_tokenizer if bpe == "subword_nmt" else pieces_tokenizer
            tokenizer = made(known.model).to_str(pretty=True)
            (folder / TOKENIZER).write_text(tokenizer, encoding="utf-8")
            known.model.unlink()
            return {}

        model, _ = make_part(work, "model", learn)
        copy_part(model, out)
        job.pipeline = replace(pipeline, model=model / options["bpe_model"])
        job.counts = made["splits"]
        subwords, made = make_part(work, "subwords", functools.partial(job.segment, tokens))
        job.counts = made["splits"]
        shutil.copytree(subwords / "raw", out / "raw")
        job.binarise(subwords, out)
        packages = ("sacremoses", "subword-nmt", "sentencepiece")
        return {"splits": job.counts, "versions": {name: version(name) for name in packages}}

    return make_folder(dest, recipe, build)


def learn_subwords(
    texts: Sequence[Path],
    number: int | None,
    pipeline: TextPipeline,
    *,
    workers: int | None = 1,
    kept: Path | None = None,
) -> None:
    """Learn the subwords of `texts` together and write the pipeline's model; raises UserError if
    the texts do not give as many. `workers` and `kept` as `parallel` takes them."""
    from .. import binarize

    if pipeline.bpe == "sentencepiece":
        how = {"option": "--bpe-operations", "at_most": number is None}
        binarize.train_sentencepiece(texts, number or SUBWORDS, pipeline.model, **how)
        return
    from subword_nmt.learn_bpe import learn_bpe

    counts: Counter[str] = Counter()
    for text in texts:
        how = {"workers": workers, "kept": kept and kept / text.name}
        counts.update(binarize.count_raw_words(text, "none", **how)[0])
    if len(counts) > _MOST_WORDS:
        print(f"learning subwords from the {_MOST_WORDS:,} most frequent of {len(counts):,} words")
    words = counts.most_common(_MOST_WORDS)
    del counts  # which can hold several times as many
    # Its progress bar is not for log files.
    quiet = sys.stderr if sys.stderr.isatty() else io.StringIO()
    with (
        open(pipeline.model, "w", encoding="utf-8", newline="\n") as codes,
        contextlib.redirect_stderr(quiet),
    ):
        lines = (f"{word} {count}" for word, count in words)
        learn_bpe(lines, codes, number or SUBWORDS, is_dict=True)


@dataclass
class _Job:
    """The stages, and the counts that they fill in; their files are NAME.LANGUAGE."""

    corpus: ParallelCorpus
    pipeline: TextPipeline
    work: Path  # for what the corpus unpacks
    workers: int | None

    def __post_init__(self) -> None:
        splits = ["train", "valid", *self.corpus.test_sets]
        self.counts: Counts = {split: {"pairs": 0} for split in splits}

    def files(self, folder: Path, name: str) -> list[Path]:
        """Return the files of both languages."""
        return [folder / f"{name}.{language}" for language in self.pipeline.languages]

    def tokenise(self, extra: Sequence[Sequence[Path]], work: Path, out: Path) -> dict:
        """Write the tokens of each split, and the raw text of all but train; count the pairs."""
        corpus, languages = self.corpus, self.pipeline.languages
        clean = corpus.cleaning.keeps if corpus.cleaning.unit == "tokens" else lambda pair: True
        held_out = [SeenTexts(), SeenTexts()]  # the lines of valid and test in each language
        found: Counter[str] = Counter()
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

        read = corpus.read(self.work).items()
        sources = [(s, s, pairs, corpus.tokenised, corpus.disjoint) for s, pairs in read]
        for number, files in enumerate(extra):
            pairs = pairs_of(files, languages, languages[::-1])  # columns as Tatoeba's
            sources.append((f"extra-{number}", "train", pairs, False, True))
        with self._writer(out) as write:
            for name, split, pairs, tokenised, disjoint in sources:
                function = functools.partial(_tokens, self.pipeline, tokenised)
                total = corpus.about(name) or corpus.expected.get(name)
                how = {"batch": _PAIRS, "total": total, "kept": work / "parts" / name}
                number, hold_out = 0, name == "train" and corpus.hold_out
                for raw, words in parallel(function, pairs, self.workers, name, **how):
                    found[name] += 1
                    if split == "train" and not keeps(words, disjoint):
                        continue
                    number += 1
                    to = "valid" if hold_out and not number % hold_out else split
                    write(to, words)
                    self.counts[to]["pairs"] += 1
                    if to != "train":
                        write(f"{to}.raw", raw)
                        for known, line in zip(held_out, words, strict=True):
                            known.add(line)
                if name != split:
                    train["extra pairs"] = train.get("extra pairs", 0) + number
        for split, number in corpus.expected.items():
            if found[split] != number:
                problem = f"the download has {found[split]:,} pairs for {split}"
                allowed = f"{number:,}, as in the known edition; --source takes another one"
                raise wrong(corpus.name, problem, allowed)
        self._check_pairs()
        return {"splits": self.counts}

    def _check_pairs(self) -> None:
        train = self.counts["train"]
        why = [f"{n:,} {what}" for what, n in train.items() if n and what != "pairs"]
        for split, count in self.counts.items():
            if not count["pairs"]:
                problem = f"no pair is left for {split}" + (f" ({', '.join(why)})" if why else "")
                raise wrong(self.corpus.name, problem, "at least one for each split")

    def segment(self, tokens: Path, work: Path, out: Path) -> dict:
        """Write the subwords of each split, and into `raw` the raw text of all but train."""
        function = functools.partial(_subwords, self.pipeline)
        cleaning, cleaned = self.corpus.cleaning, set()
        if cleaning.unit == "subwords":
            cleaned = {"train", *self.corpus.drawn, *(["valid"] if self.corpus.hold_out else [])}
        (out / "raw").mkdir()
        with self._writer(out) as write, self._writer(out / "raw") as write_raw:
            for split, count in self.counts.items():
                pairs = aligned_lines(self.files(tokens, split))
                how = {"batch": _PAIRS, "total": count["pairs"], "kept": work / "parts" / split}
                subwords = parallel(function, pairs, self.workers, split, **how)
                raws = itertools.repeat(None)
                if split != "train":
                    raws = aligned_lines(self.files(tokens, f"{split}.raw"))
                for pair, raw in zip(subwords, raws, strict=False):
                    if split in cleaned and not cleaning.keeps(pair):
                        count["pairs"] -= 1
                        count["dropped by length"] = count.get("dropped by length", 0) + 1
                        continue
                    write(split, pair)
                    if raw:
                        write_raw(split, raw)
        self._check_pairs()
        return {"splits": self.counts}

    def binarise(self, subwords: Path, out: Path) -> None:
        """Write the one dictionary of both languages, and every split; count the tokens."""
        from fairseq_clusterformer.data.coding import TextCoding
        from fairseq_clusterformer.data.subwords import load

        from .. import binarize

        languages, parts = self.pipeline.languages, self.work / "parts"
        if self.pipeline.bpe == "sentencepiece":
            dictionary = binarize.symbol_dictionary(load(self.pipeline.model).symbols)
        else:
            words = Counter()
            for file in self.files(subwords, "train"):
                how = {"workers": self.workers, "kept": parts / file.name}
                words.update(binarize.count_words(file, **how))
            dictionary = binarize.word_dictionary(words)
        texts = {
            f"{split}.{'-'.join(languages)}.{language}": subwords / f"{split}.{language}"
            for split in self.counts
            for language in languages
        }
        how = {"workers": self.workers, "kept": parts}
        items = TextCoding(dictionary).items
        for name, count in binarize.write_dataset(texts, out, dictionary, items, **how).items():
            split, _, language = name.split(".")
            self.counts[split][f"{language} subwords"] = count["tokens"]
        (out / "dict.txt").rename(out / f"dict.{languages[0]}.txt")
        dictionary.save(str(out / f"dict.{languages[1]}.txt"))

    @contextlib.contextmanager
    def _writer(self, folder: Path) -> Iterator[Callable[[str, Pair], None]]:
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
