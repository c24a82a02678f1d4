"""Data that was edited is other data, at any size; what is prepared of it is not taken for it."""

import json
import re
from pathlib import Path

import pytest

from fairseq_clusterformer.corpora.download import checksum, checksums
from tests.corpora.commands import SPLITS, one_line, run, write, write_splits
from tests.data.subword_models import write_sentencepiece

QUESTION = {"question": "Who was it?", "context": "It was Ada at home.", "answers": ["Ada"]}


def text(folder: Path) -> tuple:
    return ("lm text", write_splits(folder, "one line of it\n" * 3), folder.with_name("dest"))


def questions(folder: Path) -> tuple:
    model = write_sentencepiece(folder.with_name("some.model"))
    write_splits(folder, json.dumps(QUESTION), "{}.jsonl")
    return ("qa text", folder, folder.with_name("dest"), "--sentencepiece-model", model)


def pairs(folder: Path) -> tuple:
    for split in SPLITS:
        write(folder / f"{split}.tsv", f"ein Satz von {split}\tone line of {split}\n")
    options = (word for s in SPLITS for word in (f"--{s}", folder / f"{s}.tsv"))
    languages = "--source-lang de --target-lang en"
    return ("translation text", folder.with_name("dest"), languages, *options)


def labelled(folder: Path) -> tuple:
    write_splits(folder, "good\tone line\nbad\tanother\n" * 3, "{}.tsv")
    return ("classification text", folder, folder.with_name("dest"))


@pytest.mark.parametrize("make", [text, questions, pairs, labelled])
def test_an_edit_of_the_same_size_is_seen(make, tmp_path, capsys):
    words = ("prepare", *make(tmp_path / "source"))
    assert run(*words) == 0
    assert run(*words) == 0
    capsys.readouterr()
    edited = sorted((tmp_path / "source").iterdir())[-1]
    before = edited.read_text()
    edited.write_text(before.replace("e", "a"))
    assert len(edited.read_text()) == len(before)
    assert run(*words) == 1
    assert re.search(f"was prepared otherwise .*{edited.name}", one_line(capsys))
    edited.write_text(before)
    edited.touch()
    assert run(*words) == 0


def test_sources_of_equal_names_keep_a_checksum_each(tmp_path):
    paths = [tmp_path / place / "texts" / "train.txt" for place in ("first", "second")]
    for number, path in enumerate(paths):
        path.parent.mkdir(parents=True)
        path.write_text(f"text {number}\n")
    found = checksums(paths)
    assert list(found) == ["texts/train.txt", "texts/train.txt (2)"]
    assert list(found.values()) == [checksum(path) for path in paths]
