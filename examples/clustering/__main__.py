"""The command ``fit`` of `examples.clustering.fit`."""

import logging
import sys

from fairseq_clusterformer.cli.main import program

from .fit import NAME, main

if __name__ == "__main__":
    logging.disable(logging.INFO)
    sys.exit(program(NAME, main, sys.argv[1:]))
