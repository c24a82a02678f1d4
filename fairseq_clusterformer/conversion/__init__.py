"""Dense models made sparse, and folders of transformers where a checkpoint is wanted."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fairseq_clusterformer.checkpoints.bundle import check_inside, is_bundle, write_bundle
from fairseq_clusterformer.checkpoints.load import reason_of
from fairseq_clusterformer.errors import UserError, bad_option, check_no_pipes


def is_folder(path: Path) -> bool:
    """Whether transformers has written it."""
    return (path / "config.json").is_file() and not is_bundle(path)


@contextmanager
def as_checkpoint(path: Path) -> Iterator[Path]:
    """A checkpoint or bundle as it is; of a folder of transformers a bundle, which is there as
    long as the context. Raises as :func:`as_bundle` does."""
    if not is_folder(path):
        yield path
        return
    with tempfile.TemporaryDirectory() as work:
        bundle = as_bundle(path, Path(work) / "bundle")
        try:
            yield bundle
        except UserError as error:  # which names what the user gave
            raise UserError(str(error).replace(str(bundle), str(path))) from None


def as_bundle(folder: Path, out: Path, *, dtype: str = "float32", force: bool = False) -> Path:
    """Write a folder of transformers as a bundle, as ``write_bundle`` does: one of our models, or
    another library's dense model, which becomes ours with full attention. Raises UserError:
    another model, files that are missing or damaged, or transformers is not installed."""
    try:
        from fairseq_clusterformer.hf import ClusterformerConfig, no_progress_bars
        from fairseq_clusterformer.hf import folder as exported
        from fairseq_clusterformer.models.checkpoints import CheckpointError

        from . import dense
    except ImportError as error:
        raise UserError(str(error)) from None
    no_progress_bars()
    # a stranger's folder might lead to files of this computer; a cache of the hub has links
    cache = folder.absolute().parent
    inside = cache.parent if cache.name == "snapshots" else folder
    check_no_pipes("CHECKPOINT", folder)
    for file in filter(Path.is_symlink, folder.rglob("*")):
        check_inside(file, inside, "CHECKPOINT")
    is_ours = (kind := exported.model_type(folder)) == ClusterformerConfig.model_type
    allowed = exported.WRITTEN if is_ours else dense.ALLOWED
    if kind is None:
        what = "its config.json names no model" if folder.is_dir() else "no such folder"
        raise bad_option("CHECKPOINT", folder, f"{exported.WRITTEN}, or {allowed}", what)
    with tempfile.TemporaryDirectory() as data:
        try:
            loaded = (exported if is_ours else dense).read(folder, Path(data))
        except (UserError, MemoryError):
            raise
        except CheckpointError as error:
            raise UserError(str(error)) from None
        except Exception as error:  # transformers and fairseq check little of what a file says
            raise bad_option("CHECKPOINT", folder, allowed, reason_of(error)) from None
        card = exported.card_of(folder) if is_ours else None
        return write_bundle(loaded, out, dtype=dtype, card=card, force=force)
