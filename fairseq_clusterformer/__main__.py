"""``python -m fairseq_clusterformer``: the command ``clusterformer``."""

import sys

from fairseq_clusterformer.cli.main import main

sys.exit(main())
