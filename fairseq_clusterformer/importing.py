"""How this package imports fairseq: quietly, and without libraries that few ask for."""

import logging
import sys
from importlib import import_module
from types import ModuleType

#: what fairseq computes some scores of classifiers with; they take a third of its import's time
SCORES = ("sklearn", "sklearn.metrics", "scipy.stats")


def watch() -> None:
    """From now on, whoever imports fairseq imports it in this way."""
    if "fairseq" not in sys.modules:
        sys.meta_path.insert(0, _Fairseq)


class _Fairseq:
    @staticmethod
    def find_spec(fullname, path=None, target=None):
        if fullname != "fairseq":
            return None
        from importlib.util import find_spec  # here, since it would slow down each --help

        sys.meta_path.remove(_Fairseq)
        spec = find_spec(fullname)
        if spec is not None:
            execute = spec.loader.exec_module
            spec.loader.exec_module = lambda module: _import(execute, module)
        return spec


def _import(execute, module: ModuleType) -> None:
    """Undo that fairseq sets up Python's root logger, at DEBUG; meanwhile let others stand for
    modules that are not imported yet. Afterwards, an import finds the modules themselves."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    later = {name: _Later(name) for name in SCORES if name not in sys.modules}
    sys.modules.update(later)
    try:
        execute(module)
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        for name in later:
            if sys.modules.get(name) is later[name]:
                del sys.modules[name]


class _Later(ModuleType):
    """Stands for a module, or for a function of one, which imports the module when called."""

    def __getattr__(self, name: str) -> "_Later":
        if name.startswith("__"):
            raise AttributeError(name)
        return _Later(f"{self.__name__}.{name}")

    def __call__(self, *args, **kwargs):
        module, _, name = self.__name__.rpartition(".")
        return getattr(import_module(module), name)(*args, **kwargs)
