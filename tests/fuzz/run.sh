#!/usr/bin/env bash
# Builds the fuzzers and runs each for SECONDS (default 600) on a copy of its corpus; what they find lands in
# build-fuzz/found/. Put a finding, mended, into tests/fuzz/corpus/TARGET/: tests/fuzz_test.cpp then keeps it mended.
#   tests/fuzz/run.sh [SECONDS] [TARGET ...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

seconds=${1:-600}
targets=("${@:2}")
[ ${#targets[@]} -gt 0 ] || targets=(config safetensors checkpoint text dataset metrics)
clang=${CXX:-$(command -v clang++ || compgen -c clang++- | sort -V | tail -1 || true)}
[ -n "$clang" ] || { echo "fuzz: no clang++; install clang, or name one by CXX=" >&2; exit 1; }

cmake --preset fuzz -DCMAKE_CXX_COMPILER="$clang" >/dev/null
cmake --build build-fuzz -j "$(getconf _NPROCESSORS_ONLN)" --target "${targets[@]/#/fuzz_}"
mkdir -p build-fuzz/found
for target in "${targets[@]}"; do
  corpus=build-fuzz/corpus/$target
  mkdir -p "$corpus"
  echo "== $target, $seconds s"
  # one second and 512 MiB for an input of at most 64 KiB
  "build-fuzz/tests/fuzz_$target" -max_total_time="$seconds" -timeout=1 -rss_limit_mb=512 -max_len=65536 \
    -artifact_prefix="build-fuzz/found/$target-" -print_final_stats=1 -verbosity=0 "$corpus" "tests/fuzz/corpus/$target" 2>&1 |
    grep -v "^stat::.*: 0$" || { echo "fuzz: $target found something: build-fuzz/found/" >&2; exit 1; }
done
