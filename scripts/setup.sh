#!/usr/bin/env bash
# Makes the virtual environment .venv of this checkout, or reuses it.
#
#   bash scripts/setup.sh    2 to 3 minutes the first time, under a second afterwards
#   . scripts/setup.sh       the same from another script; the environment is then first on its PATH
#
# It takes 1.5 GB, or 5 GB where pip's torch is a CUDA build.
#
# May be called from any directory, interrupted, and called again. Variables:
#   BASE_PYTHON        the Python to make it with (default: 3.12 or 3.11 of the PATH, else of pyenv or uv)
#   TORCH_REQUIREMENT  another torch than the pinned one, as pip takes it; remembered in .venv

if [[ ${BASH_SOURCE[0]} != "$0" ]]; then
  bash "${BASH_SOURCE[0]}" || return
  VIRTUAL_ENV=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)/.venv
  export VIRTUAL_ENV PATH="$VIRTUAL_ENV/bin:$PATH"
  return
fi

set -euo pipefail
PINNED_TORCH=torch==2.13.0
FAIRSEQ=fairseq-fixed==0.12.3.1
EVERY=8 # seconds after which a step says where it is
BUILD_HELPERS=("setuptools>=77" wheel cython numpy)

root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/.venv
python=$venv/bin/python
stamp=$venv/setup.stamp # written last: without it the environment is unfinished
log=$venv/setup.log
fairseq_log=$venv/setup.fairseq.log
wheels=$venv/setup.wheels
constraints=$venv/setup.constraints
remembered_torch=$venv/setup.torch
origin=$venv/setup.origin # where it lay and which torch it has: other answers mean another environment

say() { printf 'setup: %s\n' "$*"; }
die() {
  printf 'setup: error: %s\n' "$*" >&2
  exit 1
}

# What the environment is made from.
fingerprint() {
  { printf '%s\n' "$root" "$torch" && cat "$root/setup.py" "$root/scripts/setup.sh"; } | cksum
}

python_version() { "$1" -I -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }

# Everything can be found; cheap, since nothing is imported.
is_complete() {
  [[ -f $stamp && $(<"$stamp") == "$(fingerprint)" ]] && "$python" -I - <<'PY' 2>/dev/null
import importlib.util, sys
names = "torch fairseq fairseq_cli fairseq_clusterformer faiss sacrebleu sacremoses sentencepiece subword_nmt hydra"
names += " nbclient ipykernel matplotlib jinja2 safetensors tokenizers filelock pypdf selectolax markdown_it mammoth openpyxl trafilatura pytest xdist ruff"
sys.exit(not all(importlib.util.find_spec(name) for name in names.split()))
PY
}

has_wanted_python() {
  [[ -z ${BASE_PYTHON:-} || $(python_version "$BASE_PYTHON") == "$(python_version "$python")" ]]
}

# Everything works; a few seconds.
works() {
  "$python" -I -c 'import torch, fairseq, fairseq_cli.train, faiss, sacrebleu, sacremoses, sentencepiece, subword_nmt, matplotlib, pytest'
}

