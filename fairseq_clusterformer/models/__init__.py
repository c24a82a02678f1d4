"""fairseq architectures."""

from . import clusterformer_lm  # noqa: F401
