"""Reading and writing trained models."""
