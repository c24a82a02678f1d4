"""The package as a whole: it imports, it keeps its layers, it is found where it is installed."""

import ast
import importlib
import importlib.util
import json
import subprocess
import sys
import zipfile
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from setuptools import find_packages

from fairseq_clusterformer.cli.main import COMMANDS
from scripts.sizes import FILE as SIZES
from scripts.sizes import lines
from tests.conftest import REPO_ROOT
from tests.packaging import build_wheel

NAME = "fairseq_clusterformer"
PACKAGE = REPO_ROOT / NAME
WITHOUT_FAIRSEQ = ("answers", "attention", "kernels", "clustering", "metrics", "precision")
WINGS = ("etc", "conversion", "documents")
WITHOUT_FAIRSEQ += ("errors", "outputs", "products", "ranges")
HAS_TRITON = importlib.util.find_spec("triton") is not None


def module_name(path: Path) -> str:
    parts = path.relative_to(REPO_ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def test_every_module_imports_and_is_packaged():
    for name, path in FILES.items():
        if "triton" not in name or HAS_TRITON:
            assert importlib.import_module(name).__file__ == str(path)
    folders = {module_name(path.parent / "__init__.py") for path in FILES.values()}
    assert folders == set(find_packages(str(REPO_ROOT), include=[NAME, f"{NAME}.*"]))


def test_test_modules_do_not_lean_on_each_other():
    """They share helpers through modules without `test_`."""
    for path in sorted((REPO_ROOT / "tests").rglob("*.py")):
        for module in imported_modules(module_name(path), path):
            assert not any(part.startswith("test_") for part in module.split(".")), path


def imported_modules(name: str, path: Path) -> set[str]:
    """Absolute names of all that a file imports, in functions and under conditions too."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    modules = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            relative = "." * node.level + (node.module or "")
            origin = importlib.util.resolve_name(relative, package)
            modules.update(f"{origin}.{alias.name}" for alias in node.names)
    return modules


def test_who_imports_whom():
    """The lower layers no fairseq, the trunk no wing, no wing another, and no file or room what
    imports it; the plug-in and the commands know all, and fairseq imports the entry of tasks."""
    lower = tuple(f"{NAME}.{layer}" for layer in WITHOUT_FAIRSEQ)
    found, files, rooms = [], {}, {}
    for name, path in FILES.items():
        room, imported = name.split(".")[1:2], imported_modules(name, path)
        for module in imported:
            above = module.split(".")[0] in ("fairseq", "fairseq_cli", "hydra", "omegaconf")
            ours = module.startswith(NAME) and module != f"{NAME}.__version__"
            above |= ours and not module.startswith(lower)
            wing = module.removeprefix(f"{NAME}.").split(".")[0]
            stranger = wing in WINGS and room and room[0] not in (wing, "cli", "plugin")
            if stranger or name.startswith(lower) and above:
                found.append(f"{name} imports {module}")
        if name != f"{NAME}.tasks.entry":
            # a name of a module stands for the module
            modules = {m if m in FILES else m.rpartition(".")[0] for m in imported}
            above = {m for m in modules if m in FILES and not f"{name}.".startswith(f"{m}.")}
            files[name] = above
            others = {module.split(".")[1] for module in above if module != NAME}
            rooms.setdefault(*(room or [""]), set()).update(others - {*room})
    assert found == []
    for graph in (files, rooms):
        TopologicalSorter(graph).prepare()  # a CycleError names the circle


def test_the_core_imports_torch_and_nothing_slow(run_cli):
    """What is not imported cannot be patched either."""
    layers = ", ".join(f"{NAME}.{layer}" for layer in WITHOUT_FAIRSEQ)
    code = (
        f"import torch, sys\nbefore = set(sys.modules)\nimport {layers}\n"
        "assert 'torch._dynamo' not in sys.modules\n"  # takes longer than all else
        "found = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(found - sys.stdlib_module_names))"
    )
    found = ast.literal_eval(run_cli("python", "-c", code, cwd=REPO_ROOT).stdout)
    assert set(found) <= {NAME, "numpy"}


def test_help_comes_without_torch(run_cli):
    """Each --help in a process of its own would be slow, so all are asked for in one."""
    code = f"""
import contextlib, io, sys
from fairseq_clusterformer.cli.main import main
for words in {[[], *map(str.split, COMMANDS)]}:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        try:
            status = main([*words, "--help"])
        except SystemExit as exit:
            status = exit.code
    assert status == 0, words
    assert printed.getvalue().startswith(" ".join(["usage: clusterformer", *words])), words
    slow = {{"torch", "fairseq", "numpy", "matplotlib", "omegaconf", "regex"}} & set(sys.modules)
    assert not slow, (words, slow)
"""
    run_cli("python", "-c", code, cwd=REPO_ROOT)


def test_files_name_no_place_of_their_own():
    """No package registry's host, no absolute path of somebody's machine."""
    if not (REPO_ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    # put together here, so that this file does not name them
    hosts = [("py" + "pi", "org"), ("pythonhosted", "org"), ("download", "pytorch", "org")]
    hosts += [("registry", "npmjs", "org"), ("conda", "anaconda", "org")]
    forbidden = "|".join(r"\.".join(parts) for parts in hosts)
    forbidden += "|(^|[^[:alnum:]_.})-])/(work|home|root|Users)/"
    grep = ["git", "grep", "--untracked", "-nIE", "-e", forbidden]
    found = subprocess.run(grep, cwd=REPO_ROOT, capture_output=True, text=True)
    assert (found.stdout, found.stderr) == ("", "")


def test_what_is_over_its_agreed_size_does_not_grow():
    if not (REPO_ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    for part, sizes in json.loads(SIZES.read_text()).items():
        allowed = max(sizes["agreed"], sizes["was"])
        assert lines(part) <= allowed, f"{part} has {lines(part)} lines; allowed: {allowed}"


# What fairseq's command lines do with --user-dir, and what it found
IMPORT_USER_DIR = """
import json, sys
from argparse import Namespace
from fairseq import criterions, models, utils
utils.import_user_module(Namespace(user_dir=sys.argv[1]))
utils.import_user_module(Namespace(user_dir=sys.argv[1]))
import fairseq_clusterformer
print(json.dumps({
    "file": fairseq_clusterformer.__file__,
    "models": sorted(models.MODEL_REGISTRY),
    "criterions": sorted(criterions.CRITERION_REGISTRY),
}))
"""


@pytest.mark.parametrize("way", [pytest.param("name", marks=pytest.mark.whole), "link"])
def test_a_user_dir(way, run_cli, tmp_path):
    """By its name from any folder, after set-up; and through a link, after Python imported it
    (then also by path and name)."""
    code, given = IMPORT_USER_DIR, NAME
    if way == "name" and Path(sys.prefix) != REPO_ROOT / ".venv":
        pytest.skip("not the environment of scripts/setup.sh")
    if way == "link":
        (given := tmp_path / NAME).symlink_to(PACKAGE)
        begin = f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nimport {NAME}.plugin\n"
        end = f"for user_dir in ({str(PACKAGE)!r}, {NAME!r}):\n"
        end += "    utils.import_user_module(Namespace(user_dir=user_dir))\n"
        code = f"{begin}{code}{end}assert sys.argv[1] in {NAME}.__file__"
    run = run_cli("python", "-c", code, given, cwd=tmp_path if way == "name" else REPO_ROOT)
    found = json.loads(run.stdout.splitlines()[-1])
    assert Path(found["file"]).resolve() == PACKAGE / "__init__.py"
    assert "clusterformer_lm" in found["models"]
    assert "clusterformer_cross_entropy" in found["criterions"]


def test_files_of_the_wheel(run_cli, tmp_path):
    with zipfile.ZipFile(build_wheel(run_cli, tmp_path)) as wheel:
        found = {name for name in wheel.namelist() if ".dist-info/" not in name}
    places = ("visual/templates/*", "kernels/cpu/*.[ch]*", "documents/*.html", "trained/*/*")
    others = [path for place in places for path in PACKAGE.glob(place)]
    assert found == {str(path.relative_to(REPO_ROOT)) for path in [*FILES.values(), *others]}
