"""Web pages and their keyphrases."""
