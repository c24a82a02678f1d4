"""Questions, documents and answers."""
