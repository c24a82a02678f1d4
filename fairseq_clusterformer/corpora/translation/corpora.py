"""The corpora of translation: your own pairs; Multi30k, IWSLT14 and WMT14 (German, English)."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path

from fairseq_clusterformer.data.text import TextPipeline
from fairseq_clusterformer.errors import bad_option

from .. import SPLITS
from ..download import Archive, checksums, obtain
from ..lines import aligned_lines, count_lines, naming_all, read_lines
from .pairs import (
    Pairs,
    draw_pairs,
    pair_files,
    pairs_of,
    read_plain_segments,
    read_segments,
    read_talks,
)

GERMAN_ENGLISH = ("de", "en")


@dataclass(frozen=True)
class Cleaning:
    """Which training pairs are kept, as in Moses' ``clean-corpus-n``; each side has a unit."""

    unit: str = "tokens"  # or "subwords"
    most: int | None = None  # on one side; None: any number
    ratio: float | None = None  # the most for each one on the shorter side; None: any number

    def keeps(self, pair: tuple[str, str]) -> bool:
        """Return whether to keep a pair of lines of such units."""
        short, long = sorted(len(line.split()) for line in pair)
        most = long if self.most is None else self.most
        return short > 0 and long <= most and (self.ratio is None or long <= self.ratio * short)


@dataclass(frozen=True)
class ParallelCorpus:
    """A corpus to prepare."""

    name: str  # for ``prepared.json``
    pipeline: TextPipeline  # what is done to its text, and its languages; without a model
    test_sets: dict[str, str]  # the names of "test", "test1"...
    #: takes a folder to work in, and returns the raw pairs of each split
    read: Callable[[Path], dict[str, Pairs]] = lambda _: {}
    tokenised: bool = False  # the text was tokenised before; `pipeline` says how
    hold_out: int | None = None  # every such pair of train becomes valid; None: `read` has one
    drawn: tuple[str, ...] = ()  # splits that come out of train, and are cleaned as train is
    #: a pair of train is dropped if a side is in valid or test, which `read` must return before
    disjoint: bool = False
    cleaning: Cleaning = field(default_factory=Cleaning)  # of train
    #: how many pairs `read` yields for a split, for downloads without a checksum
    expected: dict[str, int] = field(default_factory=dict)
    facts: Callable[[], dict] = dict  # more for ``prepared.json``, computed anew at each call
    #: about how many pairs a split has, for progress; None: that is not known
    about: Callable[[str], int | None] = lambda _: None


def own_pairs(
    languages: tuple[str, str],
    files: dict[str, Sequence[Path]],
    fractions: dict[str, float | None],
    lowercase: bool = False,
) -> ParallelCorpus:
    """Return a corpus of the user's own pairs: `files` are what --train, --valid and --test give.
    Without files, valid and test are drawn from train, by `fractions`; see `draw_pairs`."""
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

    all_files = [path for parts in found.values() for path in chain.from_iterable(parts)]

    def pairs(split: str) -> Pairs:
        with naming_all(all_files):
            for part in found[split]:
                yield from pairs_of(part, languages, languages)

    def read(_work: Path) -> dict[str, Pairs]:
        given = {split: pairs(split) for split in (*fractions, "train")}
        return given | (draw_pairs(partial(pairs, "train"), drawn) if drawn else {})

    def facts() -> dict:
        files = {part: checksums(chain.from_iterable(parts)) for part, parts in found.items()}
        return {"files": files, "fractions": drawn}

    return ParallelCorpus(
        "text",
        TextPipeline(languages, lowercase=lowercase),
        {"test": "test"},
        read,
        drawn=tuple(drawn),
        disjoint=True,
        cleaning=Cleaning("subwords", 250, 9),
        facts=facts,
        about=lambda split: sum(count_lines(part[0]) for part in found.get(split, ())) or None,
    )


@dataclass(frozen=True)
class KnownCorpus:
    """What a known corpus consists of."""

    about: str  # for the command's help
    archives: Sequence[Archive]  # what it is offered as
    operations: int  # merges of subwords that are usual
    files: dict[str, list[Sequence[str]]]  # in the archives: of each split, pairs of names
    corpus: ParallelCorpus  # all else that is known
    #: of the files of a split, where they are not plain lines
    readers: dict[str, Callable[[Path], Iterator[str]]] = field(default_factory=dict)
    #: returns the files of each split in --source, if they are tokenised text; what differs then
    tokenised: Callable[[Path], dict[str, list[Path]]] = lambda _: {}
    as_tokenised: dict = field(default_factory=dict)
    places: str = ""  # what else --source may hold, for the command's help


def known_corpus(known: KnownCorpus, source: Path | None) -> ParallelCorpus:
    """Return a corpus, from the files in `source`, or downloaded."""
    corpus = known.corpus
    if source and (tokenised := known.tokenised(source)):
        return replace(
            corpus,
            read=lambda _: {split: aligned_lines(files) for split, files in tokenised.items()},
            tokenised=True,
            hold_out=None,
            expected={},
            **known.as_tokenised,
        )

    def read(work: Path) -> dict[str, Pairs]:
        files = obtain(known.archives, source, work)

        def pairs(split: str) -> Pairs:
            for names in known.files[split]:
                reader = known.readers.get(split, read_lines)
                yield from aligned_lines([files[name] for name in names], reader)

        return {split: pairs(split) for split in known.files}

    return replace(corpus, read=read, expected={} if source else corpus.expected)


def _both(pattern: str) -> list[str]:
    return [pattern.format(language) for language in GERMAN_ENGLISH]


