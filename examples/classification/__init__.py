"""Data sets of classification that the papers' tables need, and their readers."""
