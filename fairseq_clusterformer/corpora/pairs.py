"""Parallel text: your own pairs, from two files or from two columns; Multi30k, IWSLT14, WMT14."""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path

from fairseq_clusterformer.data.text import TextPipeline
from fairseq_clusterformer.errors import bad_option, wrong

from .files import PACKED, Archive, aligned_lines, key_of, numbered_lines, obtain, read_lines

Pair = tuple[str, str]
Pairs = Iterator[Pair]
GERMAN_ENGLISH = ("de", "en")


@dataclass(frozen=True)
class Cleaning:
    """Which training pairs are kept, as in Moses' ``clean-corpus-n``; each side has a unit."""

    unit: str = "tokens"  # or "subwords"
    most: int | None = None  # on one side; None: any number
    ratio: float | None = None  # the most for each one on the shorter side; None: any number

    def keeps(self, pair: Pair) -> bool:
        """Return whether to keep a pair of lines of such units."""
        short, long = sorted(len(line.split()) for line in pair)
        most = long if self.most is None else self.most
        return short > 0 and long <= most and (self.ratio is None or long <= self.ratio * short)


@dataclass(frozen=True)
class ParallelCorpus:
    name: str
    pipeline: TextPipeline  # what is done to its text, and its languages; without a model
    test_sets: dict[str, str]  # the names of "test", "test1"...
    cleaning: Cleaning = field(default_factory=Cleaning)  # of train
    hold_out: int | None = None  # every such pair of train becomes valid; None: `read` has one
    #: takes a folder to work in, and returns the raw pairs of each split
    read: Callable[[Path], dict[str, Pairs]] = lambda _: {}
    #: the user's own files of each split; a pair of train is dropped if a side is in valid or
    #: test, which `read` returns before
    own: dict[str, Sequence[Path]] = field(default_factory=dict)
    #: shares of train, for splits that are drawn from it and cleaned as it is; see `draw_pairs`
    drawn: dict[str, float | None] = field(default_factory=dict)

    # of a known corpus
    about: str = ""  # for the command's help
    archives: Sequence[Archive] = ()  # what it is offered as
    operations: int = 0  # merges of subwords that are usual
    files: dict[str, list[Pair]] = field(default_factory=dict)  # in the archives: pairs of names
    #: of the files of a split, where they are not plain lines
    readers: dict[str, Callable[[Path], Iterator[str]]] = field(default_factory=dict)


def own_pairs(
    languages: tuple[str, str],
    files: dict[str, Sequence[Path]],
    fractions: dict[str, float | None],
    lowercase: bool = False,
) -> ParallelCorpus:
    """Return a corpus of the user's own pairs; valid and test without files are drawn from train,
    by `fractions`; see `draw_pairs`."""
    if languages[0] == languages[1]:
        raise bad_option("--target-lang", languages[1], "another language than --source-lang")
    found = {
        split: [pair_files(path, languages, f"--{split}") for path in paths]
        for split, paths in files.items()
    }
    for split, share in fractions.items():
        if share and found[split]:
            raise bad_option(f"--{split}-fraction", share, f"without --{split}, which is given")
    drawn = {split: share for split, share in fractions.items() if not found[split]}
    if (total := sum(share or 0 for share in drawn.values())) >= 1:
        problem = f"with --test-fraction, {total:g} of train"
        raise bad_option("--valid-fraction", drawn["valid"], "a sum below 1", problem)

    def pairs(split: str) -> Pairs:
        return chain.from_iterable(pairs_of(part, languages, languages) for part in found[split])

    def read(_work: Path) -> dict[str, Pairs]:
        given = {split: pairs(split) for split in ("valid", "test", "train")}
        return given | (draw_pairs(partial(pairs, "train"), drawn) if drawn else {})

    pipeline, cleaning = TextPipeline(languages, lowercase=lowercase), Cleaning("subwords", 250, 9)
    own = {split: list(chain.from_iterable(parts)) for split, parts in found.items()}
    how = {"read": read, "own": own, "drawn": drawn}
    return ParallelCorpus("text", pipeline, {"test": "test"}, cleaning, **how)


def pair_files(given: Path, languages: Sequence[str], option: str) -> list[Path]:
    """Return the file of two columns, or the two ``GIVEN.LANGUAGE``, that an option means."""
    if given.is_file():
        return [given]
    ways = [[Path(f"{given}.{language}{end}") for end in ("", *PACKED)] for language in languages]
    found = [[path for path in paths if path.is_file()] for paths in ways]
    if [len(paths) for paths in found] != [1, 1]:
        names = " and ".join(path.name for path in chain.from_iterable(found)) or "nothing"
        wanted = " and ".join(f"PREFIX.{language}" for language in languages)
        allowed = f"a PREFIX with {wanted} (or as .gz, .xz, .bz2), or a file of two columns"
        raise bad_option(option, given, allowed, f"found {names}")
    return [path for (path,) in found]


def pairs_of(files: Sequence[Path], languages: Sequence[str], columns: Sequence[str]) -> Pairs:
    """Yield the pairs of what `pair_files` returned, in the order of `languages`; one file has
    `columns` of languages. Raises UserError if lines or columns are missing."""
    if len(files) == 2:
        yield from aligned_lines(files)
        return
    first, second = map(columns.index, languages)
    for where, line in numbered_lines(files[0]):
        fields = line.split("\t")
        if len(fields) < 2:
            raise wrong(where, repr(line), f"{'<TAB>'.join(columns)}, a sentence of each language")
        yield fields[first], fields[second]


