"""The corpora of translation: Multi30k, IWSLT14 and WMT14, German and English.

Each is a function of --source's folder that returns a `Corpus`: what is done to its text, and how
its pairs are had.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path

from fairseq_clusterformer.corpora.download import Archive, obtain
from fairseq_clusterformer.corpora.translation.pairs import (
    LANGUAGES,
    Pairs,
    read_pairs,
    read_segments,
    read_talks,
)
from fairseq_clusterformer.errors import UserError
from fairseq_clusterformer.text import TextPipeline


@dataclass(frozen=True)
class Cleaning:
    """Which training pairs are kept: as Moses' ``clean-corpus-n``.

    Args:
        unit: what is counted, "tokens" or "subwords"; one on each side is the least.
        most: the most on one side; None: any number.
        ratio: the most of the longer side to the shorter one; None: any.
    """

    unit: str = "tokens"
    most: int | None = None
    ratio: float | None = None

    def keeps(self, pair: tuple[str, str]) -> bool:
        """Return whether a pair of lines of such units is kept."""
        short, long = sorted(len(line.split()) for line in pair)
        return (
            short > 0
            and (self.most is None or long <= self.most)
            and (self.ratio is None or long <= self.ratio * short)
        )


@dataclass(frozen=True)
class Corpus:
    """A corpus to prepare.

    Args:
        name: for ``prepared.json``.
        read: returns the raw pairs of each split, "train" first; takes a folder to work in.
        pipeline: what is done to its text; without a model.
        test_sets: the names of "test", "test1"...
        tokenised: the text has been tokenised before; `pipeline` says how.
        hold_out: every such pair of train is valid; None: `read` returns a "valid".
        cleaning: of train, and of the valid held out from it.
    """

    name: str
    read: Callable[[Path], dict[str, Pairs]]
    pipeline: TextPipeline
    test_sets: dict[str, str]
    tokenised: bool = False
    hold_out: int | None = None
    cleaning: Cleaning = field(default_factory=Cleaning)


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


def multi30k(source: Path | None, archives: list[Archive] = MULTI30K) -> Corpus:
    """Return Multi30k: lower case, tests 2016 and 2017."""
    names = {
        "train": "train",
        "valid": "val",
        "test": "test_2016_flickr",
        "test1": "test_2017_flickr",
    }

    def read(work: Path) -> dict[str, Pairs]:
        files = _obtain_all(archives, source, work)
        return {
            split: read_pairs([files[f"{name}.{lang}.gz"] for lang in LANGUAGES])
            for split, name in names.items()
        }

    pipeline = TextPipeline(LANGUAGES, normalize_punctuation=True, lowercase=True)
    return Corpus("multi30k", read, pipeline, {"test": "test2016", "test1": "test2017"})


# IWSLT14

_IWSLT14_TESTS = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")
IWSLT14 = Archive(
    "https://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz",
    None,
    {f"train.tags.de-en.{lang}": None for lang in LANGUAGES}
    | {f"IWSLT14.{t}.de-en.{lang}.xml": None for t in _IWSLT14_TESTS for lang in LANGUAGES},
)


def iwslt14(source: Path | None, archive: Archive = IWSLT14) -> Corpus:
    """Return IWSLT14 as fairseq's recipe has it, or the split and tokenised files in `source`."""
    corpus = partial(
        Corpus,
        "iwslt14",
        pipeline=TextPipeline(LANGUAGES, escape=True, lowercase=True),
        test_sets={"test": "dev2010+dev2012+tst2010+tst2011+tst2012"},
        cleaning=Cleaning("tokens", 175, 1.5),
    )
    if source and any(_split_files(source, "train", lang) for lang in LANGUAGES):
        return corpus(read=lambda _: _read_split_files(source), tokenised=True)

    def read(work: Path) -> dict[str, Pairs]:
        files = obtain(archive, source, work)

        def pairs(name: str, reader: Callable[[Path], Iterator[str]]) -> Pairs:
            return read_pairs([files[name.format(lang)] for lang in LANGUAGES], reader)

        def segments(path: Path) -> Iterator[str]:  # fairseq's recipe: plain apostrophes
            return (line.replace("’", "'") for line in read_segments(path))

        tests = [pairs(f"IWSLT14.{test}.de-en.{{}}.xml", segments) for test in _IWSLT14_TESTS]
        return {
            "train": pairs("train.tags.de-en.{}", read_talks),
            "test": chain.from_iterable(tests),
        }

    return corpus(read=read, hold_out=23)


