#!/usr/bin/env bash
# IWSLT14, German and English TED talks, for fairseq's translation task, both directions.
#   prepare_iwslt14.sh [DEST] [--source DIR] [--bpe-operations N] [...]     (--help says more)
set -euo pipefail
here="$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"
exec bash "$here/python.sh" "$here/prepare_mt.py" iwslt14 "$@"
