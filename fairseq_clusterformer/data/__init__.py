"""What a data set's symbols are, and how text becomes them and they become text again."""
