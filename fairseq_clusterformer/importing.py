"""How this package imports fairseq: quietly, and without libraries that few ask for."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.util import find_spec
from types import ModuleType

#: what fairseq computes some scores of classifiers with; they take a third of its import's time
SCORES = ("sklearn", "sklearn.metrics", "scipy.stats")


def watch() -> None:
    """From now on, whoever imports fairseq imports it in this way."""
    if "fairseq" not in sys.modules:
        sys.meta_path.insert(0, _Fairseq())


class _Fairseq(MetaPathFinder):
    def find_spec(self, fullname, path=None, target=None):
        if fullname != "fairseq":
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None:
            execute = spec.loader.exec_module

            def exec_module(module):
                with _keep_root_logger(), _later(*SCORES):
                    execute(module)

            spec.loader.exec_module = exec_module
        return spec


@contextmanager
def _keep_root_logger() -> Iterator[None]:
    """Undo that fairseq sets up Python's root logger, at DEBUG."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


class _Later(ModuleType):
    """Stands for a module, and its members for theirs. A function that is taken from it imports
    the module when called."""

    def __getattr__(self, name: str) -> "_Later":
        if name.startswith("__"):
            raise AttributeError(name)
        return _Later(f"{self.__name__}.{name}")

    def __call__(self, *args, **kwargs):
        module, _, name = self.__name__.rpartition(".")
        return getattr(import_module(module), name)(*args, **kwargs)


@contextmanager
def _later(*names: str) -> Iterator[None]:
    """Let others stand for modules that are not imported yet. Afterwards, an import finds the
    modules themselves."""
    modules = {name: _Later(name) for name in names if name not in sys.modules}
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name, module in modules.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]
