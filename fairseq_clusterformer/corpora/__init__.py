"""From the files of a corpus to a folder that fairseq trains on."""

SPLITS = ("train", "valid", "test")
SUBWORDS = 8_000  # where the user gives no number
SAMPLE = 32  # MB of text that sentencepiece learns from, at about 20 times as much memory
