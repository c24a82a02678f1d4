"""Known data sets of classification, natural language inference and text matching.

Each is a function of --source's folder that returns a `LabelledCorpus`: where its files are, how
they are read, and what is published about it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fairseq_clusterformer.corpora.classification.newsgroups import GROUPS, read_posts
from fairseq_clusterformer.corpora.classification.readers import (
    Example,
    read_aligned,
    read_class_files,
    read_labelled_lines,
    read_objects,
    read_table,
)
from fairseq_clusterformer.errors import bad_option

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
    """

    name: str
    labels: dict[str, str]
    files: dict[str, tuple[Path, ...]]
    read: Callable[..., Iterator[Example]]
    inputs: int = 1
    folds: int | None = None
    tokenised: bool = False
    grouped: bool = False
    published: dict[str, int] | None = None
    max_length: int | None = None

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


# Ten-fold cross-validation: one sentence each


def _sentences(name: str, count: int, files: str, source: Path) -> LabelledCorpus:
    layouts = [{"all": (files,)}]
    if name == "mr":
        layouts.append({"all": ("rt-polarity.neg", "rt-polarity.pos")})
    number, found = find_files(source, name, layouts)
    return LabelledCorpus(
        name,
        BINARY,
        found,
        partial((read_labelled_lines, read_class_files)[number], encoding="latin-1"),
        folds=10,
        tokenised=True,
        published={"all": count},
    )


# 20 Newsgroups, by date


_ARCHIVE = "20news-bydate.tar.gz"


def newsgroups(source: Path, strip: tuple[str, ...] = ("fields",)) -> LabelledCorpus:
    """Return 20 Newsgroups, whose `read` takes away the parts of a post that `strip` names."""
    folders = {part: f"20news-bydate-{part}" for part in ("train", "test")}
    archive = source
    if not source.is_file():
        layouts = [{part: (name,) for part, name in folders.items()}, {"": (_ARCHIVE,)}]
        number, files = find_files(source, "20news", layouts)
        archive = files[""][0] if number else None
    if archive:
        files = {part: (archive / name,) for part, name in folders.items()}
    return LabelledCorpus(
        "20news",
        dict(zip(GROUPS, GROUPS, strict=True)),
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
    parts = {"train": "train", "valid": "dev", "test": "test"}
    layout = {part: (f"snli_1.0_{name}*.jsonl*",) for part, name in parts.items()}
    _, files = find_files(source, "snli", [layout])
    return LabelledCorpus(
        "snli",
        dict(zip(_NLI, _NLI, strict=True)),
        files,
        _read_snli,
        inputs=2,
        published={"train": 549_367, "valid": 9_842, "test": 9_824},
    )


def scitail(source: Path) -> LabelledCorpus:
    """Return SciTail, from its tsv_format or its snli_format."""
    parts = {"train": "train", "valid": "dev", "test": "test"}
    layouts = [
        {part: (f"{folder}scitail_1.0_{name}.{end}",) for part, name in parts.items()}
        for end, folders in (("tsv", ("", "tsv_format/")), ("txt", ("", "snli_format/")))
        for folder in folders
    ]
    number, files = find_files(source, "scitail", layouts)
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
    parts = {"train": "train", "valid": "trial", "test": "test_annotated"}
    layout = {part: (f"SICK_{name}.txt",) for part, name in parts.items()}
    return LabelledCorpus(
        "sick",
        {name.upper(): name for name in _NLI},
        find_files(source, "sick", [layout])[1],
        partial(read_table, label="entailment_judgment", texts=("sentence_A", "sentence_B")),
        inputs=2,
        published={"train": 4_500, "valid": 500, "test": 4_927},
    )


# Text matching


def _aligned(parts: dict[str, str]) -> Parts:
    """Return the layout of castorini/data."""
    names = ("sim.txt", "id.txt", "a.toks", "b.toks")
    return {part: tuple(f"{folder}/{name}" for name in names) for part, folder in parts.items()}


def quora(source: Path) -> LabelledCorpus:
    """Return Quora's question pairs, as Wang et al. (2017) split them or as they were released."""
    parts = {"train": "train", "valid": "dev", "test": "test"}
    layouts = [
        {part: (f"{name}.tsv",) for part, name in parts.items()},
        {"all": ("quora_duplicate_questions.tsv",)},
    ]
    number, files = find_files(source, "quora", layouts[::-1])
    if number:
        return LabelledCorpus(
            "quora",
            BINARY,
            files,
            partial(
                read_table,
                names=("label", "text1", "text2", "id"),
                label="label",
                texts=("text1", "text2"),
            ),
            inputs=2,
            tokenised=True,
            published={"train": 384_348, "valid": 10_000, "test": 10_000},
        )
    texts = ("question1", "question2")
    read = partial(read_table, label="is_duplicate", texts=texts, quoted=True)
    return LabelledCorpus("quora", BINARY, files, read, inputs=2)


def wikiqa(source: Path) -> LabelledCorpus:
    """Return WikiQA with the question of each pair as its group."""
    parts = {"train": "train", "valid": "dev", "test": "test"}
    original = {part: (f"WikiQA-{name}.tsv",) for part, name in parts.items()}
    number, files = find_files(source, "wikiqa", [original, _aligned(parts)])
    if number:
        return LabelledCorpus(
            "wikiqa",
            BINARY,
            files,
            read_aligned,
            inputs=2,
            tokenised=True,
            grouped=True,
            published={"train": 8_672, "valid": 1_130, "test": 2_351},
        )
    return LabelledCorpus(
        "wikiqa",
        BINARY,
        files,
        partial(read_table, label="Label", texts=("Question", "Sentence"), group="QuestionID"),
        inputs=2,
        grouped=True,
        published={"train": 20_360, "valid": 2_733, "test": 6_165},
    )


def msrp(source: Path) -> LabelledCorpus:
    """Return Microsoft's paraphrase corpus, as it was released or from castorini/data."""
    parts = {"train": "train", "test": "test"}
    original = {part: (f"msr_paraphrase_{part}.txt",) for part in parts}
    number, files = find_files(source, "msrp", [original, _aligned(parts)])
    columns = partial(read_table, label="Quality", texts=("#1 String", "#2 String"))
    return LabelledCorpus(
        "msrp",
        BINARY,
        files,
        (columns, read_aligned)[number],
        inputs=2,
        tokenised=bool(number),
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
