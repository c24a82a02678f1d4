"""fairseq_clusterformer: clustered sparse attention for fairseq (``--user-dir``).

What needs fairseq (``models``, ``criterions``, ``tasks``) is registered when fairseq imports this
package; ``attention``, ``kernels`` and ``clustering`` are plain torch, and can be used without it.
"""

from importlib.util import find_spec

__version__ = "0.1.0"

if find_spec("fairseq") is not None:
    from . import compat

    compat.apply()

    from . import criterions, models, tasks  # noqa: F401
