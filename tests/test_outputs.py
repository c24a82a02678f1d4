"""Files and folders that are written whole or not at all, and never over the user's."""

import errno
import json
import os
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure
from safetensors.torch import save_file

from fairseq_clusterformer import __version__, outputs
from fairseq_clusterformer.errors import UserError
from fairseq_clusterformer.outputs import (
    JOURNAL,
    check_output,
    make_folder,
    make_part,
    whole_file,
    whole_folder,
    write_aside,
    write_text,
    written,
)


def write(out: Path, text: str, **how) -> None:
    with whole_folder(out, **how) as new:
        (new / "file").write_text(text)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def plant(place: Path, like: Path | None = None) -> Path:
    """A mark as somebody else's runs sign it: all is right but the secret."""
    place.mkdir(parents=True, exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outputs, "_secret", lambda: b"theirs")
        if like is None:
            outputs._mark(place, ".", outputs.checksum(place))
            outputs._mark(place, ".", str(place), {"version": __version__})
        else:
            outputs._mark(place, like.name, outputs.checksum(like))
    return place


def test_a_folder_is_replaced_as_a_whole(tmp_path):
    out = tmp_path / "deep" / "out"
    for text in ("first", "second"):
        write(out, text, force=True)
        assert (out / "file").read_text() == text
        assert names(out.parent) == ["out"]
        assert names(out) == [JOURNAL, "file"]


def test_a_folder_that_is_there(tmp_path):
    """One with the same content is left, ours is replaced if asked for, and what was changed or
    came with somebody's mark never is."""
    write(out := tmp_path / "out", "first")
    before = (out / JOURNAL).stat()
    write(out, "first")
    assert (out / JOURNAL).stat() == before
    with pytest.raises(UserError, match="OUT is .*: it exists; allowed: a new folder, or --fo"):
        write(out, "second")
    (mine := tmp_path / "mine").mkdir()
    (mine / "file").write_text("mine")
    plant(mine)
    (out / "thesis.txt").write_text("mine")
    for folder in (out, mine):
        with pytest.raises(UserError, match="it holds something else, or was changed"):
            write(folder, "second", force=True)
    assert (out / "file").read_text() == "first"
    assert (mine / "file").read_text() == "mine"
    assert names(tmp_path) == ["mine", "out"]


@pytest.mark.parametrize("way", ["is", "holds", "links to"])
def test_a_folder_that_is_an_input(way, tmp_path):
    write(out := tmp_path / "out", "first")
    if way == "links to":
        (tmp_path / "link").symlink_to("out")
    read = {"is": out, "holds": out / "file", "links to": tmp_path / "link"}[way]
    with pytest.raises(UserError, match="OUT is .*: it is one of the inputs"):
        write(out, "second", force=True, inputs=[read])
    assert (out / "file").read_text() == "first"


@pytest.mark.parametrize("system", ["exchanges", "renames"])
@pytest.mark.parametrize("interrupted", [OSError("full"), KeyboardInterrupt()])
def test_what_was_there_stays_if_it_cannot_be_replaced(interrupted, system, tmp_path, monkeypatch):
    out, rename = tmp_path / "out", os.rename
    write(out, "first")

    def failing(source: Path, target: Path) -> None:
        if Path(source).name == "new" and Path(target) == out:
            raise interrupted
        rename(source, target)

    monkeypatch.setattr(os, "rename", failing)
    if system == "exchanges":  # at once: nothing is renamed
        write(out, "second", force=True)
    else:
        monkeypatch.setattr(outputs.ctypes, "CDLL", lambda _: object())
        with pytest.raises(type(interrupted)):
            write(out, "second", force=True)
    assert (out / "file").read_text() == ("second" if system == "exchanges" else "first")
    assert names(tmp_path) == ["out"]


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
    for _ in range(2):
        with pytest.raises(UserError, match=r"--out is .*: it exists; allowed: a new file, or"):
            write_text("--out", out, "third")
        plant(tmp_path, like=out)
    assert out.read_text() == "edited"
    write_text("--out", out, "third", force=True)
    assert out.read_text() == "third"
    assert names(tmp_path) == [JOURNAL, "out"]


