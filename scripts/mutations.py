"""Breaks the package's code at random places, one at a time: the tests must see each.

    python -m scripts.mutations --number 20 --seed 1

No file is changed: a fork of this process imports the broken module and runs the tests that name
the module, then those of its folder, and of the commands.
"""

import argparse
import ast
import importlib.util
import os
import random
import re
import signal
import sys
import time
from importlib.machinery import SourceFileLoader
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "fairseq_clusterformer"
SECONDS = 1200  # for one of them
SWAPPED = [
    *((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot)),
    *((ast.In, ast.NotIn), (ast.Add, ast.Sub), (ast.Mult, ast.Div), (ast.And, ast.Or)),
]
SWAPS = {a: b for one, other in SWAPPED for a, b in ((one, other), (other, one))}
#: imported before the forks; nothing of the package
HEAVY = ("torch", "fairseq.trainer", "fairseq.tasks", "hydra", "scipy.stats", "transformers")
#: folders whose promises are tested together
TOGETHER = {name: ["test_conformance.py", "test_steps.py"] for name in ("attention", "kernels")}


class Breaker(ast.NodeTransformer):
    """Counts the places that can be broken, and breaks one."""

    def __init__(self, wanted: int = -1):
        self.wanted, self.seen, self.said = wanted, 0, ""

    def takes(self, node: ast.AST) -> bool:
        number, self.seen = self.seen, self.seen + 1
        if number == self.wanted:
            self.said = f"line {node.lineno}: {ast.unparse(node).splitlines()[0][:90]}"
        return number == self.wanted

    def swap(self, node: ast.AST):
        self.generic_visit(node)
        ops = node.ops if isinstance(node, ast.Compare) else [node.op]
        if type(ops[0]) in SWAPS and self.takes(node):
            ops[0] = SWAPS[type(ops[0])]()
            if not isinstance(node, ast.Compare):
                node.op = ops[0]
        return node

    visit_Compare = visit_BinOp = visit_BoolOp = swap

    def visit_Constant(self, node: ast.Constant):
        if isinstance(node.value, bool) and self.takes(node):
            return ast.copy_location(ast.Constant(not node.value), node)
        if type(node.value) is int and self.takes(node):
            return ast.copy_location(ast.Constant(node.value + 1), node)
        return node

    def visit_Return(self, node: ast.Return):
        self.generic_visit(node)
        if node.value is not None and self.takes(node):
            node.value = ast.copy_location(ast.Constant(None), node)
        return node

    def remove(self, node: ast.AST):
        self.generic_visit(node)
        if isinstance(node, ast.Expr) and not isinstance(node.value, ast.Call):
            return node  # a docstring, a yield
        return ast.copy_location(ast.Pass(), node) if self.takes(node) else node

    visit_Expr = visit_AugAssign = remove

    def leave(self, node: ast.AST):
        """Texts, what is raised, and types."""
        return node

    visit_Raise = visit_JoinedStr = visit_Import = visit_ImportFrom = leave

    def visit_AnnAssign(self, node: ast.AnnAssign):
        node.value = node.value and self.visit(node.value)
        return node


def broken(path: Path, number: int) -> tuple[ast.Module, str]:
    breaker = Breaker(number)
    tree = breaker.visit(ast.parse(path.read_text()))
    return ast.fix_missing_locations(tree), breaker.said


def drawn(number: int, seed: int) -> list[tuple[Path, int]]:
    """Files and places in them, each place as likely."""
    places = []
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        if "triton" not in path.parts:
            breaker = Breaker()
            breaker.visit(ast.parse(path.read_text()))
            places += [(path, place) for place in range(breaker.seen)]
    return random.Random(seed).sample(places, number)


def tests_of(path: Path) -> list[list[str]]:
    """Files of tests, run in turn: those that name the module, its folder's, and the commands'."""
    inner = path.relative_to(ROOT / PACKAGE).with_suffix("")
    parent, _, name = ".".join([PACKAGE, *inner.parts]).removesuffix(".__init__").rpartition(".")
    named, rest, commands = [], [], []
    for test in sorted([*ROOT.glob("tests/**/test_*.py"), *ROOT.glob("examples/**/test_*.py")]):
        text, place = test.read_text(), str(test.relative_to(ROOT))
        mirrored = test.stem == f"test_{name}" or test.parent.name == name
        imported = rf"{parent}\.{name}\b|from {parent} import [(\w\s,]*\b{name}\b"
        if mirrored or re.search(imported, text):
            named.append((not mirrored, len(text), place))
        elif inner.parts[0] in test.parts or test.name in TOGETHER.get(inner.parts[0], ()):
            rest.append(place)
        elif test.parent.name == "cli":
            commands.append(place)
    return [*([place] for *_, place in sorted(named)), rest, commands]


class Broken(SourceFileLoader):
    """Imports a module whose tree is another."""

    tree: ast.Module

    def get_code(self, fullname: str):
        return compile(self.tree, self.path, "exec")


def seen_by(path: Path, number: int, groups: list[list[str]]) -> list[str]:
    """The first of these groups of tests that fails on the broken module, in a fork; [] if none
    does. Number -1 breaks nothing."""
    tree, _ = broken(path, number)
    dotted = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    process = os.fork()
    if process == 0:
        import pytest

        class Finder:
            @staticmethod
            def find_spec(name, where=None, target=None):
                if name != dotted:
                    return None
                loader = Broken(name, str(path))
                loader.tree = tree
                return importlib.util.spec_from_file_location(name, path, loader=loader)

        signal.alarm(SECONDS)
        sys.meta_path.insert(0, Finder)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        for group, files in enumerate(groups):
            if files and pytest.main(["-x", "-q", "-n", "0", "-p", "no:cacheprovider", *files]):
                os._exit(group + 1)
        os._exit(0)
    ended = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    return groups[ended - 1] if ended > 0 else ["a signal, or time"] * (ended < 0)


def main() -> int:
    """Returns 1 if the tests do not see one of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    for name in HEAVY:
        importlib.import_module(name)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    left = 0
    for path, number in drawn(args.number, args.seed):
        begun = time.monotonic()
        groups = tests_of(path)
        tests = seen_by(path, number, groups)
        # not by what fails without it
        alive = not tests or bool(seen_by(path, -1, [tests] * (tests in groups)))
        left += alive
        said = f"{time.monotonic() - begun:.0f} s {path.relative_to(ROOT)}, "
        said += broken(path, number)[1]
        print("SURVIVES" if alive else "seen", said, flush=True)
    print(f"{args.number} mutations, {left} unseen")
    return bool(left)


if __name__ == "__main__":
    sys.exit(main())
