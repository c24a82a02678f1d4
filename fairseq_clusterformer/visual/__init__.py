"""Pictures and pages of what clusters together."""
