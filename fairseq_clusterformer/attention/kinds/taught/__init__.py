"""Clusters that attention teaches."""
