"""fairseq tasks."""

from . import clusterformer_sentence  # noqa: F401
