"""Clusters that attention teaches."""

from .kind import Taught, TaughtOptions  # noqa: F401
