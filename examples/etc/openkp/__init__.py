"""OpenKP: keyphrases of web pages, by ETC's encoder: ``--user-dir examples/etc/openkp``."""

import fairseq_clusterformer.plugin  # noqa: F401  the encoder and all that it is made of

from . import task  # noqa: F401
