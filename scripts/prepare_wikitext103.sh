#!/usr/bin/env bash
# WikiText-103 for fairseq, by words, as fairseq-preprocess --only-source makes it.
#   prepare_wikitext103.sh [--source DIR] [DEST]     (--help says more)
set -euo pipefail
here="$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"
exec bash "$here/python.sh" "$here/prepare_lm.py" wikitext103 "$@"
