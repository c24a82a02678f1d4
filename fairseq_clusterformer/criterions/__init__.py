"""Task losses plus the losses that teach clusters."""

from . import (  # noqa: F401
    clusterformer_adaptive_loss,
    clusterformer_cross_entropy,
    clusterformer_label_smoothed_cross_entropy,
    clusterformer_masked_lm,
    clusterformer_qa,
    clusterformer_sentence_prediction,
)
