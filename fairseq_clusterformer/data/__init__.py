"""Data sets, what their symbols are, and how text becomes symbols and they become text again."""
