#!/usr/bin/env bash
# Any folder of plain text for fairseq, as bytes or sentencepiece pieces.
#   prepare_text.sh SOURCE DEST [--bytes | --sentencepiece VOCAB] [...]     (--help says more)
set -euo pipefail
here="$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"
exec bash "$here/python.sh" "$here/prepare_lm.py" text "$@"
