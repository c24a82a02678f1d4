"""fairseq architectures."""

from . import (  # noqa: F401
    clusterformer,
    clusterformer_classifier,
    clusterformer_lm,
    clusterformer_masked_lm,
    clusterformer_reader,
)
