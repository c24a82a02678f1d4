"""Our models as models of Hugging Face's ``transformers``.

    import fairseq_clusterformer.hf
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained("folder")  # clusterformer export made it

Importing this module registers the classes below with the Auto classes. They hold fairseq's
modules, layers and attention included: nothing is written twice.
"""

try:
    import transformers
except ImportError as error:
    raise ImportError(
        "fairseq_clusterformer.hf needs the package transformers; allowed: "
        "pip install 'fairseq_clusterformer[transformers]'"
    ) from error

from .cache import ClusterformerCache
from .causal import ClusterformerForCausalLM
from .configuration import ClusterformerConfig

__all__ = [
    "ClusterformerCache",
    "ClusterformerConfig",
    "ClusterformerForCausalLM",
]

transformers.AutoConfig.register(ClusterformerConfig.model_type, ClusterformerConfig)
for _auto, _model in {
    transformers.AutoModelForCausalLM: ClusterformerForCausalLM,
}.items():
    _auto.register(ClusterformerConfig, _model)
