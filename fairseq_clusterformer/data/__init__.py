"""Prepared data as fairseq reads it."""

#: what a prepared folder says of itself
RECORD = "prepared.json"
