"""``import fairseq_clusterformer.plugin`` does in Python what ``--user-dir`` does for commands: it
registers the models, criterions, tasks and the text coding with fairseq, and mends fairseq for
today's torch. Of the wings it knows ETC alone, which has models to register."""

from . import compat, criterions, models  # noqa: F401  the last two register themselves
from .data import coding  # noqa: F401
from .etc import masked_lm, reader  # noqa: F401
from .tasks import clusterformer_masked_lm, clusterformer_qa, clusterformer_sentence  # noqa: F401


def registered(cfg):
    """Changes no options: a process that was given this function has imported this module."""
    return cfg


compat.apply(registered)
