"""Registers models, criterions and tasks with fairseq, and mends fairseq for today's torch.

fairseq's ``--user-dir`` ends here, through ``tasks``. In Python: ``import
fairseq_clusterformer.plugin``.
"""

from . import compat

compat.apply()

from . import criterions, models, tasks  # noqa: E402, F401  compat comes first
