"""Plain text, enwik8 and WikiText-103."""
