"""Loads a reader that answers questions."""

from pathlib import Path

from fairseq import checkpoint_utils, utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

from fairseq_clusterformer.errors import LOADING, UserError
from fairseq_clusterformer.models.clusterformer_reader import ClusterformerReader
from fairseq_clusterformer.tasks.clusterformer_qa import ClusterformerQATask


def load_reader(
    checkpoint: str, data: str | None = None, **options: object
) -> tuple[ClusterformerReader, ClusterformerQATask]:
    """A reader in evaluation, and its task.

    Args:
        checkpoint: of the task ``clusterformer_qa``.
        data: a prepared folder with the model's dictionary; None: that of the training.
        options: of the task, to be others than in training.

    Raises:
        UserError: files that are missing, or something else.
    """
    if not Path(checkpoint).is_file():
        raise UserError(f"--checkpoint is {checkpoint}: no such file; allowed: a checkpoint")
    overrides = options if data is None else {"data": str(data), **options}
    try:
        state = checkpoint_utils.load_checkpoint_to_cpu(checkpoint, overrides)
        cfg = state.get("cfg") or convert_namespace_to_omegaconf(state["args"])
        if cfg.task._name != "clusterformer_qa":
            raise UserError(
                f"--checkpoint is {checkpoint}, of the task {cfg.task._name}; allowed: a reader "
                "that was trained on clusterformer_qa"
            )
        folder = utils.split_paths(cfg.task.data)[0]
        if not Path(folder).is_dir():
            raise UserError(
                f"--data is {folder}{', as --checkpoint says' if data is None else ''}: no such "
                "folder; allowed: the data that the model was trained on, wherever it is now"
            )
        (model,), _, task = checkpoint_utils.load_model_ensemble_and_task(
            [checkpoint], state=state
        )
    except LOADING as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise UserError(
            f"--checkpoint is {checkpoint}: cannot be loaded ({reason}); allowed: a reader that "
            "fairseq has written, and its data"
        ) from None
    return model.eval(), task
