"""fairseq_clusterformer: clustered sparse attention for fairseq.

Importing this package imports neither torch nor fairseq. ``--user-dir fairseq_clusterformer``
registers the models, criterions and tasks with fairseq; in Python, ``import
fairseq_clusterformer.plugin`` does.
"""

from importlib import import_module

from . import importing

__version__ = "0.1.0"

importing.watch()


def load(path, *, device=None, dtype=None, data=None):
    """Load a trained model, to use it.

        model = fairseq_clusterformer.load("bundle")
        print(model.generate("The cat", max_tokens=100, temperature=0.8))

    Args:
        path: a checkpoint, a bundle, or the name of an installed model (:func:`shipped`).
        device: such as "cpu" or "cuda:1"; None: a GPU if there is one.
        dtype: of the parameters, such as "bfloat16" or torch.bfloat16; None: float32.
        data: the prepared data folder; None: that of the training, or the bundle itself.

    Returns:
        An object with what the model can do. All have ``encode(texts)``. A language model has
        ``generate(prompt)`` and ``perplexity(text)``, a translation model ``translate(texts)``, a
        reader ``answer(question, documents)``, a classifier ``classify(texts)``.

    Raises:
        UserError: a file or a folder that is missing, is something else, or does not fit.
    """
    load_pretrained = import_module(f"{__name__}.use.base").load
    return load_pretrained(path, device=device, dtype=dtype, data=data)


def shipped():
    """Names of the trained models that are installed with this package, for :func:`load`."""
    return import_module(f"{__name__}.checkpoints.bundle").shipped()
