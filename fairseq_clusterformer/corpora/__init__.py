"""From the files of a corpus to a folder that fairseq trains on."""

SPLITS = ("train", "valid", "test")
SUBWORDS = 8_000  # where the user gives no number
