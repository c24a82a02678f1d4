#!/usr/bin/env bash
# BLEU of a translation model: tokenised, with compounds split, and sacreBLEU, in one table.
#   score_translation.sh --checkpoint CKPT --data DATA [...]    (--help says more)
#   score_translation.sh --generated FILE [--data DATA] [...]
set -euo pipefail
here="$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"
exec bash "$here/python.sh" "$here/score_translation.py" "$@"
