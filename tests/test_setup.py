"""``scripts/setup.sh`` with a Python that only notes what it is asked for."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import REPO_ROOT

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a bash script")

PYTHON = """#!/bin/bash
echo "$PWD: $* PYTHONPATH=${PYTHONPATH:-}" >>NOTES
case "$*" in
  *version_info*) echo VERSION ;;
  *sysconfig*) echo "ROOT/site" ;;
  *"-m venv"*) mkdir -p ROOT/.venv/bin; cp "$0" ROOT/.venv/bin/python ;;
  *"cache dir"*) echo ROOT/cache ;;
  *wheel*fairseq-fixed*) mkdir -p ROOT/.venv/setup.wheels; touch ROOT/.venv/setup.wheels/f.whl ;;
  *torch==*) WHILE_TORCH ;;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with the script, which says each second where it is."""
    (tmp_path / "scripts").mkdir()
    for name in ("scripts/setup.sh", "setup.py"):
        shutil.copy(REPO_ROOT / name, tmp_path / name)
    script = tmp_path / "scripts" / "setup.sh"
    script.write_text(script.read_text().replace("\nEVERY=8 ", "\nEVERY=1 "))
    return tmp_path


def fake(checkout: Path, path: str, version: str = "3.12", while_torch: str = ":") -> Path:
    """A program that stands for a Python."""
    text = PYTHON.replace("VERSION", version).replace("WHILE_TORCH", while_torch)
    file = checkout / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text.replace("ROOT", str(checkout)).replace("NOTES", str(checkout / "notes")))
    file.chmod(0o755)
    return file


def started(checkout: Path, **variables: object) -> subprocess.Popen[str]:
    tools = checkout / "tools"  # no Python among them
    tools.mkdir()
    for name in "bash cat cksum cp cut dirname env flock mkdir mv rm sed sleep tail touch".split():
        (tools / name).symlink_to(shutil.which(name))
    env = {"PATH": str(tools), "HOME": str(checkout), **{k: str(v) for k, v in variables.items()}}
    (tools / "uname").write_text("#!/bin/bash\necho Linux x86_64\n")
    (tools / "uname").chmod(0o755)
    return subprocess.Popen(
        ["bash", str(checkout / "scripts" / "setup.sh")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=env,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # of a shell's background
    )


@pytest.mark.parametrize(
    "place", [".local/share/uv/python/cpython-3.12.9", ".pyenv/versions/3.12"]
)
def test_a_python_beyond_the_path(place, checkout):
    """It is found and named; each step names its log, and says where it is."""
    python = fake(checkout, f"{place}/bin/python3.12", while_torch="echo half of it; sleep 1.5")
    run = started(checkout)
    printed, _ = run.communicate(timeout=60)
    assert run.returncode == 0, printed
    log = checkout / ".venv" / "setup.log"
    first, choice, *_ = printed.splitlines()
    assert first == f"setup: everything that the steps print is in {log}"
    assert f"with {python} (3.12; BASE_PYTHON chooses another)" in choice
    assert re.search(r"3/5 torch==.*\n(setup: +done.*\n)?setup:   1 s: half of it", printed)
    assert printed.endswith(f"setup: ready: {checkout}/.venv\n")
    notes = (checkout / "notes").read_text()
    (built,) = [line for line in notes.splitlines() if " wheel --progress" in line]
    assert "fairseq-fixed==" in built
    assert built.endswith(f"PYTHONPATH={checkout}/scripts/without_torch")
    assert f"--cache-dir {checkout}/cache/fairseq_clusterformer" in built
    assert f"{checkout}/.venv/setup.wheels/f.whl" in notes


def test_a_failed_step_shows_the_end_of_its_log(checkout):
    python = fake(checkout, "python3.12", while_torch="echo no space left; exit 3")
    run = started(checkout, BASE_PYTHON=python)
    printed, _ = run.communicate(timeout=60)
    assert run.returncode == 1
    assert re.search(r"no space left\nsetup: error: failed: 3/5 torch==.*setup.log\)", printed)
    assert not (checkout / ".venv" / "setup.stamp").exists()


def test_an_interrupted_set_up_leaves_no_process(checkout):
    told = checkout / "told"
    python = fake(checkout, "python3.12", while_torch=f"echo $$ >{told}; sleep 600")
    run = started(checkout, BASE_PYTHON=python)
    end = time.monotonic() + 60
    while not (told.exists() and told.read_text().strip()) and time.monotonic() < end:
        time.sleep(0.05)
    os.killpg(run.pid, signal.SIGINT)
    run.communicate(timeout=60)
    assert run.returncode != 0
    while time.monotonic() < end:
        try:
            os.kill(int(told.read_text()), 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    pytest.fail("pip goes on")


def test_an_unsupported_python(checkout):
    """One line that names what was found and what is allowed, before anything is made."""
    python = fake(checkout, "python3", version="3.9")
    run = started(checkout, BASE_PYTHON=python)
    (line,) = run.communicate(timeout=60)[0].splitlines()
    assert run.returncode == 1
    assert "3.11 or 3.12" in line
    assert f"{python} (3.9)" in line
    assert not (checkout / ".venv").exists()
