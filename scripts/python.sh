#!/usr/bin/env bash
# Runs the project's Python: $PYTHON if set, else the checkout's .venv, else python3.
set -euo pipefail
venv="$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)/.venv/bin/python"
if [[ -z "${PYTHON:-}" && -x "$venv" ]]; then
  PYTHON="$venv"
fi
PYTHON="${PYTHON:-python3}"
if ! "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null; then
  echo "error: PYTHON $PYTHON: is no Python 3.11 or newer; set PYTHON to one" >&2
  exit 1
fi
exec "$PYTHON" "$@"