@pytest.mark.parametrize("journal", ["mine", "\n[1]\n{", "link", "folder", "pipe"])
def test_a_journal_that_is_none(journal, tmp_path):
    """Somebody else's stays as it is, and proves nothing."""
    (tmp_path / "theirs").write_text("\n")
    if journal == "link":
        (tmp_path / JOURNAL).symlink_to("theirs")
    elif journal == "folder":
        (tmp_path / JOURNAL).mkdir()
    elif journal == "pipe":
        os.mkfifo(tmp_path / JOURNAL)
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
    """The working folder of a run is known by its mark, not by its name."""
    run = whole_file("--out", tmp_path / "out")
    left = run.__enter__().parent
    (left / "new").write_text("half")
    shutil.copytree(left, tmp_path / "left")  # as if it were killed
    with suppress(GeneratorExit):
        run.gen.close()
    shutil.copytree(tmp_path / "left", left)
    write_text("--out", tmp_path / "out", "text")
    assert names(tmp_path) == [JOURNAL, "left", "out"]
    left.mkdir()
    (left / "thesis.txt").write_text("mine")
    for _ in range(2):
        with pytest.raises(UserError, match="this working folder holds something else"):
            write_text("--out", tmp_path / "out", "text")
        plant(left)
    assert (left / "thesis.txt").read_text() == "mine"


def test_of_two_at_once_one_says_so(tmp_path):
    out = tmp_path / "out"
    with whole_file("--out", out, force=True) as new:
        new.write_text("first")
        said = r"--out is .*/out: another run \(process \d+ on .*\) is at work in it; allowed: "
        with pytest.raises(UserError, match=said):
            write_text("--out", out, "second", force=True)
    assert out.read_text() == "first"
    assert names(tmp_path) == [JOURNAL, "out"]


LARGE = {"weights": torch.zeros(100_000)}


@pytest.mark.parametrize(
    "fill",
    [
        lambda path: path.write_text("x" * 400_000),
        lambda path: save_file(LARGE, path),
        lambda path: torch.save(LARGE, path),
        lambda path: Figure((9, 9)).savefig(path, format="raw"),
    ],
)
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_full_disk_is_one_line(fill, kind, tmp_path, small_files):
    out = tmp_path / "out"
    whole = whole_file("--out", out) if kind == "file" else whole_folder(out)
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


# Prepared folders

RECIPE = {"corpus": "toy", "sizes": {"most": 3}}


def build(work, out):
    (work / "scratch").write_text("x")
    (out / "raw").mkdir()
    (out / "raw" / "text").write_text("some text")
    return {"splits": {}}


