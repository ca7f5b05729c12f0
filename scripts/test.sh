#!/usr/bin/env bash
# Builds the program with its tests and runs them; installs first what is missing.
#   scripts/test.sh [CTEST_OPTION ...]      e.g. -L unit, or -R checkpoint
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

jobs=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)

scripts/setup.sh --no-plots
# The tests of the scripts want a Python that sees matplotlib; the first python3 on the path may not be it.
if python=$(scripts/python.sh numpy scipy matplotlib) || python=$(scripts/python.sh); then
  python=$(command -v "$python")
fi
cmake --preset release -DBUILD_TESTING=ON ${python:+-DPython3_EXECUTABLE="$python"}
cmake --build build -j "$jobs"
ctest --preset release -j2 "$@"