# Why fairseq could not be compiled with this Python; fails if it can be, or need not be since there is a wheel.
lacks_for_fairseq() {
  if [[ $(python_version "$1") == 3.12 && $(uname -sm) == "Linux x86_64" ]]; then return 1; fi
  if ! command -v -- "${CXX:-c++}" >/dev/null; then
    echo "a C++ compiler"
  elif ! [[ -f $("$1" -I -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h ]]; then
    echo "its header Python.h"
  else
    return 1
  fi
}

# Pythons that can be meant, the most wanted first: fairseq has a wheel for 3.12, and 3.11 compiles it.
candidates() {
  if [[ -n ${BASE_PYTHON:-} ]]; then
    printf '%s\n' "$BASE_PYTHON"
    return
  fi
  printf '%s\n' python3.12 python3.11 python3 python
  local pyenv=${PYENV_ROOT:-${HOME:-/}/.pyenv}/versions
  local uv=${UV_PYTHON_INSTALL_DIR:-${XDG_DATA_HOME:-${HOME:-/}/.local/share}/uv/python}
  compgen -G "$pyenv/3.12*/bin/python3.12" || true
  compgen -G "$uv/cpython-3.12*/bin/python3.12" || true
  compgen -G "$pyenv/3.11*/bin/python3.11" || true
  compgen -G "$uv/cpython-3.11*/bin/python3.11" || true
}

# Sets $base to a Python that can make the environment, or stops.
find_python() {
  local candidate version lacks found="" lacking=""
  while read -r candidate; do
    command -v -- "$candidate" >/dev/null || continue
    version=$(python_version "$candidate") || version="does not start"
    found+=", $candidate ($version)"
    [[ $version == 3.1[12] ]] || continue
    if ! lacks=$(lacks_for_fairseq "$candidate"); then
      base=$candidate
      return
    fi
    lacking=${lacking:-"$candidate lacks $lacks"}
  done < <(candidates)
  if [[ -n $lacking ]]; then
    die "fairseq has to be compiled, and $lacking (Debian, Ubuntu: apt install g++ python3.11-dev);" \
      "for Python 3.12 on Linux x86-64 it need not be"
  fi
  found=${found#, }
  die "Python 3.11 or 3.12 is needed, found: ${found:-none on the PATH, of pyenv or of uv};" \
    "install one, or name it: BASE_PYTHON=/path/to/python3.12"
}

# begin LOG COMMAND...: starts it in the background, its output in the log; sets $job. Its processes are a group,
# which ends with this script.
begin() {
  local log=$1
  shift
  printf '\n### %s\n' "$*" >>"$log"
  set -m
  "$@" >>"$log" 2>&1 </dev/null &
  job=$!
  set +m
}

end_jobs() {
  local pid
  for pid in $(jobs -p); do kill -- "-$pid" 2>/dev/null || true; done
}

# finish JOB LOG WHAT: waits for it, with a line every ten seconds; when it failed, shows the log's end and stops.
finish() {
  local job=$1 log=$2 what=$3 began=$SECONDS said=$SECONDS
  while kill -0 "$job" 2>/dev/null; do
    sleep 0.2
    if ((SECONDS - said >= EVERY)); then
      said=$SECONDS
      say "  $((SECONDS - began)) s: $(tail -n 1 "$log" | cut -c 1-100)"
    fi
  done
  if ! wait "$job"; then
    printf -- '--- last lines of %s\n' "$log" >&2
    tail -n 20 "$log" | cut -c 1-300 >&2
    die "failed: $what (all of the output: $log)"
  fi
  say "  done in $((SECONDS - began)) s"
}

# step WHAT HOW_LONG COMMAND...
step() {
  local what=$1 how_long=$2
  shift 2
  say "$what ($how_long)"
  begin "$log" "$@"
  finish "$job" "$log" "$what"
}

# Bytecode is made where a module is first imported: compiling all of it takes longer than installing it.
pip_install() {
  pip install --no-compile "$@"
}

pip() {
  # a CUDA toolkit that happens to be there is not needed by fairseq, and may not fit the torch
  env -u CUDA_HOME "$python" -m pip --disable-pip-version-check --no-input "$1" --progress-bar off "${@:2}"
}

# fairseq's wheel, without the extensions that include torch. In a cache of its own: another project's fairseq has them.
build_fairseq() {
  local cache
  cache=$("$python" -m pip cache dir)/fairseq_clusterformer || cache=$venv/cache
  PYTHONPATH=$root/scripts/without_torch pip wheel --cache-dir "$cache" --no-deps --no-build-isolation \
    --wheel-dir "$wheels" "$FAIRSEQ"
}

make_venv() {
  "$base" -m venv "$venv" && return
  echo "Debian, Ubuntu: apt install python$(python_version "$base")-venv"
  return 1
}

make_environment() {
  find_python
  [[ ! -e "$venv" ]] || say "$venv is made anew: the old one is removed"
  rm -rf "$venv"
  mkdir "$venv"
  say "everything that the steps print is in $log"
  step "1/5 $venv with $(command -v -- "$base") ($(python_version "$base"); BASE_PYTHON chooses another)" seconds make_venv
}

# fairseq looks for --user-dir NAME in site-packages only, where an editable installation leaves nothing. A folder
# whose __init__.py leads to the checkout. No link: a later pip install would write through it into the checkout.
name_for_user_dir() {
  local site
  site=$("$python" -I -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/fairseq_clusterformer
  mkdir -p "$site/tasks"
  : >"$site/tasks/entry.py" # fairseq imports what is listed here, from the checkout
  cat >"$site/__init__.py" <<PY
"""Written by scripts/setup.sh: leads to the checkout."""
__file__ = r"$root/fairseq_clusterformer/__init__.py"
__path__[:] = [r"$root/fairseq_clusterformer"]
with open(__file__, encoding="utf-8") as file:
    exec(compile(file.read(), __file__, "exec"))
PY
}

install_this() {
  pip_install -c "$constraints" --no-build-isolation "$wheels"/*.whl --editable "$root[dev]" || return
  # fairseq asks for torchaudio, and one that does not load with this torch stops transformers' Trainer
  "$python" -I -c 'import torchaudio' || "$python" -m pip uninstall --yes torchaudio
}

install_all() {
  local requirement build
  read -ra requirement <<<"$torch"
  step "2/5 what builds fairseq" "seconds" pip_install "${BUILD_HELPERS[@]}"
  rm -rf "$wheels"
  say "$FAIRSEQ is built at the same time as the next step (output: $fairseq_log)"
  begin "$fairseq_log" build_fairseq
  build=$job
  step "3/5 $torch" "half a minute to 5: a CUDA build is 3 GB to download" pip_install "${requirement[@]}"
  if [[ $torch != "$PINNED_TORCH" ]]; then printf '%s\n' "$torch" >"$remembered_torch"; fi
  "$python" -I -c 'import importlib.metadata as m; print("torch==" + m.version("torch"))' >"$constraints"
  say "$FAIRSEQ: waiting for its wheel (seconds; half a minute of a processor the first time on Python 3.11)"
  finish "$build" "$fairseq_log" "$FAIRSEQ"
  step "4/5 fairseq_clusterformer and what develops it" "about a minute" install_this
  name_for_user_dir
  step "5/5 importing all of it" "seconds" works
}

main() {
  if (($#)); then
    [[ $1 == -h || $1 == --help ]] || die "takes no arguments, got: $* (see --help)"
    sed -n '2,/^$/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
    return
  fi
  unset PYTHONPATH PYTHONHOME # what they name is not in the environment
  PATH=:$PATH:
  PATH=${PATH//":$venv/bin:"/:} # an activated environment is no base for itself
  PATH=${PATH#:} PATH=${PATH%:}
  torch=$PINNED_TORCH
  if [[ -f $remembered_torch ]]; then torch=$(<"$remembered_torch"); fi
  torch=${TORCH_REQUIREMENT:-$torch}

  if is_complete && has_wanted_python; then return; fi

  if command -v flock >/dev/null; then # one set-up at a time
    exec 9>"$root/.venv.lock"
    if ! flock -n 9; then
      say "waiting for another set-up of this checkout"
      flock 9
      if is_complete && has_wanted_python; then return; fi
    fi
  fi

  trap end_jobs EXIT
  # An environment that was once complete is brought up to date in place. A half-made one is made again: what an
  # interrupted pip leaves cannot be told from what it finished; its downloads and builds are in pip's cache.
  if [[ -f $stamp && -f $origin && $(<"$origin") == "$root $torch" ]] && has_wanted_python &&
    works >/dev/null 2>&1; then
    say "bringing $venv up to date; everything that the steps print is in $log"
    rm -f "$stamp"
  else
    if [[ -e $venv ]]; then say "$venv is unfinished, broken or moved: making it again"; fi
    make_environment
  fi
  install_all
  printf '%s\n' "$root $torch" >"$origin"
  fingerprint >"$stamp.new" && mv "$stamp.new" "$stamp"
  say "ready: $venv"
}

main "$@"
