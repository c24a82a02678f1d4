"""`clusterformer evaluate`: a model's scores, one module per task."""
