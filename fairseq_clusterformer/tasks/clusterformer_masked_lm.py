"""fairseq's ``masked_lm``, for models that may start from another model's weights."""

from dataclasses import dataclass

from fairseq.tasks import register_task
from fairseq.tasks.masked_lm import MaskedLMConfig, MaskedLMTask

from .own_models import InitialWeights


@dataclass
class ClusterformerMaskedLMTaskConfig(MaskedLMConfig):
    """fairseq's options."""


@register_task("clusterformer_masked_lm", dataclass=ClusterformerMaskedLMTaskConfig)
class ClusterformerMaskedLMTask(InitialWeights, MaskedLMTask):
    """Words that are masked are guessed."""
