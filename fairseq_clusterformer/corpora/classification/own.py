"""A user's own labelled texts and pairs: TSV, CSV, JSON lines, lines, or a folder per label."""

import json
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

from fairseq_clusterformer.errors import bad_option

from .. import SPLITS
from ..lines import OPENERS, naming_all, read_lines, wrong
from ..splits import split_of
from .readers import (
    LabelledCorpus,
    LabelledText,
    read_labelled_lines,
    read_objects,
    read_rows,
    read_table,
    short,
    some,
)

FORMATS = ("tsv", "csv", "jsonl", "lines")
_SUFFIXES = {".tsv": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".json": "jsonl", ".ndjson": "jsonl"}
_READ = (*_SUFFIXES, ".txt", ".label", ".labels", ".all")
_REMEDY = "--encoding NAME for another"
_RESERVED = re.compile(r"<s>|<pad>|</s>|<unk>|madeupword\d{4,}")
# The names of texts that are looked for unless the user gives others.
_TEXTS = (("text", "text2"), ("text1", "text2"), ("text",))


@dataclass(frozen=True)
class FileFormat:
    """How a user's files are to be read."""

    format: str | None = None  # one of `FORMATS`; None: what the file's name says
    label: str = "label"  # the name of the label's column or JSON field
    texts: tuple[str, ...] = ()  # the same of the one or two texts; none: one of `_TEXTS`
    labels: tuple[str, ...] = ()  # read these labels alone; none: all labels
    encoding: str = "utf-8"
    tokenised: bool = False  # words stand between blanks already

    def of(self, path: Path) -> str:
        """Return the format of a file."""
        if found := self.format or _SUFFIXES.get(_suffix(path)):
            return found
        return "tsv" if "\t" in next(read_lines(path, self.encoding), "") else "lines"

    def texts_among(self, names: Collection[str]) -> tuple[str, ...]:
        """Return the names of the texts that are expected where there are these names."""
        known = (texts for texts in _TEXTS if all(name in names for name in texts))
        return self.texts or next(known, ("text",))


def own_corpus(
    source: Path, form: FileFormat, *, valid: Path | None = None, test: Path | None = None
) -> LabelledCorpus:
    """Return a user's own data set, as ``clusterformer prepare classification text --help`` says.
    Raises UserError if nothing is found there, or if the labels make no sense."""
    files = _find_parts(source)
    for part, path in (("valid", valid), ("test", test)):
        if path is not None:
            files[part] = _data(path, f"--{part}")
    if "train" not in files:
        raise bad_option("SOURCE", source, "a file or folder with training data", "no train")
    places = [path for paths in files.values() for path in paths]
    read = partial(_read, form=form, places=places)
    counts, first = Counter(), None
    for example in read(files["train"]):
        counts[example.label] += 1
        first = first or example
    _check_labels(files["train"][0], form, counts, first)
    names = sorted(counts, key=lambda name: (int(name), "") if name.isdecimal() else (0, name))
    how = {"inputs": len(first.texts), "tokenised": form.tokenised, "apart": True}
    return LabelledCorpus("text", {name: name for name in names}, files, read, **how)


def _check_labels(
    path: Path, form: FileFormat, counts: Counter[str], first: LabelledText | None
) -> None:
    total = counts.total()
    if missing := [name for name in form.labels if name not in counts]:
        problem = f"no example has the label {missing[0]}"
        raise bad_option("--labels", ",".join(form.labels), f"some of {some(counts)}", problem)
    if len(counts) < 2:
        problem = f"{total:,} examples, labels: {some(counts) or 'none'}"
        raise wrong(path, problem, "two labels or more")
    chosen = form.labels or path.is_dir()  # else a text may be taken for the label
    if len(counts) > max(2, total / 2) and not chosen:
        example = short(next(iter(counts)))
        problem = f"{len(counts):,} labels in {total:,} examples, such as {example}"
        allowed = "labels that come again, or --labels, or a folder per label; is the label "
        raise wrong(path, problem, allowed + "another column? See --label-field")
    if reserved := [name for name in counts if _RESERVED.fullmatch(name)]:
        allowed = "labels other than <s>, <pad>, </s>, <unk> and madeupwordNNNN"
        raise wrong(path, f"a label is {reserved[0]}, a special symbol of fairseq's", allowed)
    at_first = first.where.endswith(" line 1") and not form.labels and counts[first.label] == 1
    if at_first and path.is_file() and form.of(path) in ("tsv", "csv"):
        allowed = "a label that comes again, or --labels; is this a header? See --label-field and "
        problem = f"no other line has the label {short(first.label)}"
        raise wrong(first.where, problem, allowed + "--text-fields")


