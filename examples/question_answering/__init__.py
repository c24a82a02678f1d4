"""Corpora of questions that the papers' tables need, and their readers."""
