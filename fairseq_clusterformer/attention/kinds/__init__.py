"""The kinds of attention that are built in: each file registers its own."""
