#!/usr/bin/env bash
# Builds the fuzzers and runs each for SECONDS (default 600). New inputs of interest land in build-fuzz/corpus/, what
# finds a fault in build-fuzz/found/, and then the exit code is 1. Mend it and put the input into
# tests/fuzz/corpus/TARGET/: tests/fuzz_test.cpp keeps it mended.
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
found=0
for target in "${targets[@]}"; do
  corpus=build-fuzz/corpus/$target log=build-fuzz/$target.log
  mkdir -p "$corpus"
  # half a minute and 512 MiB for an input of at most 64 KiB
  if "build-fuzz/tests/fuzz_$target" -max_total_time="$seconds" -timeout=30 -rss_limit_mb=512 -max_len=65536 \
    -artifact_prefix="build-fuzz/found/$target-" -print_final_stats=1 "$corpus" "tests/fuzz/corpus/$target" >"$log" 2>&1; then
    # inputs tried, edges and features covered, corpus; whole seconds of the slowest input
    echo "$target: $(grep -a DONE "$log" | tr -s '[:blank:]' ' '), slowest $(sed -n 's/^stat::slowest_unit_time_sec: *//p' "$log") s"
  else
    found=1
    echo "$target: found something:" >&2
    tail -n 40 "$log" >&2
  fi
done
exit $found
