#!/usr/bin/env bash
# From a fresh clone to two trained models: installs what is missing, builds, gets a text, trains a small GPT with
# standard attention and the same with QK-Norm, compares them, and lets both write a little.
#   scripts/quickstart.sh [--KEY=VALUE ...]      keys are given to both trainings, e.g. --max_iters=100
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { echo "== $*" >&2; }

jobs=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
standard=runs/quickstart_standard
qk_norm=runs/quickstart_qk_norm

say "1/6 what is needed"
scripts/setup.sh

say "2/6 build"
cmake --preset release >&2
cmake --build build --target qkgpt -j "$jobs" >&2

say "3/6 text"
text=$(scripts/get_data.sh data)

SECONDS=0
say "4/6 standard attention: $standard"
build/qkgpt train configs/quickstart.json --data="$text" --out_dir="$standard" --overwrite "$@"
say "5/6 the same with QK-Norm: $qk_norm"
build/qkgpt train configs/quickstart.json configs/qk_norm.json --data="$text" --out_dir="$qk_norm" --overwrite "$@"

say "6/6 comparison"
if python=$(scripts/python.sh matplotlib) || python=$(scripts/python.sh); then
  "$python" scripts/compare.py "$standard" "$qk_norm" --out runs/quickstart
else
  echo "no Python 3 found: no comparison; later: python3 scripts/compare.py $standard $qk_norm" >&2
fi
for run in "$standard" "$qk_norm"; do
  echo
  echo "== a sample of $run"
  build/qkgpt sample "$run" --length=300
done
echo
say "done, ${SECONDS} s for both trainings and the comparison; next: build/qkgpt sample $qk_norm --prompt=\"The \", build/qkgpt train --help"
