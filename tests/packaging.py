"""The wheel that a user installs."""

import shutil
from pathlib import Path

from tests.conftest import REPO_ROOT, RunCli

NAME = "fairseq_clusterformer"


def build_wheel(run_cli: RunCli, folder: Path) -> Path:
    """The wheel, built from a copy: building leaves files beside the sources."""
    source = folder / "source"
    source.mkdir()
    for name in ("setup.py", "pyproject.toml", "LICENSE", "README.md"):
        shutil.copy(REPO_ROOT / name, source)
    shutil.copytree(REPO_ROOT / NAME, source / NAME, ignore=shutil.ignore_patterns("__pycache__"))
    options = ["--no-deps", "--no-build-isolation", "--quiet", "--wheel-dir", folder]
    run_cli("python", "-m", "pip", "wheel", *options, source)
    (wheel,) = folder.glob("*.whl")
    return wheel
