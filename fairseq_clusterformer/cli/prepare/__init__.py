"""`clusterformer prepare`: data for training, one module per task."""
