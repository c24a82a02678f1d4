"""Folders that are written whole or not at all."""

import os
from pathlib import Path

import pytest

from fairseq_clusterformer.errors import UserError, whole_folder


def write(out: Path, text: str) -> None:
    with whole_folder(out, lambda: None) as new:
        (new / "file").write_text(text)


def test_a_folder_is_replaced_as_a_whole(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    for text in ("first", "second"):
        write(out, text)
        assert (out / "file").read_text() == text
        assert [path.name for path in out.parent.iterdir()] == ["out"]


@pytest.mark.parametrize("interrupted", [OSError("full"), KeyboardInterrupt()])
def test_what_was_there_stays_if_it_cannot_be_replaced(
    interrupted: BaseException, tmp_path: Path, monkeypatch
) -> None:
    out, rename = tmp_path / "out", os.rename
    write(out, "first")

    def failing(source: Path, target: Path) -> None:
        if Path(source).name == "new":
            raise interrupted
        rename(source, target)

    monkeypatch.setattr(os, "rename", failing)
    with pytest.raises(type(interrupted)):
        write(out, "second")
    assert (out / "file").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_nowhere_to_write(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="allowed: a place to write to"):
        write(tmp_path / "file" / "out", "text")
