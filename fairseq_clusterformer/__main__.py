"""``python -m fairseq_clusterformer``: the command ``clusterformer``."""

import sys

from fairseq_clusterformer.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
