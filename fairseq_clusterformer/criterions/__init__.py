"""Task losses plus the losses that teach clusters."""

from . import clusterformer_qa, clusterformer_sentence_prediction, fairseq_losses  # noqa: F401
