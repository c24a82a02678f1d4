#!/usr/bin/env bash
# Trains a clustered and a dense language model side by side on text that every Python carries, compares them, lets the
# clustered one write, and draws what clustered together. Makes the environment first where it is missing.
#
#   bash scripts/demo.sh              4 to 6 minutes on 2 cores, once set up; results in demo/
#   bash scripts/demo.sh --help       says more
#
# May be interrupted and called again: the environment and the data are kept, the training starts anew.
set -euo pipefail
root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
. "$root/scripts/setup.sh"
cd -- "$root"
exec python -m scripts.demo.demo "$@"
