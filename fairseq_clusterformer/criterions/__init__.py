"""Task losses plus the losses that teach clusters."""

from . import (clusterformer_adaptive_loss, clusterformer_cross_entropy, clusterformer_label_smoothed_cross_entropy, clusterformer_masked_lm, clusterformer_qa, clusterformer_sentence_prediction)
from fairseq_clusterformer.etc import (keyphrases_loss as etc_keyphrases, masked_lm_loss as etc_masked_lm)
