"""fairseq tasks."""

from . import clusterformer_qa, clusterformer_sentence  # noqa: F401
