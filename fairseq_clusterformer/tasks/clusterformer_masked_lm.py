"""fairseq's ``masked_lm``, for models that may start from another model's weights."""

from dataclasses import dataclass

from fairseq.dataclass import FairseqDataclass
from fairseq.tasks import register_task
from fairseq.tasks.masked_lm import MaskedLMConfig, MaskedLMTask


@dataclass
class ClusterformerMaskedLMTaskConfig(MaskedLMConfig):
    """fairseq's options."""


class InitialWeights:
    """Mixin before a fairseq task, whose models may start from weights of others."""

    def build_model(self, cfg: FairseqDataclass, from_checkpoint: bool = False):
        """Return the model, with its initial weights unless a checkpoint is loaded.

        Raises:
            ValueError: initial weights that do not fit.
        """
        model = super().build_model(cfg, from_checkpoint)
        if not from_checkpoint and hasattr(model, "load_initial_weights"):
            model.load_initial_weights()
        return model


@register_task("clusterformer_masked_lm", dataclass=ClusterformerMaskedLMTaskConfig)
class ClusterformerMaskedLMTask(InitialWeights, MaskedLMTask):
    """Words that are masked are guessed."""
