"""The corpora of translation: your own pairs, and Multi30k, IWSLT14 and WMT14 (German, English).

Each is a function that returns a `ParallelCorpus`: where its pairs come from, and what is done to
its text.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path

from fairseq_clusterformer.corpora.download import Archive, checksums, obtain
from fairseq_clusterformer.corpora.lines import aligned_lines
from fairseq_clusterformer.corpora.translation.pairs import (
    Pairs,
    draw_pairs,
    pair_files,
    pairs_of,
    read_segments,
    read_talks,
)
from fairseq_clusterformer.data.text import TextPipeline
from fairseq_clusterformer.errors import bad_option

GERMAN_ENGLISH = ("de", "en")


@dataclass(frozen=True)
class Cleaning:
    """Which training pairs are kept, as in Moses' ``clean-corpus-n``.

    Args:
        unit: what is counted, "tokens" or "subwords"; each side has one at least.
        most: the most on one side; None: any number.
        ratio: the most on the longer side for each one on the shorter side; None: any number.
    """

    unit: str = "tokens"
    most: int | None = None
    ratio: float | None = None

    def keeps(self, pair: tuple[str, str]) -> bool:
        """Return whether to keep a pair of lines of such units."""
        short, long = sorted(len(line.split()) for line in pair)
        return (
            short > 0
            and (self.most is None or long <= self.most)
            and (self.ratio is None or long <= self.ratio * short)
        )


@dataclass(frozen=True)
class ParallelCorpus:
    """A corpus to prepare.

    Args:
        name: for ``prepared.json``.
        read: takes a folder to work in, and returns the raw pairs of each split.
        pipeline: what is done to its text, and its languages; without a model.
        test_sets: the names of "test", "test1"...
        tokenised: the text was tokenised before; `pipeline` says how.
        hold_out: every such pair of train becomes valid; None: `read` returns a "valid".
        drawn: the splits that come out of train, and are cleaned as train is.
        disjoint: a training pair is dropped if one of its sides is in valid or test, which
            `read` must return before train.
        cleaning: of train.
        expected: how many pairs `read` yields for a split, for downloads without a checksum.
        facts: more for ``prepared.json``.
    """

    name: str
    read: Callable[[Path], dict[str, Pairs]]
    pipeline: TextPipeline
    test_sets: dict[str, str]
    tokenised: bool = False
    hold_out: int | None = None
    drawn: tuple[str, ...] = ()
    disjoint: bool = False
    cleaning: Cleaning = field(default_factory=Cleaning)
    expected: dict[str, int] = field(default_factory=dict)
    facts: dict = field(default_factory=dict)


def own_pairs(
    languages: tuple[str, str],
    files: dict[str, Sequence[Path]],
    fractions: dict[str, float | None],
    lowercase: bool = False,
) -> ParallelCorpus:
    """Return a corpus of the user's own pairs.

    Args:
        languages: source and target.
        files: what --train, --valid and --test give; see `pair_files`. Without files, valid and
            test are drawn from train.
        fractions: of train, for "valid" and "test"; see `draw_pairs`.

    Raises:
        UserError: if files are missing.
    """
    if languages[0] == languages[1]:
        raise bad_option("--target-lang", languages[1], "another language than --source-lang")
    found = {
        split: [pair_files(path, languages, f"--{split}") for path in paths]
        for split, paths in files.items()
    }
    drawn = {split: fractions[split] for split in ("valid", "test") if not found[split]}
    for split in fractions.keys() - drawn.keys():
        if fractions[split] is not None:
            problem = f"--{split} is given"
            raise bad_option(f"--{split}-fraction", fractions[split], "one of both", problem)

    def pairs(split: str) -> Pairs:
        return chain.from_iterable(pairs_of(part, languages, languages) for part in found[split])

    def read(_work: Path) -> dict[str, Pairs]:
        given = {split: pairs(split) for split in (*fractions, "train")}
        return given | (draw_pairs(partial(pairs, "train"), drawn) if drawn else {})

    sources = {split: checksums(chain.from_iterable(parts)) for split, parts in found.items()}
    return ParallelCorpus(
        "text",
        read,
        TextPipeline(languages, lowercase=lowercase),
        {"test": "test"},
        drawn=tuple(drawn),
        disjoint=True,
        cleaning=Cleaning("subwords", 250, 9),
        facts={"files": sources, "fractions": drawn},
    )


# Multi30k

_MULTI30K_URL = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw"
_MULTI30K_SHA256 = {
    "train.de.gz": "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6",
    "train.en.gz": "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f",
    "val.de.gz": "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a",
    "val.en.gz": "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28",
    "test_2016_flickr.de.gz": "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8",
    "test_2016_flickr.en.gz": "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
    "test_2017_flickr.de.gz": "a2c89666db00c495cd8513b9d708d5a3acc205d7de312ef2bf5fb7ebc1540aee",
    "test_2017_flickr.en.gz": "76a444ee25172e72695cddb13ae4a3bda59430617be88e0bb46b60504f054074",
}
MULTI30K = [
    Archive(f"{_MULTI30K_URL}/{name}", f"sha256:{sum_}", {name: f"sha256:{sum_}"})
    for name, sum_ in _MULTI30K_SHA256.items()
]


def multi30k(source: Path | None, archives: list[Archive] = MULTI30K) -> ParallelCorpus:
    """Return Multi30k: lower case, tests 2016 and 2017."""
    names = {"train": "train", "valid": "val"}
    names |= {"test": "test_2016_flickr", "test1": "test_2017_flickr"}

    def read(work: Path) -> dict[str, Pairs]:
        files = obtain(archives, source, work)
        return {
            split: aligned_lines([files[f"{name}.{lang}.gz"] for lang in GERMAN_ENGLISH])
            for split, name in names.items()
        }

    pipeline = TextPipeline(GERMAN_ENGLISH, normalize_punctuation=True, lowercase=True)
    return ParallelCorpus("multi30k", read, pipeline, {"test": "test2016", "test1": "test2017"})


# IWSLT14

_IWSLT14_TESTS = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")
IWSLT14 = Archive(
    "https://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz",
    None,
    {f"train.tags.de-en.{lang}": None for lang in GERMAN_ENGLISH}
    | {f"IWSLT14.{t}.de-en.{lang}.xml": None for t in _IWSLT14_TESTS for lang in GERMAN_ENGLISH},
)


# What fairseq's recipe finds in the archive, whose checksum nobody publishes.
IWSLT14_PAIRS = {"train": 174_443, "test": 6_750}


def iwslt14(source: Path | None, archive: Archive = IWSLT14) -> ParallelCorpus:
    """Return IWSLT14 as fairseq's recipe has it, or the split and tokenised files in `source`."""
    corpus = partial(
        ParallelCorpus,
        "iwslt14",
        pipeline=TextPipeline(GERMAN_ENGLISH, escape=True, lowercase=True),
        test_sets={"test": "dev2010+dev2012+tst2010+tst2011+tst2012"},
        cleaning=Cleaning("tokens", 175, 1.5),
    )
    if source and (any(source.glob("train.de-en.*")) or any(source.glob("train.sample.de-en.*"))):
        splits = ("train", "valid", "test")
        return corpus(
            read=lambda _: {split: _tokenised_pairs(source, split) for split in splits},
            tokenised=True,
        )

    def read(work: Path) -> dict[str, Pairs]:
        files = obtain([archive], source, work)

        def pairs(name: str, reader: Callable[[Path], Iterator[str]]) -> Pairs:
            return aligned_lines([files[name.format(lang)] for lang in GERMAN_ENGLISH], reader)

        def segments(path: Path) -> Iterator[str]:  # fairseq's recipe: plain apostrophes
            return (line.replace("’", "'") for line in read_segments(path))

        tests = [pairs(f"IWSLT14.{test}.de-en.{{}}.xml", segments) for test in _IWSLT14_TESTS]
        return {
            "train": pairs("train.tags.de-en.{}", read_talks),
            "test": chain.from_iterable(tests),
        }

    expected = {} if source else IWSLT14_PAIRS
    return corpus(read=read, hold_out=23, expected=expected)


