"""fairseq architectures."""

from fairseq_clusterformer.readers import bidaf as bidaf_reader, qanet as qanet_reader
from . import (clusterformer, clusterformer_classifier, clusterformer_lm, clusterformer_masked_lm, clusterformer_reader)
from fairseq_clusterformer.etc import (keyphrases_model as etc_keyphrases, masked_lm as etc_masked_lm, reader as etc_reader)
from .checkpoints import explain_loading

explain_loading()
