"""What a data set's symbols are; nothing here imports fairseq."""
