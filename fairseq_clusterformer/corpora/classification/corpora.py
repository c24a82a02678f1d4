"""Known data sets of classification, natural language inference and text matching.

Each is a function of --source's folder that returns a `LabelledCorpus`: where its files are, how
they are read, and what is published about it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fairseq_clusterformer.errors import bad_option

from .newsgroups import GROUPS, read_posts
from .readers import (
    LabelledText,
    read_aligned,
    read_class_files,
    read_labelled_lines,
    read_objects,
    read_table,
)

BINARY = {"0": "0", "1": "1"}


@dataclass(frozen=True)
class LabelledCorpus:
    """A data set to prepare.

    Args:
        name: as in the command.
        labels: the class of each label that its files may hold, in the order of the classes.
        files: of its parts: "train", "valid" and "test", or some of these, or "all".
        read: yields the examples of a part's files.
        inputs: the number of texts in an example, 1 or 2.
        folds: the number of folds that "all" makes; None: it makes train, valid and test.
        tokenised: its words stand between blanks already.
        grouped: its examples have a group, and are ranked within it.
        published: the number of examples in each part.
        max_length: the most tokens of an input; None: any number.
        apart: where splits are drawn, equal texts come to the same one.
    """

    name: str
    labels: dict[str, str]
    files: dict[str, tuple[Path, ...]]
    read: Callable[..., Iterator[LabelledText]]
    inputs: int = 1
    folds: int | None = None
    tokenised: bool = False
    grouped: bool = False
    published: dict[str, int] | None = None
    max_length: int | None = None
    apart: bool = False

    @property
    def classes(self) -> list[str]:
        """The classes, each once, in the order of their indices."""
        return list(dict.fromkeys(self.labels.values()))


# Where a file may be: in --source, or in a folder of the data set's own name or archive.
_PLACES = ("", "{name}/", "*/{name}/", "*/", "*/*/")

Parts = dict[str, tuple[str, ...]]


def find_files(source: Path, name: str, layouts: list[Parts]) -> tuple[int, Parts]:
    """Return the first of `layouts`, glob patterns by part, that is in `source`, and its files.

    Raises:
        UserError: if there is none, or a file is there twice.
    """
    for number, layout in enumerate(layouts):
        for place in _PLACES:
            folder = place.format(name=name)
            files = {
                part: tuple(_find_one(source, folder + pattern) for pattern in patterns)
                for part, patterns in layout.items()
            }
            if all(all(found) for found in files.values()):
                return number, files
    allowed = (", ".join(p for patterns in lay.values() for p in patterns) for lay in layouts)
    raise bad_option(
        "--source",
        source,
        f"a folder that holds {'; or '.join(allowed)}",
        f"no files of {name}" if source.is_dir() else "no such folder",
    )


def _find_one(source: Path, pattern: str) -> Path | None:
    found = sorted(source.glob(pattern))
    if len(found) > 1:
        both = " and ".join(map(str, found))
        raise bad_option("--source", source, f"one {pattern}", both)
    return found[0] if found else None


_DEV = {"train": "train", "valid": "dev", "test": "test"}


def _layout(pattern: str, **names: str) -> Parts:
    """Return the layout of one file for each part; {} stands for the part's name in `names`."""
    return {part: (pattern.format(name),) for part, name in names.items()}


def _aligned(**names: str) -> Parts:
    """Return the layout of castorini/data."""
    files = ("sim.txt", "id.txt", "a.toks", "b.toks")
    return {part: tuple(f"{folder}/{file}" for file in files) for part, folder in names.items()}


# Ten-fold cross-validation: one sentence each


def _sentences(name: str, count: int, files: str, source: Path) -> LabelledCorpus:
    layouts = [{"all": (files,)}]
    if name == "mr":
        layouts.append({"all": ("rt-polarity.neg", "rt-polarity.pos")})
    number, found = find_files(source, name, layouts)
    read = partial((read_labelled_lines, read_class_files)[number], encoding="latin-1")
    published = {"all": count}
    return LabelledCorpus(name, BINARY, found, read, folds=10, tokenised=True, published=published)


# 20 Newsgroups, by date


def newsgroups(source: Path, strip: tuple[str, ...] = ("fields",)) -> LabelledCorpus:
    """Return 20 Newsgroups, whose `read` takes away the parts of a post that `strip` names."""
    layout = _layout("20news-bydate-{}", train="train", test="test")
    archive = source
    if not source.is_file():
        layouts = [layout, {"": ("20news-bydate.tar.gz",)}]
        number, files = find_files(source, "20news", layouts)
        archive = files[""][0] if number else None
    if archive:
        files = {part: (archive / name,) for part, (name,) in layout.items()}
    return LabelledCorpus(
        "20news",
        {group: group for group in GROUPS},
        files,
        partial(read_posts, strip=strip),
        published={"train": 11_314, "test": 7_532},
        max_length=1_500,
    )


