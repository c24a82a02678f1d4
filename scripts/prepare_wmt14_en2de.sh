#!/usr/bin/env bash
# WMT14, English and German news, for fairseq's translation task, both directions.
#   prepare_wmt14_en2de.sh [DEST] [--source DIR] [--bpe-operations N] [...]     (--help says more)
set -euo pipefail
here="$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"
exec bash "$here/python.sh" "$here/prepare_mt.py" wmt14_en2de "$@"
