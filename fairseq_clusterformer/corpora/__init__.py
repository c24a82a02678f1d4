"""From the files of a corpus to a folder that fairseq trains on."""
