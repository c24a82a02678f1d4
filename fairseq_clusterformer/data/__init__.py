"""Prepared data as fairseq reads it."""

#: what a prepared folder says of itself
RECORD = "prepared.json"
#: how its texts become tokens, as the library `tokenizers` writes it
TOKENIZER = "tokenizer.json"
