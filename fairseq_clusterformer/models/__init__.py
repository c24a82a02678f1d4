"""fairseq architectures."""

from . import (  # noqa: F401
    bidaf_reader,
    clusterformer,
    clusterformer_classifier,
    clusterformer_lm,
    clusterformer_masked_lm,
    clusterformer_reader,
    etc_keyphrases,
    etc_masked_lm,
    etc_reader,
    qanet_reader,
)
from .checkpoints import explain_loading

explain_loading()
