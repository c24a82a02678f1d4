"""``import fairseq_clusterformer.plugin`` does in Python what ``--user-dir`` does for commands.

It registers the models, criterions, tasks and the text coding with fairseq, and mends fairseq for
today's torch.
"""

from . import tasks  # noqa: F401