def snapshot(folder):
    return {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")}


@pytest.fixture
def dest(tmp_path):
    return tmp_path / "dest"


def test_what_was_built_and_nothing_else_appears(dest, tmp_path):
    record = make_folder(dest, RECIPE, build)
    assert record == json.loads((dest / "prepared.json").read_text())
    assert record == {"recipe": RECIPE, "splits": {}, "files": {"raw/text": 9}}
    assert [path.name for path in tmp_path.iterdir()] == ["dest"]


def test_second_run_does_nothing(dest):
    dest.mkdir()  # an empty folder may be there
    make_folder(dest, RECIPE, build)
    before = snapshot(dest)
    assert make_folder(dest, RECIPE, lambda *_: pytest.fail("built again")) is None
    assert snapshot(dest) == before


def test_another_recipe_or_a_changed_file_is_refused(dest):
    make_folder(dest, RECIPE, build)
    other = {**RECIPE, "sizes": {"most": 4}}
    problem = r"DEST is .*dest: was prepared otherwise \(sizes most: 3 then, 4 now\);"
    with pytest.raises(UserError, match=problem):
        make_folder(dest, other, build)
    assert make_folder(dest, other, build, force=True)["recipe"] == other
    (dest / "raw" / "text").write_text("")
    with pytest.raises(UserError, match="raw/text is no longer as prepared; allowed: another"):
        make_folder(dest, other, build)


@pytest.mark.parametrize(
    "name",
    [
        "dest/mine",
        "dest",
        "dest/prepared.json",
        "dest.partial/mine",
        "dest.partial/download/mine",
        "dest.partial/parts/model",
    ],
)
@pytest.mark.parametrize("force", [False, True])
def test_what_is_the_users_stays(dest, tmp_path, name, force):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("mine")
    before = snapshot(tmp_path)
    with pytest.raises(UserError, match=r"^DEST is .*something else; allowed: "):
        make_folder(dest, RECIPE, build, force=force)
    assert snapshot(tmp_path) == before


def test_force_deletes_nothing_of_the_users(dest, tmp_path):
    make_folder(dest, RECIPE, build)
    best = dest / "checkpoints" / "best.pt"

    def train_meanwhile(work, out):
        best.parent.mkdir()
        best.write_text("mine")
        return build(work, out)

    for builder in (train_meanwhile, lambda *_: pytest.fail("built")):
        with pytest.raises(UserError, match="DEST is .*dest: it holds something else, "):
            make_folder(dest, RECIPE, builder, force=True)
        assert best.read_text() == "mine"
        assert [path.name for path in tmp_path.iterdir()] == ["dest"]
    shutil.rmtree(best.parent)
    assert make_folder(dest, RECIPE, build, force=True)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_failed_run_leaves_nothing_but_downloads(dest, tmp_path, error):
    def fail(work, out):
        build(work, out)
        raise error

    with pytest.raises(error):
        make_folder(dest, RECIPE, fail)
    assert not list(tmp_path.iterdir())

    def fail_after_download(work, out):
        (work / "download").mkdir(exist_ok=True)
        (work / "download" / "half.part").write_text("half")
        fail(work, out)

    with pytest.raises(error):
        make_folder(dest, RECIPE, fail_after_download)
    assert (tmp_path / "dest.partial" / "download" / "half.part").exists()
    assert make_folder(dest, RECIPE, build)
    assert [path.name for path in tmp_path.iterdir()] == ["dest"]


def test_a_full_disk_in_a_prepared_folder(dest, tmp_path):
    def fill(work, out):
        build(work, out)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fill_in_a_part(work, out):
        make_part(work, "one", fill)

    (tmp_path / ".clusterformer").touch()  # of another command's outputs
    told = f"^DEST is {dest}: No space left on device; allowed: a place to write to$"
    for builder in (fill, fill_in_a_part):
        with pytest.raises(UserError, match=told):
            make_folder(dest, RECIPE, builder)
        assert not dest.exists()
    assert make_folder(dest, RECIPE, build)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".clusterformer", "dest"]


def test_what_a_run_that_was_killed_at_its_end_left_is_removed(dest, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(outputs, "_publish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            make_folder(dest, RECIPE, lambda work, _: make_part(work, "one", build)[1])
    assert (tmp_path / "dest.partial" / "parts" / "one").exists()
    (tmp_path / "dest.partial").rename(left := tmp_path / "left")
    make_folder(dest, RECIPE, build)
    left.rename(tmp_path / "dest.partial")
    assert make_folder(dest, RECIPE, build) is None
    assert not (tmp_path / "dest.partial").exists()


def test_a_source_that_changes_meanwhile(dest, tmp_path):
    sizes = iter([1, 2])
    with pytest.raises(UserError, match="a source has changed meanwhile; allowed: run it again"):
        make_folder(dest, lambda: {"size": next(sizes)}, build)
    with pytest.raises(UserError, match="gone: no such file, or no longer; allowed: run it again"):
        make_folder(dest, RECIPE, lambda *_: (tmp_path / "gone").read_text())
    assert not list(tmp_path.iterdir())
