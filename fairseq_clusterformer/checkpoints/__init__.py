"""Reading and writing trained models."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairseq.models import BaseFairseqModel
    from fairseq.tasks import FairseqTask
    from omegaconf import DictConfig


@dataclass(frozen=True, eq=False)
class Loaded:
    """A model that is ready for inference."""

    model: "BaseFairseqModel"  # in evaluation mode, on the CPU
    task: "FairseqTask"  # fairseq's, set up on `folder`
    cfg: "DictConfig"  # all options of the training
    folder: Path  # of the data, or the bundle itself
    path: Path  # of the checkpoint or the bundle
    updates: int  # that the training had made
