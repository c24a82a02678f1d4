"""Task losses plus the losses that teach clusters."""

from . import clusterformer_adaptive_loss, clusterformer_cross_entropy  # noqa: F401