def _iwslt14_tokenised(source: Path) -> dict[str, list[Path]]:
    """The pairs ``SPLIT.de-en.LANGUAGE`` or ``SPLIT.sample.de-en.LANGUAGE``."""

    def files(split: str) -> list[Path]:
        names = f"{split}.de-en", f"{split}.sample.de-en"
        found = [name for name in names if any(source.glob(f"{name}.*"))]
        if len(found) == 2:
            raise bad_option("--source", source, f"one of {names[0]} and {names[1]}", "has both")
        return pair_files(source / (found or names)[0], GERMAN_ENGLISH, "--source")

    if any(source.glob("train.de-en.*")) or any(source.glob("train.sample.de-en.*")):
        return {split: files(split) for split in SPLITS}
    return {}


def _wmt14_tokenised(source: Path) -> dict[str, list[Path]]:
    if not (source / "src-train.txt").is_file():
        return {}
    names = {"train": "train", "valid": "val", "test": "test"}.items()
    return {s: [source / f"{side}-{name}.txt" for side in ("tgt", "src")] for s, name in names}


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
_IWSLT14_TESTS = [
    _both(f"IWSLT14.{test}.de-en.{{}}.xml")
    for test in ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")
]
_IWSLT14_TRAIN = _both("train.tags.de-en.{}")
_WMT14_TRAIN = [
    _both(f"{name}.de-en.{{}}") for name in ("europarl-v7", "commoncrawl", "news-commentary-v9")
]
_WMT14_TEST = ["newstest2014-deen-ref.de.sgm", "newstest2014-deen-src.en.sgm"]
# The checksums are those of TensorFlow Datasets (sha256) and sacreBLEU (md5).
_WMT14_ARCHIVES = {
    "wmt13/training-parallel-europarl-v7.tgz": (
        "sha256:0224c7c710c8a063dfd893b0cc0830202d61f4c75c17eb8e31836103d27d96e7"
    ),
    "wmt13/training-parallel-commoncrawl.tgz": (
        "sha256:c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5"
    ),
    "wmt14/training-parallel-nc-v9.tgz": (
        "sha256:cb8953f292298e6877ae433c98912b927cb0766b303f4540512ddd286c748485"
    ),
    "wmt14/test-full.tgz": "md5:a8cd784e006feb32ac6f3d9ec7eb389a",
}

CORPORA = {
    "multi30k": KnownCorpus(
        about="29,000 captions of pictures, German and English",
        archives=[
            Archive(f"{_MULTI30K_URL}/{name}", f"sha256:{sum_}", {name: f"sha256:{sum_}"})
            for name, sum_ in _MULTI30K_SHA256.items()
        ],
        operations=4_000,
        files={
            "train": [_both("train.{}.gz")],
            "valid": [_both("val.{}.gz")],
            "test": [_both("test_2016_flickr.{}.gz")],
            "test1": [_both("test_2017_flickr.{}.gz")],
        },
        corpus=ParallelCorpus(
            "multi30k",
            TextPipeline(GERMAN_ENGLISH, normalize_punctuation=True, lowercase=True),
            {"test": "test2016", "test1": "test2017"},
        ),
    ),
    "iwslt14": KnownCorpus(  # as fairseq's recipe has it
        about="160,000 pairs from TED talks, German and English",
        archives=[
            Archive(
                "https://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz",
                None,
                dict.fromkeys(chain(_IWSLT14_TRAIN, *_IWSLT14_TESTS)),
            )
        ],
        operations=10_000,
        files={"train": [_IWSLT14_TRAIN], "test": _IWSLT14_TESTS},
        readers={"train": read_talks, "test": read_plain_segments},
        corpus=ParallelCorpus(
            "iwslt14",
            TextPipeline(GERMAN_ENGLISH, escape=True, lowercase=True),
            {"test": "dev2010+dev2012+tst2010+tst2011+tst2012"},
            hold_out=23,
            cleaning=Cleaning("tokens", 175, 1.5),
            # what the recipe finds in the archive, whose checksum nobody publishes
            expected={"train": 174_443, "test": 6_750},
        ),
        tokenised=_iwslt14_tokenised,
        places=", unpacked or not, or split and tokenised text: train.de-en.de, train.de-en.en, "
        "valid... and test..., plain or .gz",
    ),
    # as fairseq's recipe has it, but for the test set's punctuation, which is normalised too
    "wmt14-en-de": KnownCorpus(
        about="4.5 million pairs, English and German",
        archives=[
            Archive(f"https://www.statmt.org/{name}", sum_, dict.fromkeys(members))
            for (name, sum_), members in zip(
                _WMT14_ARCHIVES.items(), [*_WMT14_TRAIN, _WMT14_TEST], strict=True
            )
        ],
        operations=32_000,
        files={"train": _WMT14_TRAIN, "test": [_WMT14_TEST]},
        readers={"test": read_segments},
        corpus=ParallelCorpus(
            "wmt14-en-de",
            TextPipeline(
                GERMAN_ENGLISH, normalize_punctuation=True, dash_splits=True, escape=True
            ),
            {"test": "newstest2014"},
            hold_out=100,
            cleaning=Cleaning("subwords", 250, 1.5),
        ),
        tokenised=_wmt14_tokenised,
        as_tokenised={
            "pipeline": TextPipeline(GERMAN_ENGLISH, escape=True),
            "test_sets": {"test": "newstest2014 as it is in --source"},
        },
        places=", unpacked or not, or tokenised text: src-train.txt (English), tgt-train.txt "
        "(German), ...-val.txt and ...-test.txt",
    ),
}
