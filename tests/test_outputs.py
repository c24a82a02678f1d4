"""Files and folders that are written whole or not at all, and never over the user's."""

import fcntl
import os
import threading
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure
from safetensors.torch import save_file

from fairseq_clusterformer.checkpoints.average import write_checkpoint
from fairseq_clusterformer.errors import UserError
from fairseq_clusterformer.outputs import (
    JOURNAL,
    check_output,
    whole_file,
    whole_folder,
    write_aside,
    write_text,
    written,
)


def write(out: Path, text: str) -> None:
    with whole_folder(out, lambda: None) as new:
        (new / "file").write_text(text)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_is_replaced_as_a_whole(tmp_path):
    out = tmp_path / "deep" / "out"
    for text in ("first", "second"):
        write(out, text)
        assert (out / "file").read_text() == text
        assert names(out.parent) == ["out"]


def test_a_folder_with_the_same_content_is_left(tmp_path):
    def refuse() -> None:
        raise UserError("it exists")

    write(tmp_path / "out", "first")
    with whole_folder(tmp_path / "out", refuse) as new:
        (new / "file").write_text("first")
    with pytest.raises(UserError), whole_folder(tmp_path / "out", refuse) as new:
        (new / "file").write_text("second")
    assert (tmp_path / "out" / "file").read_text() == "first"
    assert names(tmp_path) == ["out"]


@pytest.mark.parametrize("interrupted", [OSError("full"), KeyboardInterrupt()])
def test_what_was_there_stays_if_it_cannot_be_replaced(interrupted, tmp_path, monkeypatch):
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
    assert names(tmp_path) == ["out"]


def test_nowhere_to_write(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="allowed: a place to write to"):
        write(tmp_path / "file" / "out", "text")


@pytest.mark.parametrize("way", ["itself", "link", "hard link", "spelling", "not UTF-8"])
@pytest.mark.parametrize("force", [False, True])
def test_an_input_is_never_replaced(way, force, tmp_path):
    """Also one that this program wrote."""
    (tmp_path / "deep").mkdir()
    name = os.fsdecode(b"caf\xe9.txt") if way == "not UTF-8" else "mine.txt"
    path = other = tmp_path / name
    write_text("--out", path, "mine")
    if way == "link":
        (other := tmp_path / "link").symlink_to(path)
    if way == "hard link":
        os.link(path, other := tmp_path / "hard")
    if way == "spelling":
        other = tmp_path / "deep" / ".." / "mine.txt"
    with pytest.raises(UserError, match="--out is .*: it is one of the inputs"):
        write_text("--out", other, "new", inputs=[path], force=force)
    assert path.read_text() == "mine"


def test_what_lies_in_a_folder_of_inputs(tmp_path):
    (tmp_path / "mine").write_text("mine")
    write_text("--out", tmp_path / "out", "first", inputs=[tmp_path])
    write_text("--out", tmp_path / "out", "second", inputs=[tmp_path])
    with pytest.raises(UserError, match="one of the inputs"):
        write_text("--out", tmp_path / "mine", "new", inputs=[tmp_path], force=True)
    assert (tmp_path / "mine").read_text() == "mine"


def test_own_files_are_replaced_and_the_user_s_are_not(tmp_path):
    out = tmp_path / "out"
    for text in ("first", "second"):
        write_text("--out", out, text)
        assert out.read_text() == text
    out.write_text("edited")
    with pytest.raises(UserError, match=r"--out is .*: it exists; allowed: a new file, or"):
        write_text("--out", out, "third")
    assert out.read_text() == "edited"
    write_text("--out", out, "third", force=True)
    assert out.read_text() == "third"
    assert names(tmp_path) == [JOURNAL, "out"]


