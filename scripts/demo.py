"""Train a clustered and a dense language model side by side, and see what clustered together.

    bash scripts/demo.sh [--out FOLDER]

Both models have the same number of parameters, and see the same batches of the same text: Python's
language reference by bytes, which every Python carries. They train at the same time with
``fairseq-train``, each with one thread of its own, so that their speeds can be compared; then
``fairseq-eval-lm`` tests them on topics that were held out. FOLDER gets ``clusters.html``,
``clusters.png``, ``generated.txt``, ``results.json``, and a folder with checkpoint and logs for each
model. They appear when all is done; ``unfinished`` in it holds what an interrupted run has left.
"""

import argparse
import codecs
import fcntl
import json
import logging
import os
import platform
import resource
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))

from demo_race import Runner, race, tokens_per_second  # noqa: E402
from demo_text import HELD_OUT, language_reference, prepare_reference  # noqa: E402
from lm_folder import UserError  # noqa: E402

PROMPT = 'The "with" statement'
LENGTH = 400  # bytes to write
TEMPERATURE = 0.7
MARK = ".demo"  # in a folder that is the demo's to fill

# A dense layer has no W_c (128 x 128) and no centroids (8 x 128): 68 more hidden units of
# 2 x 128 + 1 parameters each make up for them.
CLUSTERED = {"arch": "clusterformer_lm_tiny", "criterion": "clusterformer_cross_entropy"}
DENSE = {
    "arch": "transformer_lm",
    "criterion": "cross_entropy",
    "decoder-layers": 4,
    "decoder-embed-dim": 128,
    "decoder-ffn-embed-dim": 512 + 68,
    "decoder-attention-heads": 4,
    "share-decoder-input-output-embed": True,
    "activation-fn": "gelu",
}
"""


def shared_options(updates: int, context: int) -> dict:
    return {}
"""
