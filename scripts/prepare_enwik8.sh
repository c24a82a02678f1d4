#!/usr/bin/env bash
# enwik8 for fairseq: its first 90M / 5M / 5M bytes as train / valid / test, one token a byte.
#   prepare_enwik8.sh [--source DIR] [DEST]     (--help says more)
set -euo pipefail
here="$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"
exec bash "$here/python.sh" "$here/prepare_lm.py" enwik8 "$@"