def _split_files(source: Path, split: str, lang: str) -> list[Path]:
    names = [
        f"{split}{sample}.de-en.{lang}{end}" for sample in ("", ".sample") for end in ("", ".gz")
    ]
    return [source / name for name in names if (source / name).is_file()]


def _read_split_files(source: Path) -> dict[str, Pairs]:
    pairs = {}
    for split in ("train", "valid", "test"):
        found = [_split_files(source, split, lang) for lang in LANGUAGES]
        for lang, files in zip(LANGUAGES, found, strict=True):
            if len(files) != 1:
                raise UserError(
                    f"--source {source}: {len(files)} files for {split} in {lang}; allowed is "
                    f"one, {split}.de-en.{lang} or {split}.sample.de-en.{lang}, plain or .gz"
                )
        pairs[split] = read_pairs([files[0] for files in found])
    return pairs


# WMT14


def _both(name: str) -> list[str]:
    return [f"{name}.de-en.{lang}" for lang in LANGUAGES]


_WMT14_TRAIN = ("europarl-v7", "commoncrawl", "news-commentary-v9")
_WMT14_TEST = ("newstest2014-deen-ref.de.sgm", "newstest2014-deen-src.en.sgm")
WMT14 = [
    Archive(f"https://www.statmt.org/{place}", None, dict.fromkeys(members))
    for place, members in {
        "wmt13/training-parallel-europarl-v7.tgz": _both("europarl-v7"),
        "wmt13/training-parallel-commoncrawl.tgz": _both("commoncrawl"),
        "wmt14/training-parallel-nc-v9.tgz": _both("news-commentary-v9"),
        "wmt14/test-full.tgz": _WMT14_TEST,
    }.items()
]


def wmt14_en2de(source: Path | None, archives: list[Archive] = WMT14) -> Corpus:
    """Return WMT14 as fairseq's recipe has it, or the tokenised files in `source`.

    Other than there, punctuation is normalised in the test set too: all text that is to be
    translated is treated alike.
    """
    corpus = partial(Corpus, "wmt14-en-de", cleaning=Cleaning("subwords", 250, 1.5))
    tokenised = {"train": "train", "valid": "val", "test": "test"}
    if source and (source / "src-train.txt").is_file():
        return corpus(
            read=lambda _: {
                split: read_pairs([source / f"{side}-{name}.txt" for side in ("tgt", "src")])
                for split, name in tokenised.items()
            },
            pipeline=TextPipeline(LANGUAGES, escape=True),
            test_sets={"test": "newstest2014 as it is in --source"},
            tokenised=True,
        )

    def read(work: Path) -> dict[str, Pairs]:
        files = _obtain_all(archives, source, work)
        train = [read_pairs([files[part] for part in _both(name)]) for name in _WMT14_TRAIN]
        test = read_pairs([files[name] for name in _WMT14_TEST], read_segments)
        return {"train": chain.from_iterable(train), "test": test}

    pipeline = TextPipeline(LANGUAGES, normalize_punctuation=True, dash_splits=True, escape=True)
    return corpus(read=read, pipeline=pipeline, test_sets={"test": "newstest2014"}, hold_out=100)


def _obtain_all(archives: list[Archive], source: Path | None, work: Path) -> dict[str, Path]:
    files = {}
    for archive in archives:
        files |= obtain(archive, source, work)
    return files
