#!/usr/bin/env bash
# Runs everything that needs a GPU, in under ten minutes: the tests of the Triton kernels, of the operator and
# of torch.compile, of TF32 and half precision; and the times of attention, of training whole models, of generating with
# them and of encoders. A part that takes longer than its share is stopped.
#
#   bash scripts/gpu_suite.sh OUT                  on a machine with an NVIDIA GPU
#   bash scripts/gpu_suite.sh OUT --wheels DIR     first installs the wheels in DIR, for a machine without network
#   bash scripts/gpu_suite.sh OUT --rehearse       small sizes on the CPU, kernels under Triton's interpreter
#
# OUT/VERDICT.md is the first page: what passed, and the tables. OUT also gets JSON, pictures and logs.
# Uses the python of the PATH (or of PYTHON), which needs torch, triton, fairseq, matplotlib and pytest.
# If a part fails, the others still run, and the exit status is 1.
set -euo pipefail
root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
usage() { sed -n '2,12s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }
die() {
  printf 'gpu_suite.sh: %s\n' "$*" >&2
  exit 2
}

out='' wheels='' rehearse=''
while (($#)); do
  case $1 in
    -h | --help) usage && exit ;;
    --wheels) wheels=${2:?--wheels needs a folder} && shift ;;
    --rehearse) rehearse=yes ;;
    -*) die "unknown option $1; allowed: --wheels DIR, --rehearse" ;;
    *) [[ -z $out ]] || die "OUT is given twice: $out and $1"; out=$1 ;;
  esac
  shift
done
[[ -n $out ]] || die "OUT is missing; allowed: a folder for what is written"
[[ -z $wheels || -d $wheels ]] || die "--wheels is $wheels; allowed: a folder of wheels"
mkdir -p "$out"
out=$(cd -- "$out" && pwd)
python=${PYTHON:-python3}
cd -- "$root"

if [[ -n $wheels ]]; then
  "$python" -m pip install -q --no-index --no-deps --no-compile --target "$out/site" "$wheels"/*.whl
  export PYTHONPATH=$out/site${PYTHONPATH:+:$PYTHONPATH}
fi
if [[ -n $rehearse ]]; then
  export TRITON_INTERPRET=1 OMP_NUM_THREADS=1
  tests=(tests/kernels -k "equal_to_the_reference and triton-71 and chunks and not leaking")
  attention=(--device cpu --impl triton --kinds dense window neural --lengths 32 --heads 1 --width 16 --window 8 --repeats 1)
  training=(--device cpu --impl blocks --lengths 64 --layers 1 --embed-dim 32 --heads 2 --ffn 32 --window 16
    --attention window+gated --updates 1 --repeats 1)
  generation=(--lengths 20 --sentences 1 --beam 1 --repeats 1)
  encoders=(--device cpu --impl blocks --size tiny --parts 4 --lengths 64 --repeats 1 --models etc)
else
  "$python" -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' ||
    die "torch sees no GPU; allowed: a machine with one, or --rehearse"
  nvidia-smi >"$out/gpu.txt"
  tests=(tests/kernels tests/test_conformance.py tests/test_gpu.py -k 'triton or op or gpu')
  attention=(--device cuda --dtype bfloat16 --batch 8 --heads 8 --width 64 --window 256
    --lengths 1024 2048 4096 8192 16384 32768 --repeats 20)
  training=(--device cuda --dtype bfloat16 --batch 2 --lengths 2048 8192 16384 --window 256 --updates 10
    --attention 'window*2,window+gated')
  generation=(--lengths 512 2048)
  encoders=(--device cuda --lengths 4096 8192 16384 32768 --models full etc window+taught)
fi

failed=0
part() { # NAME SECONDS COMMAND ...
  local name=$1 limit=$2 begin=$SECONDS status=0
  shift 2
  printf '%s ...\n' "$name"
  timeout "$limit" "$@" >"$out/$name.log" 2>&1 || status=$?
  {
    printf '## %s: %s, %d s\n\n' "$name" "$( ((status)) && echo "FAILED (status $status)" || echo passed)" $((SECONDS - begin))
    grep -E '^\||passed|failed' "$out/$name.log" && echo
  } >>"$out/VERDICT.md" || true
  ((status == 0)) || { failed=1 && tail -n 15 "$out/$name.log"; }
}
printf '# Verdict: kinds below 1.00 "times as fast as dense" are slower\n\n' >"$out/VERDICT.md"
part tests 200 "$python" -m pytest -q -p no:cacheprovider "${tests[@]}"
part attention 170 "$python" -m scripts.benchmarks.attention "${attention[@]}" --json "$out/attention.json" \
  --plot "$out/attention.png"
part training 110 "$python" -m scripts.benchmarks.training "${training[@]}" --json "$out/training.json" \
  --plot "$out/training.png"
part generation 60 "$python" -m scripts.benchmarks.generation "${generation[@]}" --json "$out/generation.json"
part encoders 40 "$python" -m scripts.benchmarks.encoders "${encoders[@]}" --json "$out/encoders.json"
cat "$out/VERDICT.md"
exit $failed
