#!/usr/bin/env bash
# Runs the linter, the formatter's check and the tests; makes the environment first where it is missing.
#
#   bash scripts/test.sh                 one form of each kind of attention, and a sample of what is slow
#   bash scripts/test.sh --all           everything; what has passed is written to tests/passed
#   bash scripts/test.sh --ci            as without, and every form where attention has changed since --all
#   bash scripts/test.sh -k neural       what follows goes to pytest
#   bash scripts/test.sh -n 0 -x --pdb   in one process
set -euo pipefail
root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
. "$root/scripts/setup.sh"
cd -- "$root"

# one thread a worker: two pools of threads on two cores are slower than one
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

# what decides whether every form of attention keeps its promises
of_the_matrix() {
  find fairseq_clusterformer/{attention,kernels,clustering} tests/{kinds,clusters,test_conformance,test_steps}.py \
    -type f \( -name '*.py' -o -name '*.cpp' -o -name '*.h' \) | LC_ALL=C sort | xargs sha256sum | sha256sum
}
passed=tests/passed/matrix.sha256

ruff check .
ruff format --check .
case "${1-}" in
  --all)
    shift
    set -- -m "" "$@"
    export KEEP_SECONDS=1 # of each file, so that later runs begin with what takes long
    ;;
  --ci)
    shift
    of_the_matrix | cmp -s - "$passed" || set -- -m "not whole" "$@"
    ;;
esac
python -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder --durations 10 "$@"
if [[ "${1-}" == -m && -z "${2-}" && $# -eq 2 ]]; then
  of_the_matrix >"$passed"
  python -m scripts.sizes
fi
