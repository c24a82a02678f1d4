"""Labelled texts and pairs of texts."""
