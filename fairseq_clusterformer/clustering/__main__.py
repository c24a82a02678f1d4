"""Clustering any vectors has moved; this says where."""

import sys

MOVED = "clustering has moved; allowed: python -m examples.clustering, in the repository"

if __name__ == "__main__":
    sys.exit(MOVED)