# Natural language inference

_NLI = ("contradiction", "entailment", "neutral")
_read_snli = partial(
    read_objects, label="gold_label", texts=("sentence1", "sentence2"), unlabelled="-"
)


def snli(source: Path) -> LabelledCorpus:
    """Return SNLI 1.0; pairs without a gold label are dropped."""
    return LabelledCorpus(
        "snli",
        {name: name for name in _NLI},
        find_files(source, "snli", [_layout("snli_1.0_{}*.jsonl*", **_DEV)])[1],
        _read_snli,
        inputs=2,
        published={"train": 549_367, "valid": 9_842, "test": 9_824},
    )


def scitail(source: Path) -> LabelledCorpus:
    """Return SciTail, from its tsv_format or its snli_format."""
    places = ("scitail_1.0_{}.tsv", "tsv_format/scitail_1.0_{}.tsv")
    places += ("scitail_1.0_{}.txt", "snli_format/scitail_1.0_{}.txt")
    number, files = find_files(source, "scitail", [_layout(place, **_DEV) for place in places])
    names = ("text1", "text2", "label")
    columns = partial(read_table, names=names, label="label", texts=names[:2])
    return LabelledCorpus(
        "scitail",
        {"entails": "entailment", "entailment": "entailment", "neutral": "neutral"},
        files,
        columns if number < 2 else _read_snli,
        inputs=2,
        published={"train": 23_596, "valid": 1_304, "test": 2_126},
    )


def sick(source: Path) -> LabelledCorpus:
    """Return SICK with its entailment judgements; its trial set is valid."""
    layout = _layout("SICK_{}.txt", train="train", valid="trial", test="test_annotated")
    return LabelledCorpus(
        "sick",
        {name.upper(): name for name in _NLI},
        find_files(source, "sick", [layout])[1],
        partial(read_table, label="entailment_judgment", texts=("sentence_A", "sentence_B")),
        inputs=2,
        published={"train": 4_500, "valid": 500, "test": 4_927},
    )


# Text matching

_matching = partial(LabelledCorpus, labels=BINARY, inputs=2)


def quora(source: Path) -> LabelledCorpus:
    """Return Quora's question pairs, as Wang et al. (2017) split them or as they were released."""
    layouts = [{"all": ("quora_duplicate_questions.tsv",)}, _layout("{}.tsv", **_DEV)]
    is_divided, files = find_files(source, "quora", layouts)
    if not is_divided:
        texts = ("question1", "question2")
        read = partial(read_table, label="is_duplicate", texts=texts, quoted=True)
        return _matching("quora", files=files, read=read)
    names = ("label", "text1", "text2", "id")
    return _matching(
        "quora",
        files=files,
        read=partial(read_table, names=names, label="label", texts=names[1:3]),
        tokenised=True,
        published={"train": 384_348, "valid": 10_000, "test": 10_000},
    )


def wikiqa(source: Path) -> LabelledCorpus:
    """Return WikiQA with the question of each pair as its group."""
    layouts = [_layout("WikiQA-{}.tsv", **_DEV), _aligned(**_DEV)]
    is_aligned, files = find_files(source, "wikiqa", layouts)
    corpus = partial(_matching, "wikiqa", files=files, grouped=True)
    if is_aligned:
        published = {"train": 8_672, "valid": 1_130, "test": 2_351}
        return corpus(read=read_aligned, tokenised=True, published=published)
    texts = ("Question", "Sentence")
    return corpus(
        read=partial(read_table, label="Label", texts=texts, group="QuestionID"),
        published={"train": 20_360, "valid": 2_733, "test": 6_165},
    )


def msrp(source: Path) -> LabelledCorpus:
    """Return Microsoft's paraphrase corpus, as it was released or from castorini/data."""
    parts = {"train": "train", "test": "test"}
    layouts = [_layout("msr_paraphrase_{}.txt", **parts), _aligned(**parts)]
    is_aligned, files = find_files(source, "msrp", layouts)
    columns = partial(read_table, label="Quality", texts=("#1 String", "#2 String"))
    return _matching(
        "msrp",
        files=files,
        read=read_aligned if is_aligned else columns,
        tokenised=bool(is_aligned),
        published={"train": 4_076, "test": 1_725},
    )


CORPORA: dict[str, Callable[..., LabelledCorpus]] = {
    "cr": partial(_sentences, "cr", 3_775, "custrev.all"),
    "mr": partial(_sentences, "mr", 10_662, "rt-polarity.all"),
    "subj": partial(_sentences, "subj", 10_000, "subj.all"),
    "mpqa": partial(_sentences, "mpqa", 10_606, "mpqa.all"),
    "20news": newsgroups,
    "snli": snli,
    "scitail": scitail,
    "sick": sick,
    "quora": quora,
    "wikiqa": wikiqa,
    "msrp": msrp,
}
NO_VALID = ("20news", "msrp")