def draw_pairs(read: Callable[[], Pairs], shares: dict[str, float | None]) -> dict[str, Pairs]:
    """Draw splits by a checksum of the pairs' text, so that equal pairs come to the same split:
    each gets its share of the different pairs; None: 5 %, 2,000 at most. `read` is called again
    for each."""
    import numpy as np  # takes too long for --help

    def key(pair: Pair) -> int:
        return key_of("\t".join(pair))

    def pairs_of_split(split: str) -> Pairs:
        return (pair for pair in read() if drawn.get(key(pair), "train") == split)

    keys = np.unique(np.fromiter(map(key, read()), np.uint64))  # 8 bytes a pair, not 200
    if len(keys) <= len(shares):
        allowed = f"more than {len(shares)}, to draw {' and '.join(shares)} from"
        raise wrong("different pairs of --train", len(keys), allowed)
    drawn, usual = {}, min(0.05, 2000 / len(keys))
    for others, (split, share) in zip(range(len(shares), 0, -1), shares.items(), strict=True):
        most = max(1, math.ceil((share or usual) * len(keys) - 0.5))
        most = min(most, len(keys) - len(drawn) - others)  # which get one at least
        drawn |= dict.fromkeys(keys[len(drawn) : len(drawn) + most].tolist(), split)
    return {split: pairs_of_split(split) for split in (*shares, "train")}


def _read_talks(path: Path) -> Iterator[str]:
    """Yield the lines of ``train.tags.*``; of their headers, titles and descriptions are kept."""
    for line in read_lines(path):
        if not any(tag in line for tag in ("<url>", "<talkid>", "<keywords>")):
            yield re.sub("</?(title|description)>", "", line).strip()


def _read_segments(path: Path, apostrophe: str = "’") -> Iterator[str]:
    for line in read_lines(path):
        if found := re.search(r"<seg [^>]*>\s*(.*?)\s*</seg>", line):
            yield found[1].replace("’", apostrophe)


def known_corpus(known: ParallelCorpus, source: Path | None) -> ParallelCorpus:
    """Return a known corpus that reads the files in `source`, or downloads them."""

    def read(work: Path) -> dict[str, Pairs]:
        found = obtain(known.archives, source, work)

        def pairs(split: str) -> Pairs:
            for names in known.files[split]:
                reader = known.readers.get(split, read_lines)
                yield from aligned_lines([found[name] for name in names], reader)

        return {split: pairs(split) for split in known.files}

    return replace(known, read=read)


def _both(*patterns: str) -> list[Pair]:
    return [tuple(map(pattern.format, GERMAN_ENGLISH)) for pattern in patterns]


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
_TED = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")
_IWSLT14 = {
    "train": _both("train.tags.de-en.{}"),
    "test": _both(*(f"IWSLT14.{test}.de-en.{{}}.xml" for test in _TED)),
}
_WMT14 = {
    "train": _both("europarl-v7.de-en.{}", "commoncrawl.de-en.{}", "news-commentary-v9.de-en.{}"),
    "test": [("newstest2014-deen-ref.de.sgm", "newstest2014-deen-src.en.sgm")],
}
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
    "multi30k": ParallelCorpus(
        "multi30k",
        TextPipeline(GERMAN_ENGLISH, normalize_punctuation=True, lowercase=True),
        {"test": "test2016", "test1": "test2017"},
        about="29,000 captions of pictures, German and English",
        archives=[
            Archive(f"{_MULTI30K_URL}/{name}", f"sha256:{sum_}", {name: f"sha256:{sum_}"})
            for name, sum_ in _MULTI30K_SHA256.items()
        ],
        operations=4_000,
        files={
            "train": _both("train.{}.gz"),
            "valid": _both("val.{}.gz"),
            "test": _both("test_2016_flickr.{}.gz"),
            "test1": _both("test_2017_flickr.{}.gz"),
        },
    ),
    "iwslt14": ParallelCorpus(  # as fairseq's recipe has it
        "iwslt14",
        TextPipeline(GERMAN_ENGLISH, escape=True, lowercase=True),
        {"test": "dev2010+dev2012+tst2010+tst2011+tst2012"},
        Cleaning("tokens", 175, 1.5),
        hold_out=23,
        about="160,000 pairs from TED talks, German and English",
        archives=[
            Archive(
                "https://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz",
                None,
                dict.fromkeys(chain(*_IWSLT14["train"], *_IWSLT14["test"])),
            )
        ],
        operations=10_000,
        files=_IWSLT14,
        readers={"train": _read_talks, "test": partial(_read_segments, apostrophe="'")},
    ),
    # as fairseq's recipe has it, but for the test set's punctuation, which is normalised too
    "wmt14-en-de": ParallelCorpus(
        "wmt14-en-de",
        TextPipeline(GERMAN_ENGLISH, normalize_punctuation=True, dash_splits=True, escape=True),
        {"test": "newstest2014"},
        Cleaning("subwords", 250, 1.5),
        hold_out=100,
        about="4.5 million pairs, English and German",
        archives=[
            Archive(f"https://www.statmt.org/{name}", sum_, dict.fromkeys(names))
            for (name, sum_), names in zip(
                _WMT14_ARCHIVES.items(), [*_WMT14["train"], *_WMT14["test"]], strict=True
            )
        ],
        operations=32_000,
        files=_WMT14,
        readers={"test": _read_segments},
    ),
}
