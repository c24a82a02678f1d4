"""Tests of keyphrases."""
