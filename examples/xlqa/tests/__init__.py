"""Tests of the readers of words."""