def _data(path: Path, option: str) -> tuple[Path, ...]:
    if not path.exists():
        raise bad_option(option, path, "a file, or a folder per label", "no such file or folder")
    return (path,)


def _find_parts(source: Path) -> dict[str, tuple[Path, ...]]:
    if not source.is_dir():
        return {"train": _data(source, "SOURCE")}
    entries = [path for path in sorted(source.iterdir()) if not path.name.startswith(".")]
    folders = [path for path in entries if path.is_dir()]
    files = [path for path in entries if path.is_file() and _suffix(path) in _READ]
    for of_kind in (folders, files):
        parts = {part: tuple(p for p in of_kind if split_of(p) == part) for part in SPLITS}
        if parts["train"]:
            if unused := [path.name for path in of_kind if not split_of(path)]:
                print(f"{source}: passed over, in no split: {some(unused)}", file=sys.stderr)
            return {part: found for part, found in parts.items() if found}
    if len(folders) > 1:
        return {"train": (source,)}
    if files and not folders:
        return {"train": tuple(files)}
    allowed = f"files named train, valid and test ({' '.join(_READ)}), folders of these names, "
    problem = f"{len(folders)} folder and {len(files)} files that could be data"
    raise bad_option("SOURCE", source, f"{allowed}or a folder per label", problem)


def _suffix(path: Path) -> str:
    """Without what says that a file is packed."""
    return (path.with_suffix("") if path.suffix in OPENERS else path).suffix


def _read(
    files: Sequence[Path], *, form: FileFormat, places: Sequence[Path]
) -> Iterator[LabelledText]:
    with naming_all(chain.from_iterable(map(_files_in, places)), form.encoding, _REMEDY):
        for example in chain.from_iterable(_examples_of(path, form) for path in files):
            label = " ".join(example.label.split())
            if not label:
                raise wrong(example.where, "the label is empty", "a label")
            if not form.labels or label in form.labels:
                yield example._replace(label=label)


def _files_in(place: Path) -> list[Path]:
    if not place.is_dir():
        return [place]
    files = (path for path in sorted(place.rglob("*")) if path.is_file())
    return [path for path in files if not path.name.startswith(".")]


def _examples_of(path: Path, form: FileFormat) -> Iterator[LabelledText]:
    if path.is_dir():
        return _read_folders(path, form)
    kind, names = form.of(path), None
    if kind == "lines":
        return read_labelled_lines([path], form.encoding)
    if kind == "jsonl":
        first = {}
        with suppress(ValueError, RecursionError):
            first = json.loads(next(read_lines(path, form.encoding), ""))
        texts = form.texts_among(first if isinstance(first, dict) else ())
        return read_objects([path], label=form.label, texts=texts, encoding=form.encoding)
    quoted = kind == "csv"
    how = {"delimiter": "," if quoted else "\t", "quoted": quoted, "encoding": form.encoding}
    first = [cell.strip() for cell in next(read_rows(path, **how), ("", []))[1]]
    texts = form.texts_among(first)
    if form.label not in first and not form.texts and form.label == "label":  # no header
        names = ("label", "text", "text2")[: max(2, len(first))]
        texts = names[1:]
    return read_table([path], label=form.label, texts=texts, names=names, **how)


def _read_folders(folder: Path, form: FileFormat) -> Iterator[LabelledText]:
    for of_label in sorted(path for path in folder.iterdir() if path.is_dir()):
        if of_label.name.startswith(".") or (form.labels and of_label.name not in form.labels):
            continue
        for path in _files_in(of_label):
            text = "\n".join(read_lines(path, form.encoding))
            yield LabelledText(of_label.name, (text,), str(path))
