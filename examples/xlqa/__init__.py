"""BiDAF and QANet, readers of words, as the report XLQA has them: ``--user-dir examples/xlqa``."""

import fairseq_clusterformer.plugin  # noqa: F401  the task and all that the models are made of

from . import readers  # noqa: F401
