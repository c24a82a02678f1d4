"""``hydra.searchpath: [pkg://fairseq_clusterformer.config]`` in a configuration imports this and
the plug-in, before hydra reads the rest: a mistake in it is one line."""

from .. import plugin  # noqa: F401
