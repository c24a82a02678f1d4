#!/usr/bin/env bash
# Multi30k, German and English image captions, for fairseq's translation task, both directions.
#   prepare_multi30k.sh [DEST] [--source DIR] [--bpe-operations N] [...]     (--help says more)
set -euo pipefail
here="$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"
exec bash "$here/python.sh" "$here/prepare_mt.py" multi30k "$@"
