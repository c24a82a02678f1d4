"""What a data set of labelled texts is."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from .readers import LabelledText


@dataclass(frozen=True)
class LabelledCorpus:
    """A data set to prepare."""

    name: str  # as in the command
    labels: dict[str, str]  # the class of each label in its files, in order; none: numbers
    files: dict[str, tuple[Path, ...]]  # of "train", "valid" and "test", some of these, or "all"
    read: Callable[..., Iterator[LabelledText]]  # yields the examples of a part's files
    inputs: int = 1  # texts of an example, 1 or 2
    folds: int | None = None  # that "all" makes; None: it makes train, valid and test
    tokenised: bool = False  # words stand between blanks already
    grouped: bool = False  # examples have a group, and are ranked within it
    published: dict[str, int] | None = None  # the number of examples in each part
    max_length: int | None = None  # the most tokens of an input; None: any number
    apart: bool = False  # where splits are drawn, equal texts come to the same one
    settings: dict = field(default_factory=dict)  # more for the record

    @property
    def classes(self) -> list[str]:
        """The classes, each once, in the order of their indices; none: labels are numbers."""
        return list(dict.fromkeys(self.labels.values()))
