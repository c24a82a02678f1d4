#!/usr/bin/env bash
# Trains three small language models for the same minutes on text that every Python carries: a dense one, one with
# windows alone, and one with clusters. Compares them, lets the last one write, and draws its clusters. Makes the
# environment first if it is missing.
#
#   bash scripts/demo.sh              about 6 minutes, once set up; results in demo/
#   bash scripts/demo.sh --help       says more
#
# May be interrupted and called again: the environment and the data are kept, the training starts anew.
set -euo pipefail
root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
. "$root/scripts/setup.sh"
cd -- "$root"
exec python -m scripts.demo.demo "$@"
