"""fairseq tasks. ``--user-dir`` imports this package, which registers all of the plug-in."""

from .. import compat, criterions, models  # noqa: F401  the last two register themselves
from ..data import encoder  # noqa: F401
from . import (clusterformer_masked_lm, clusterformer_qa, clusterformer_sentence)
from fairseq_clusterformer.etc import (keyphrases_task as etc_keyphrases, masked_lm_task as etc_masked_lm)

compat.apply()
