"""Our models as models of Hugging Face's ``transformers``.

    import fairseq_clusterformer.hf
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained("folder")  # clusterformer export made it

Importing this module registers the classes below with the Auto classes. They hold fairseq's
modules, layers and attention included: nothing is written twice.
"""

# ruff: noqa: F401  what is imported here is the module's
import sys

try:  # fairseq asks for torchaudio, and one that torch cannot load stops transformers' Trainer
    import torchaudio
except (ImportError, OSError):
    sys.modules["torchaudio"] = None  # as if it were not installed

try:
    import transformers
except ImportError as error:
    raise ImportError(
        "fairseq_clusterformer.hf needs the package transformers; allowed: "
        "pip install '.[transformers]' in the clone"
    ) from error

from .base import ClusterformerCache
from .configuration import ClusterformerConfig
from .encoders import (
    ClusterformerForMaskedLM,
    ClusterformerForQuestionAnswering,
    ClusterformerForSequenceClassification,
    ClusterformerModel,
)
from .folder import KINDS
from .generation import ClusterformerForCausalLM, ClusterformerForConditionalGeneration
from .tokenizer import ClusterformerTokenizer

transformers.utils.import_utils.is_torchaudio_available.cache_clear()
no_progress_bars = transformers.utils.logging.disable_progress_bar
transformers.AutoConfig.register(ClusterformerConfig.model_type, ClusterformerConfig)
transformers.AutoTokenizer.register(ClusterformerConfig, tokenizer_class=ClusterformerTokenizer)
for _model in (ClusterformerModel, *KINDS.values()):
    getattr(transformers, _model.auto).register(ClusterformerConfig, _model)
