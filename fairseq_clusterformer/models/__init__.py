"""fairseq architectures."""

from . import clusterformer, clusterformer_classifier, clusterformer_lm  # noqa: F401
from .checkpoints import explain_loading

explain_loading()