def _tokenised_pairs(source: Path, split: str) -> Pairs:
    """Return the pairs of ``SPLIT.de-en.LANGUAGE`` or ``SPLIT.sample.de-en.LANGUAGE``."""
    names = f"{split}.de-en", f"{split}.sample.de-en"
    found = [name for name in names if any(source.glob(f"{name}.*"))]
    if len(found) == 2:
        raise bad_option("--source", source, f"one of {names[0]} and {names[1]}", "has both")
    return aligned_lines(pair_files(source / (found or names)[0], GERMAN_ENGLISH, "--source"))


# WMT14


def _both(name: str) -> list[str]:
    return [f"{name}.de-en.{lang}" for lang in GERMAN_ENGLISH]


_STATMT = "https://www.statmt.org"
_WMT14_TRAIN = ("europarl-v7", "commoncrawl", "news-commentary-v9")
_WMT14_TEST = ("newstest2014-deen-ref.de.sgm", "newstest2014-deen-src.en.sgm")
# The checksums are those of TensorFlow Datasets (sha256) and sacreBLEU (md5).
WMT14 = [
    Archive(
        f"{_STATMT}/wmt13/training-parallel-europarl-v7.tgz",
        "sha256:0224c7c710c8a063dfd893b0cc0830202d61f4c75c17eb8e31836103d27d96e7",
        dict.fromkeys(_both(_WMT14_TRAIN[0])),
    ),
    Archive(
        f"{_STATMT}/wmt13/training-parallel-commoncrawl.tgz",
        "sha256:c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5",
        dict.fromkeys(_both(_WMT14_TRAIN[1])),
    ),
    Archive(
        f"{_STATMT}/wmt14/training-parallel-nc-v9.tgz",
        "sha256:cb8953f292298e6877ae433c98912b927cb0766b303f4540512ddd286c748485",
        dict.fromkeys(_both(_WMT14_TRAIN[2])),
    ),
    Archive(
        f"{_STATMT}/wmt14/test-full.tgz",
        "md5:a8cd784e006feb32ac6f3d9ec7eb389a",
        dict.fromkeys(_WMT14_TEST),
    ),
]


