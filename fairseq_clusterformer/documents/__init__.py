"""Files to passages, ranks and answers."""
