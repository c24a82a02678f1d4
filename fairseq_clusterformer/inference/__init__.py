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
    """A model that is ready for inference."""

    model: "BaseFairseqModel"  # in evaluation mode, on the CPU
    task: "FairseqTask"  # fairseq's, set up on `folder`
    cfg: "DictConfig"  # all options of the training
    folder: Path  # of the data, or the bundle itself
    path: Path  # of the checkpoint or the bundle
    updates: int  # that the training had made
