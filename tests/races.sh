#!/usr/bin/env bash
# Looks for races between threads: trains, resumes, evaluates and samples tiny models with two and three threads in a
# build with clang's thread sanitizer. Archer, which comes with clang's OpenMP, tells the sanitizer where that runtime
# synchronises; without it every parallel loop would look like a race. Needs clang and libomp.
#   tests/races.sh [ATTENTION ...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

kinds=("$@")
[ $# -gt 0 ] || kinds=(standard qk_norm)
clang=${CXX:-$(command -v clang++ || compgen -c clang++- | sort -V | tail -1 || true)}
[ -n "$clang" ] || { echo "races: no clang++; install clang and libomp, or name one by CXX=" >&2; exit 1; }
cmake --preset tsan -DCMAKE_CXX_COMPILER="$clang" >/dev/null
cmake --build build-tsan -j "$(getconf _NPROCESSORS_ONLN)" --target qkgpt
qkgpt=$PWD/build-tsan/qkgpt

runtime=$(ldd "$qkgpt" | awk '/libomp/ { print $3 }')
archer=$(dirname "$(readlink -f "$runtime")")/libarcher.so
[ -f "$archer" ] || { echo "races: no libarcher.so beside $runtime" >&2; exit 1; }
export OMP_TOOL_LIBRARIES=$archer ARCHER_OPTIONS=verbose=1 TSAN_OPTIONS="ignore_noninstrumented_modules=1 exitcode=66"

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
for _ in {1..99}; do echo "to be or not to be, that is the question"; done >text.txt
keys=(--data=text.txt --n_layer=2 --n_head=2 --n_embd=32 --block_size=32 --batch_size=4 --dropout=0.2 --eval_iters=2
  --gradient_accumulation_steps=2 --eval_interval=3 --sample_length=9 --lr_decay_iters=6 --warmup_iters=2)

run() {  # a command that must end well under Archer and without a report
  "$qkgpt" "$@" >out 2>&1 && grep -q "Archer detected" out || { cat out; echo "races: qkgpt $*" >&2; exit 1; }
}
for kind in "${kinds[@]}"; do
  for threads in 2 3; do
    export OMP_NUM_THREADS=$threads
    run train "${keys[@]}" --attention="$kind" --out_dir=run --max_iters=3 --overwrite
    run train --resume --out_dir=run --max_iters=6
    run eval run
    run sample run --num-samples=5 --length=40
    echo "$kind, $threads threads: no race"
  done
done
