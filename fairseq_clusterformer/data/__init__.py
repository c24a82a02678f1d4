"""Prepared data as fairseq reads it."""

from fairseq_clusterformer.outputs import RECORD  # noqa: F401

#: how its texts become tokens, as the library `tokenizers` writes it
TOKENIZER = "tokenizer.json"
