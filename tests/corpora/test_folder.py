"""A prepared folder is complete or not there at all, and nothing of the user's is touched."""

import errno
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from fairseq_clusterformer.corpora.folder import make_folder, make_part
from fairseq_clusterformer.corpora.parallel import parallel
from fairseq_clusterformer.errors import UserError

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
        with pytest.raises(UserError, match=r"DEST is .*dest: holds checkpoints/best.pt, which"):
            make_folder(dest, RECIPE, builder, force=True)
        assert best.read_text() == "mine"
        assert [path.name for path in tmp_path.iterdir()] == ["dest"]
    best.rename(tmp_path / "best.pt")
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


def test_a_full_disk_is_one_line(dest, tmp_path):
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


KILLED = """
import pathlib, sys, time
from fairseq_clusterformer.corpora.folder import make_folder, make_part
def build(work, out):
    (out / "half").write_text("half")
    (work / "reached").touch()
    time.sleep(60)
make_folder(pathlib.Path(sys.argv[1]), {}, build)
"""


def test_killed_run_is_cleared_and_two_runs_do_not_mix(dest, tmp_path):
    work = tmp_path / "dest.partial"
    with subprocess.Popen([sys.executable, "-c", KILLED, dest]) as process:
        while not (work / "reached").exists():
            assert process.poll() is None
            time.sleep(0.01)
        with pytest.raises(UserError, match="another run is at work in it; allowed: another DEST"):
            make_folder(dest, RECIPE, build)
        process.send_signal(signal.SIGKILL)
    assert (work / "out" / "half").exists()
    assert not dest.exists()
    assert set(make_folder(dest, RECIPE, build)["files"]) == {"raw/text"}
    assert not work.exists()


def test_what_a_run_that_was_killed_at_its_end_left_is_removed(dest, tmp_path):
    make_folder(dest, RECIPE, build)
    (tmp_path / "dest.partial" / "download").mkdir(parents=True)  # killed just before its end
    (tmp_path / "dest.partial" / ".clusterformer").touch()
    assert make_folder(dest, RECIPE, build) is None
    assert not (tmp_path / "dest.partial").exists()


def ignores_interruptions(item):
    return item, signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_parallel_keeps_the_order_and_leaves_interruptions_to_the_main_process():
    found = list(parallel(ignores_interruptions, range(50), 2, "items", batch=7))
    assert found == [(item, True) for item in range(50)]
    assert list(parallel(str, range(3), 1, "items")) == ["0", "1", "2"]
    with pytest.raises(ValueError, match="invalid literal"):
        list(parallel(int, ["1", "x"], 2, "items"))
