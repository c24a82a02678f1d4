"""fairseq_clusterformer: clustered sparse attention for fairseq.

Importing this package imports neither torch nor fairseq. ``--user-dir fairseq_clusterformer``
registers the models, criterions and tasks with fairseq; in Python, ``import
fairseq_clusterformer.plugin`` does.
"""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.util import find_spec

__version__ = "0.1.0"


@contextmanager
def _keep_root_logger() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


class _QuietFairseq(MetaPathFinder):
    """Imports fairseq, and undoes that it sets up Python's root logger, at DEBUG."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname != "fairseq":
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None:
            execute = spec.loader.exec_module

            def exec_module(module):
                with _keep_root_logger():
                    execute(module)

            spec.loader.exec_module = exec_module
        return spec


if "fairseq" not in sys.modules:
    sys.meta_path.insert(0, _QuietFairseq())


def load(path, *, device=None, dtype=None, data=None):
    """Load a trained model, to use it.

        model = fairseq_clusterformer.load("bundle")
        print(model.generate("The cat", max_tokens=100, temperature=0.8))

    Args:
        path: a checkpoint that fairseq wrote, a bundle that ``clusterformer bundle`` made, or the
            name of a model that is installed with this package (:func:`shipped`).
        device: such as "cpu" or "cuda:1"; None: a GPU if there is one.
        dtype: of the parameters, such as "bfloat16" or torch.bfloat16; None: float32.
        data: the prepared data folder; None: that of the training, or the bundle itself.

    Returns:
        An object with what the model can do. All have ``encode(texts)``. A language model has
        ``generate(prompt)`` and ``perplexity(text)``, a translation model ``translate(texts)``, a
        reader ``answer(question, documents)``, a classifier ``classify(texts)``, a model of
        keyphrases ``keyphrases(page)``.

    Raises:
        UserError: a file or a folder that is missing, is something else, or does not fit.
    """
    load_pretrained = import_module(f"{__name__}.inference.pretrained").load
    return load_pretrained(path, device=device, dtype=dtype, data=data)


def shipped():
    """Names of the trained models that are installed with this package, for :func:`load`."""
    return import_module(f"{__name__}.inference.bundle").shipped()
