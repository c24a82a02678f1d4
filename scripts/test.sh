#!/usr/bin/env bash
# Runs the linter, the formatter's check and every test; makes the environment first where it is missing.
#
#   bash scripts/test.sh                 everything
#   bash scripts/test.sh -k neural       what follows goes to pytest
#   bash scripts/test.sh -n 0 -x --pdb   in one process
set -euo pipefail
root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
. "$root/scripts/setup.sh"
cd -- "$root"

# one thread a worker: two pools of threads on two cores are slower than one
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

ruff check .
ruff format --check .
python -m pytest -n auto --maxprocesses 4 --dist worksteal --durations 10 "$@"
