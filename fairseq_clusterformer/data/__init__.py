"""Prepared data as fairseq reads it."""

from fairseq_clusterformer.outputs import RECORD

__all__ = ["RECORD", "TOKENIZER"]

#: how its texts become tokens, as the library `tokenizers` writes it
TOKENIZER = "tokenizer.json"
