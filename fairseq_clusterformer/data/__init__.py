"""Data sets, and what their symbols are; of these files only `sentences` imports fairseq."""
