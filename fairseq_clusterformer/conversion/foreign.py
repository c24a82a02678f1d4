"""Folders of Hugging Face's transformers, where a checkpoint is wanted."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fairseq_clusterformer.errors import UserError

from fairseq_clusterformer.inference.bundle import is_bundle


@contextmanager
def as_checkpoint(path: Path, data: Path | None) -> Iterator[tuple[Path, Path | None]]:
    """A checkpoint or bundle of a model, and its data folder; of a folder of transformers, a
    bundle that is there as long as the context.

    Args:
        data: that was given; None: the model's own.

    Raises:
        UserError: a folder of another model, or transformers is not installed.
    """
    if not (path / "config.json").is_file() or is_bundle(path):
        yield path, data
        return
    try:
        from fairseq_clusterformer.hf import folder, no_progress_bars
    except ImportError as error:
        raise UserError(str(error)) from None
    no_progress_bars()
    with tempfile.TemporaryDirectory() as work:
        yield folder.back(path, Path(work) / "bundle"), data
