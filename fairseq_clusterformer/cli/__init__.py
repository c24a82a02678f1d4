"""The command `clusterformer`, one module per sub-command."""