@pytest.mark.parametrize("journal", ["mine", "\n[1]\n{", "link", "folder"])
def test_a_journal_that_is_none(journal, tmp_path):
    """Somebody else's stays as it is, and proves nothing."""
    (tmp_path / "theirs").write_text("\n")
    if journal == "link":
        (tmp_path / JOURNAL).symlink_to("theirs")
    elif journal == "folder":
        (tmp_path / JOURNAL).mkdir()
    else:
        (tmp_path / JOURNAL).write_text(journal)
    write_text("--out", tmp_path / "out", "first")
    assert (tmp_path / "theirs").read_text() == "\n"
    assert (written(tmp_path / "out") is not None) == journal.startswith("\n")
    if journal == "mine":
        assert (tmp_path / JOURNAL).read_text() == "mine"


def test_no_plain_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "round").symlink_to("round")
    for name, problem in (
        *(("pipe", "no plain file"), (".", "a folder"), ("no/out", "no such folder")),
        *(("round", "links|itself"), (300 * "x", "too long")),
    ):
        with pytest.raises(UserError, match=f"--out is .*: .*{problem}"):
            check_output("--out", tmp_path / name, force=True)
    with pytest.raises(UserError, match="--out is .*: .*(links|itself)"):
        check_output("--out", tmp_path / "round", force=True, makes_folder=True)


def test_a_link_stays_and_what_it_names_is_written(tmp_path):
    (tmp_path / "link").symlink_to("out")
    for text in ("first", "second"):
        write_text("--out", tmp_path / "link", text)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "out").read_text() == "second"


def test_what_lies_nearby_is_not_touched(tmp_path):
    """A former version wrote to OUT.partial, also through a link."""
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "out.partial").symlink_to("mine")
    write_text("--out", tmp_path / "out", "text")
    write_aside(tmp_path / "out", "text")
    assert (tmp_path / "mine").read_text() == "mine"
    assert (tmp_path / "out.partial").is_symlink()


def test_what_a_killed_run_left_goes_and_nothing_else(tmp_path):
    left = [tmp_path / f".out.{8 * letter}.clusterformer" for letter in "abc"]
    for folder in left:
        folder.mkdir()
        (folder / "new").write_text("half")
    (left[1] / "thesis.txt").write_text("mine")
    handle = os.open(left[2], os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)  # a run that is at work
    write_text("--out", tmp_path / "out", "text")
    os.close(handle)
    assert names(tmp_path) == sorted([left[1].name, left[2].name, JOURNAL, "out"])


def test_two_at_once_publish_whole_files(tmp_path):
    """As they did not when both wrote to OUT.partial."""
    out, texts = tmp_path / "out", [letter * 300_000 for letter in "ab"]
    both = threading.Barrier(2)

    def run(text: str) -> None:
        with whole_file("--out", out, force=True) as new, new.open("w") as file:
            both.wait(5)
            for _ in range(10):
                file.write(text[:30_000])
                file.flush()

    threads = [threading.Thread(target=run, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert out.read_text() in texts
    assert names(tmp_path) == [JOURNAL, "out"]


LARGE = {"weights": torch.zeros(100_000)}


@pytest.mark.parametrize(
    "fill",
    [
        lambda path: path.write_text("x" * 400_000),
        lambda path: save_file(LARGE, path),
        lambda path: write_checkpoint(LARGE, path),
        lambda path: Figure((9, 9)).savefig(path, format="raw"),
    ],
)
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_full_disk_is_one_line(fill, kind, tmp_path, small_files):
    out = tmp_path / "out"
    whole = whole_file("--out", out) if kind == "file" else whole_folder(out, lambda: None)
    with (
        pytest.raises(UserError, match="is .*out: .*(large|full).*; allowed: a place to"),
        whole as new,
    ):
        fill(new if kind == "file" else new / "file")
    assert names(tmp_path) == []


@pytest.fixture
def small_files():
    """What a full disk is to those who write."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_errors_in_between_are_not_the_disk_s(tmp_path):
    with pytest.raises(FileNotFoundError), whole_file("--out", tmp_path / "out"):
        Path("/nowhere/at/all").read_bytes()