def wmt14_en2de(source: Path | None, archives: list[Archive] = WMT14) -> ParallelCorpus:
    """Return WMT14 as fairseq's recipe has it, or the tokenised files in `source`.

    Unlike there, punctuation is normalised in the test set too, so that all text is treated alike.
    """
    corpus = partial(ParallelCorpus, "wmt14-en-de", cleaning=Cleaning("subwords", 250, 1.5))
    tokenised = {"train": "train", "valid": "val", "test": "test"}
    if source and (source / "src-train.txt").is_file():
        return corpus(
            read=lambda _: {
                split: aligned_lines([source / f"{side}-{name}.txt" for side in ("tgt", "src")])
                for split, name in tokenised.items()
            },
            pipeline=TextPipeline(GERMAN_ENGLISH, escape=True),
            test_sets={"test": "newstest2014 as it is in --source"},
            tokenised=True,
        )

    def read(work: Path) -> dict[str, Pairs]:
        files = obtain(archives, source, work)
        train = [aligned_lines([files[part] for part in _both(name)]) for name in _WMT14_TRAIN]
        test = aligned_lines([files[name] for name in _WMT14_TEST], read_segments)
        return {"train": chain.from_iterable(train), "test": test}

    pipeline = TextPipeline(
        GERMAN_ENGLISH, normalize_punctuation=True, dash_splits=True, escape=True
    )
    return corpus(read=read, pipeline=pipeline, test_sets={"test": "newstest2014"}, hold_out=100)
