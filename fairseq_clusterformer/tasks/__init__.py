"""fairseq tasks. ``--user-dir`` imports this package, which registers all of the plug-in."""

from .. import plugin  # noqa: F401
from . import clusterformer_qa, clusterformer_sentence  # noqa: F401
