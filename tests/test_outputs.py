"""Files and folders that are written whole or not at all, and never over the user's."""

import json
import os
import resource
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure
from safetensors.torch import save_file

from fairseq_clusterformer.errors import UserError
from fairseq_clusterformer.outputs import (
    JOURNAL,
    check_output,
    make_folder,
    make_part,
    whole_file,
    whole_folder,
    write_text,
    written,
)


def write(out: Path, text: str, **how) -> None:
    with whole_folder(out, **how) as new:
        (new / "file").write_text(text)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def snapshot(folder: Path) -> dict[Path, object]:
    return {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")}


def test_a_folder_is_replaced_as_a_whole(tmp_path):
    """If asked for. One with the same content is left; what was changed, or is the user's, never
    is replaced."""
    out, mine = tmp_path / "deep" / "out", tmp_path / "mine"
    for text in ("first", "second"):
        write(out, text, force=True)
        assert (out / "file").read_text() == text
        assert names(out.parent) == ["out"]
        assert names(out) == [JOURNAL, "file"]
    before = (out / JOURNAL).stat()
    write(out, "second")
    assert (out / JOURNAL).stat() == before
    with pytest.raises(UserError, match="OUT is .*: it exists; allowed: a new folder, or --fo"):
        write(out, "third")
    mine.mkdir()
    for folder in (out, mine):
        (folder / "thesis.txt").write_text("mine")
        with pytest.raises(UserError, match="it holds something else, or was changed"):
            write(folder, "third", force=True)
        assert (folder / "thesis.txt").read_text() == "mine"
    assert (out / "file").read_text() == "second"
    assert names(out.parent) == ["out"]


def test_what_was_there_stays_if_it_cannot_be_replaced(tmp_path, monkeypatch):
    write(out := tmp_path / "out", "first")
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        write(out, "second", force=True)
    assert (out / "file").read_text() == "first"
    assert names(tmp_path) == ["out"]


def left_by_a_kill(run, out: Path, change) -> Path:
    """The working folder of a run that is killed after a change of it."""
    left = run.__enter__().parent
    change(left)
    shutil.copytree(left, kept := out.with_name("kept"))
    with suppress(GeneratorExit):
        run.gen.close()
    return shutil.move(kept, left)


def test_what_a_killed_run_left_goes_and_nothing_else(tmp_path):
    """Its working folder is known by the lock, not by its name. A folder that was being replaced
    comes back."""
    out, run = tmp_path / "out", whole_file("--out", tmp_path / "out")
    left = left_by_a_kill(run, out, lambda work: (work / "new").write_text("half"))
    write_text("--out", out, "text")
    assert names(tmp_path) == [JOURNAL, "out"]
    left.mkdir()
    (left / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match="this working folder holds something else"):
        write_text("--out", out, "text")
    assert (left / "thesis.txt").read_text() == "mine"

    write(folder := tmp_path / "folder", "first")
    run = whole_folder(folder, force=True)
    left_by_a_kill(run, folder, lambda work: folder.rename(work / "before"))
    with pytest.raises(UserError, match="it exists"):
        write(folder, "second")
    assert (folder / "file").read_text() == "first"


def test_an_input_is_never_replaced(tmp_path):
    """Under whatever name, even one that this program wrote; in a folder of inputs, what it wrote
    is."""
    (deep := tmp_path / "deep").mkdir()
    mine = tmp_path / os.fsdecode(b"caf\xe9.txt")
    write_text("--out", mine, "mine")
    write(folder := tmp_path / "folder", "mine")
    (link := tmp_path / "link").symlink_to(mine)
    (linked := tmp_path / "linked").symlink_to(folder)
    os.link(mine, hard := tmp_path / "hard")
    spelling = deep / ".." / mine.name
    for force in (False, True):
        for other in (mine, link, hard, spelling):
            with pytest.raises(UserError, match="--out is .*: it is one of the inputs"):
                write_text("--out", other, "new", inputs=[mine], force=force)
        for read in (folder, folder / "file", linked):
            with pytest.raises(UserError, match="OUT is .*: it is one of the inputs"):
                write(folder, "new", inputs=[read], force=force)
    assert mine.read_text() == (folder / "file").read_text() == "mine"
    (deep / "mine").write_text("mine")
    for text in ("first", "second"):
        write_text("--out", deep / "out", text, inputs=[deep])
    with pytest.raises(UserError, match="one of the inputs"):
        write_text("--out", deep / "mine", "new", inputs=[deep], force=True)
    assert (deep / "mine").read_text() == "mine"


def test_own_files_are_replaced_and_the_user_s_are_not(tmp_path):
    """Of a link, what it names is written, and the link stays."""
    out, link = tmp_path / "out", tmp_path / "link"
    link.symlink_to("out")
    for text in ("first", "second"):
        write_text("--out", link, text)
        assert out.read_text() == text
    out.write_text("edited")
    with pytest.raises(UserError, match=r"--out is .*: it exists; allowed: a new file, or"):
        write_text("--out", out, "third")
    assert out.read_text() == "edited"
    write_text("--out", link, "third", force=True)
    assert link.is_symlink()
    assert out.read_text() == "third"
    assert names(tmp_path) == [JOURNAL, "link", "out"]


@pytest.mark.parametrize("journal", ["mine", '\n[1]\n{"name": "out"}\n{', "link", "pipe"])
def test_a_journal_that_is_none(journal, tmp_path):
    """What another file or a link of its name holds stays as it is."""
    place, out = tmp_path / JOURNAL, tmp_path / "out"
    (tmp_path / "theirs").write_text("\n")
    make = {"link": lambda: place.symlink_to("theirs"), "pipe": lambda: os.mkfifo(place)}
    make.get(journal, lambda: place.write_text(journal))()
    write_text("--out", out, "first")
    assert (tmp_path / "theirs").read_text() == "\n"
    assert (written(out) is not None) == journal.startswith("\n")
    if journal == "mine":
        assert place.read_text() == "mine"


def test_no_plain_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    wrong = {"pipe": "no plain file", ".": "a folder", "no/o": "no such folder"}
    for name, problem in wrong.items():
        with pytest.raises(UserError, match=f"--out is .*: .*{problem}"):
            check_output("--out", tmp_path / name, force=True)


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
FILLS = [
    lambda path: path.write_text("x" * 400_000),
    lambda path: save_file(LARGE, path),
    lambda path: torch.save(LARGE, path),
    lambda path: Figure((9, 9)).savefig(path, format="raw"),
]


@pytest.mark.parametrize("fill", FILLS)
def test_a_full_disk_is_one_line(fill, tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with (
            pytest.raises(UserError, match="is .*out: the disk is full, or .*; allowed: a place"),
            whole_file("--out", tmp_path / "out") as new,
        ):
            fill(new)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert names(tmp_path) == []


# Prepared folders

RECIPE = {"corpus": "toy", "sizes": {"most": 3}}


def build(work, out):
    (work / "scratch").write_text("x")
    (out / "raw").mkdir()
    (out / "raw" / "text").write_text("some text")
    return {"splits": {}}


@pytest.fixture
def dest(tmp_path):
    return tmp_path / "dest"


def test_a_folder_is_prepared_once(dest, tmp_path):
    """What was built and nothing else appears; the next run does nothing."""
    dest.mkdir()  # an empty folder may be there
    record = make_folder(dest, RECIPE, build)
    assert record == json.loads((dest / "prepared.json").read_text())
    assert record == {"recipe": RECIPE, "splits": {}, "files": {"raw/text": 9}}
    assert names(tmp_path) == ["dest"]
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
    with pytest.raises(UserError, match="raw/text: 9 then, 0 now, no longer as prepared; allowed"):
        make_folder(dest, other, build)


USERS = ["dest/mine", "dest", "dest/prepared.json", "dest.partial/mine", "dest.partial/.lock"]
USERS += ["dest.partial/download/mine", "dest.partial/parts/model"]


@pytest.mark.parametrize("name", USERS)
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
        assert names(tmp_path) == ["dest"]
    shutil.rmtree(best.parent)
    assert make_folder(dest, RECIPE, build, force=True)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_a_failed_run_leaves_nothing_but_downloads_and_parts(dest, tmp_path, error):
    def fail(work, out):
        build(work, out)
        raise error

    def fail_after_a_part(work, out):
        (work / "download").mkdir(exist_ok=True)
        (work / "download" / "half.part").write_text("half")
        make_part(work, "one", build)
        fail(work, out)

    with pytest.raises(error):
        make_folder(dest, RECIPE, fail)
    assert not list(tmp_path.iterdir())
    with pytest.raises(error):
        make_folder(dest, RECIPE, fail_after_a_part)
    assert (left := tmp_path / "dest.partial" / "download" / "half.part").exists()
    kept = shutil.copytree(left.parents[1], tmp_path / "kept")
    assert make_folder(dest, RECIPE, lambda work, _: make_part(work, "one", pytest.fail)[1])
    assert names(tmp_path) == ["dest", "kept"]
    kept.rename(left.parents[1])  # as after a kill at the very end
    assert make_folder(dest, RECIPE, build) is None
    assert names(tmp_path) == ["dest"]
