"""Using trained models."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairseq.models import BaseFairseqModel
    from fairseq.tasks import FairseqTask
    from omegaconf import DictConfig

#: of each task, the class that uses its models; the plug-in adds those of the wings
CLASSES = {
    "language_modeling": "fairseq_clusterformer.inference.language_model:LanguageModel",
    "translation": "fairseq_clusterformer.inference.translate:Translator",
    "clusterformer_qa": "fairseq_clusterformer.inference.read:Reader",
    "clusterformer_sentence": "fairseq_clusterformer.inference.classify:Classifier",
    "masked_lm": "fairseq_clusterformer.inference.pretrained:MaskedLanguageModel",
    "clusterformer_masked_lm": "fairseq_clusterformer.inference.pretrained:MaskedLanguageModel",
}


@dataclass(frozen=True, eq=False)
class Loaded:
    """A model that is ready for inference.

    Attributes:
        model: in evaluation mode, on the CPU.
        task: fairseq's task, set up on `folder`.
        cfg: all options of the training.
        folder: the data folder, or the bundle itself.
        path: the checkpoint or the bundle.
        updates: how many the training had made.
    """

    model: "BaseFairseqModel"
    task: "FairseqTask"
    cfg: "DictConfig"
    folder: Path
    path: Path
    updates: int
