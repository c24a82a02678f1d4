"""Dense models made sparse, and folders of transformers where a checkpoint is wanted."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fairseq_clusterformer.checkpoints.bundle import check_inside, is_bundle, write_bundle
from fairseq_clusterformer.errors import UserError, check_no_pipes


def is_folder(path: Path) -> bool:
    """Whether transformers has written it."""
    return (path / "config.json").is_file() and not is_bundle(path)


@contextmanager
def as_checkpoint(path: Path, data: Path | None) -> Iterator[tuple[Path, Path | None]]:
    """A checkpoint or bundle, and the data folder that was given; of a folder of transformers a
    bundle, which is there as long as the context. Raises as :func:`as_bundle` does."""
    if not is_folder(path):
        yield path, data
        return
    with tempfile.TemporaryDirectory() as work:
        bundle = as_bundle(path, Path(work) / "bundle")
        try:
            yield bundle, data
        except UserError as error:  # which names what the user gave
            raise UserError(str(error).replace(str(bundle), str(path))) from None


def as_bundle(folder: Path, out: Path, *, dtype: str = "float32", force: bool = False) -> Path:
    """Write a folder of transformers as a bundle, as ``write_bundle`` does: one of our models, or
    another library's dense model, which becomes ours with full attention. Raises UserError:
    another model, or transformers is not installed."""
    try:
        from fairseq_clusterformer.hf import no_progress_bars
        from fairseq_clusterformer.hf.folder import back

        from .dense import is_dense, read_dense
    except ImportError as error:
        raise UserError(str(error)) from None
    no_progress_bars()
    # a stranger's folder might lead to files of this computer; a cache of the hub has links
    cache = folder.absolute().parent
    inside = cache.parent if cache.name == "snapshots" else folder
    check_no_pipes("CHECKPOINT", folder)
    for file in filter(Path.is_symlink, folder.rglob("*")):
        check_inside(file, inside, "CHECKPOINT")
    if not is_dense(folder):
        return back(folder, out, dtype=dtype, force=force)
    with tempfile.TemporaryDirectory() as data:
        return write_bundle(read_dense(folder, Path(data)), out, dtype=dtype, force=force)
