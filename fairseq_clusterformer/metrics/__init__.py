"""What answers and rankings are worth; nothing here imports fairseq."""
