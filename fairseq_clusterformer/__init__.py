"""fairseq_clusterformer: clustered sparse attention for fairseq.

Importing this package imports neither torch nor fairseq. ``--user-dir fairseq_clusterformer``
registers the models, criterions and tasks with fairseq; in Python, ``import
fairseq_clusterformer.plugin`` does.
"""

__version__ = "0.1.0"
